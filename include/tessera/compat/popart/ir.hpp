// SPDX-License-Identifier: Apache-2.0
// The program that an op is in, as far as ops ask about it.
#pragma once

#include <string>

#include "names.hpp"

namespace popart {

struct SessionOptions {
  bool enableGradientAccumulation = false;
  int64_t accumulationFactor = 1;
  bool enableReplicatedGraphs = false;
  int64_t replicatedGraphCount = 1;
  int64_t globalReplicationFactor = 1;
  bool enableOutlining = true;
  bool enablePipelining = false;
  bool enableExplicitMainLoops = false;
  bool enableFloatingPointChecks = false;
  int64_t getGlobalReplicationFactor() const { return replicatedGraphCount; }
};

class Ir {
 public:
  bool hasConstructedBackwards() const { return false; }
  bool isTraining() const { return false; }
  bool isTesting() const { return false; }
  bool canTrain() const { return false; }
  const SessionOptions& getSessionOptions() const { return options_; }
  std::string getSessionName() const { return "inference"; }

 private:
  SessionOptions options_;
};

}  // namespace popart
