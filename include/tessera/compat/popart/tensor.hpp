// SPDX-License-Identifier: Apache-2.0
// A tensor between ops: an id and a type.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "names.hpp"
#include "tensorinfo.hpp"

namespace popart {

enum class TensorType { ActGrad = 0, Const, Stream, Unknown, Variable, N };

// Ops that read a tensor, as far as they are looked at: the op, and what takes its results.
class Consumers {
 public:
  std::vector<Op*> getOps() const {
    std::vector<Op*> out;
    for (const auto& c : counts_) out.push_back(c.first);
    return out;
  }
  int getTotal() const {
    int out = 0;
    for (const auto& c : counts_) out += c.second;
    return out;
  }
  int n(Op* op) const {
    for (const auto& c : counts_)
      if (c.first == op) return c.second;
    return 0;
  }
  void increment(Op* op) {
    for (auto& c : counts_)
      if (c.first == op) {
        ++c.second;
        return;
      }
    counts_.emplace_back(op, 1);
  }
  void decrement(Op* op) {
    for (auto at = counts_.begin(); at != counts_.end(); ++at)
      if (at->first == op) {
        if (--at->second == 0) counts_.erase(at);
        return;
      }
  }

 private:
  std::vector<std::pair<Op*, int>> counts_;  // in the order in which they came
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
