// SPDX-License-Identifier: Apache-2.0
// The program that an op is in, as far as ops ask about it.
#pragma once

#include <map>
#include <string>

#include "../detail/recorder.h"
#include "names.hpp"

namespace popart {

struct SessionOptions {
  SessionOptions()
      : accumulationFactor(tessera_fact("accumulation", 1)),
        replicatedGraphCount(tessera_fact("replicas", 1)) {
    enableGradientAccumulation = accumulationFactor > 1;
    enableReplicatedGraphs = replicatedGraphCount > 1;
    globalReplicationFactor = replicatedGraphCount;
  }
  int64_t accumulationFactor;
  int64_t replicatedGraphCount;
  int64_t globalReplicationFactor = 1;
  bool enableGradientAccumulation = false;
  bool enableReplicatedGraphs = false;
  bool enableOutlining = true;
  bool enablePipelining = false;
  bool enableExplicitMainLoops = false;
  bool enableFloatingPointChecks = false;
  int64_t getGlobalReplicationFactor() const { return replicatedGraphCount; }
};

class Ir {
 public:
  // Ops ask while they are made (false) and when the program is written (true in training).
  bool hasConstructedBackwards() const { return has_backwards_; }
  bool isTraining() const { return tessera_fact("training", 0) != 0; }
  bool isTesting() const { return !isTraining(); }
  bool canTrain() const { return isTraining(); }
  const SessionOptions& getSessionOptions() const { return options_; }
  std::string getSessionName() const { return isTraining() ? "training" : "inference"; }
  TensorId createIntermediateTensorId(const TensorId& base) {
    return base + "__t" + std::to_string(++intermediate_[base]);
  }

  void end_of_autodiff() { has_backwards_ = isTraining(); }

 private:
  SessionOptions options_;
  bool has_backwards_ = false;
  std::map<TensorId, int> intermediate_;
};

}  // namespace popart
