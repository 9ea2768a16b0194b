// SPDX-License-Identifier: Apache-2.0
// The graph that an op is in: its own inputs and outputs, for each op is looked at alone.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "ir.hpp"
#include "tensor.hpp"

namespace popart {

class Tensors {
 public:
  Tensor* get(const TensorId& id) const {
    const auto at = all_.find(id);
    if (at == all_.end()) throw error("No Ir::Tensor with TensorId '{}'", id);
    return at->second.get();
  }
  bool contains(const TensorId& id) const { return all_.count(id) > 0; }
  Tensor* add(const TensorId& id, Graph& graph) {
    auto& t = all_[id];
    if (!t) t.reset(new Tensor(id, TensorType::ActGrad, graph));
    return t.get();
  }

 private:
  std::map<TensorId, std::unique_ptr<Tensor>> all_;
};

class Graph {
 public:
  explicit Graph(Ir& ir) : ir_(ir) {}
  Graph(const Graph&) = delete;

  Ir& getIr() { return ir_; }
  const Ir& getIr() const { return ir_; }
  Tensors& getTensors() { return tensors_; }
  const Tensors& getTensors() const { return tensors_; }
  Tensor* getTensor(const TensorId& id) { return tensors_.get(id); }
  std::string getGraphString() const { return "the main graph"; }

 private:
  Ir& ir_;
  Tensors tensors_;
};

}  // namespace popart
