// SPDX-License-Identifier: Apache-2.0
// A tensor between ops: an id and a type.
#pragma once

#include <string>
#include <vector>

#include "names.hpp"
#include "tensorinfo.hpp"

namespace popart {

enum class TensorType { ActGrad = 0, Const, Stream, Unknown, Variable, N };

// Ops that read a tensor: while an op is looked at alone there are none.
class Consumers {
 public:
  std::vector<Op*> getOps() const { return {}; }
  int getTotal() const { return 0; }
  int n(Op*) const { return 0; }
};

class Tensor {
 public:
  Tensor(const TensorId& id, TensorType type, Graph& graph) : id(id), graph_(graph), type_(type) {}

  TensorId id;
  TensorInfo info;
  Consumers consumers;

  std::string str() const { return id; }
  TensorType tensorType() const { return type_; }
  bool hasProducer() const { return producer_ != nullptr; }
  Op* getProducer() const {
    if (!producer_) throw error("No producer for tensor {} to return", id);
    return producer_;
  }
  Op* getProducerUnsafe() const { return producer_; }
  void setProducer(Op* op) { producer_ = op; }
  bool hasTensorData() const { return false; }
  bool isGraphOutput() const { return false; }
  bool isGraphInput() const { return true; }
  bool isRestoreInplaceTensor() const { return false; }
  Graph& getGraph() { return graph_; }
  const Graph& getGraph() const { return graph_; }

 private:
  Graph& graph_;
  TensorType type_;
  Op* producer_ = nullptr;
};

}  // namespace popart
