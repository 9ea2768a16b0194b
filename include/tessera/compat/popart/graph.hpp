// SPDX-License-Identifier: Apache-2.0
// The graph that an op is in: the op with its own inputs and outputs, for each op is looked at
// alone, and what patterns put in its place. Functions on ops are in detail/graph_ops.hpp.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

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
  void remove(const TensorId& id) { all_.erase(id); }

 private:
  std::map<TensorId, std::unique_ptr<Tensor>> all_;
};

// Orders that patterns ask for. What reads a tensor sees its value from before the update, whatever
// they say.
class TopoCons {
 public:
  void insert(Op*, Op*, bool = false) {}
  void remove(Op*) {}
  void transfer(Op*, Op*, bool = true) {}
  bool contains(Op*, Op*) const { return false; }
};

class Graph {
 public:
  explicit Graph(Ir& ir) : topoCons(new TopoCons), ir_(ir) {}
  Graph(const Graph&) = delete;

  std::unique_ptr<TopoCons> topoCons;

  Ir& getIr() { return ir_; }
  const Ir& getIr() const { return ir_; }
  Tensors& getTensors() { return tensors_; }
  const Tensors& getTensors() const { return tensors_; }
  Tensor* getTensor(const TensorId& id) { return tensors_.get(id); }
  std::string getGraphString() const { return "the main graph"; }

  // Its address stays the same.
  template <typename OP, typename... Args>
  OP* createOp(Args&&... args);
  template <typename OP, typename... Args>
  OP* createConnectedOp(const std::map<InIndex, TensorId>& in,
                        const std::map<OutIndex, TensorId>& out, Args&&... args);
  OpId moveIntoGraph(std::unique_ptr<Op> op);
  void eraseOp(OpId id);
  Op* getOp(OpId id) const;
  std::map<OpId, Op*> getOps() const;
  // Readers of the one tensor read the other.
  void replaceTensor(const TensorId& old_id, const TensorId& new_id);

 private:
  Ir& ir_;
  Tensors tensors_;
  OpId next_ = 100;
  std::vector<std::shared_ptr<Op>> ops_, erased_;
};

}  // namespace popart
