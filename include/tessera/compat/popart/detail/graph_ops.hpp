// SPDX-License-Identifier: Apache-2.0
// Ops in a graph: what patterns do to them.
#pragma once

#include "../op.hpp"

namespace popart {

inline OpId Graph::moveIntoGraph(std::unique_ptr<Op> op) {
  op->id = next_++;
  ops_.emplace_back(op.release());
  return ops_.back()->id;
}

template <typename OP, typename... Args>
OP* Graph::createOp(Args&&... args) {
  OP* op = new OP(std::forward<Args>(args)...);
  moveIntoGraph(std::unique_ptr<Op>(op));
  op->set_output_prefix("op" + std::to_string(op->id) + ":");
  return op;
}

template <typename OP, typename... Args>
OP* Graph::createConnectedOp(const std::map<InIndex, TensorId>& in,
                             const std::map<OutIndex, TensorId>& out, Args&&... args) {
  OP* op = createOp<OP>(std::forward<Args>(args)...);
  for (const auto& i : in) op->connectInTensor(i.first, i.second);
  for (const auto& o : out) {
    if (tensors_.contains(o.second) && !tensors_.get(o.second)->hasProducer())
      op->connectOutTensor(o.first, o.second);
    else
      op->createAndConnectOutTensor(o.first, o.second);
  }
  op->setup();
  return op;
}

// Patterns hold on to what they erase until they return.
inline void Graph::eraseOp(OpId id) {
  for (auto at = ops_.begin(); at != ops_.end(); ++at) {
    if ((*at)->id != id) continue;
    (*at)->disconnectAllInputs();
    (*at)->disconnectAllOutputs();
    erased_.push_back(*at);
    ops_.erase(at);
    return;
  }
  throw error("there is no op {} to erase", id);
}

inline Op* Graph::getOp(OpId id) const {
  for (const auto& op : ops_)
    if (op->id == id) return op.get();
  throw error("there is no op {}", id);
}

inline std::map<OpId, Op*> Graph::getOps() const {
  std::map<OpId, Op*> out;
  for (const auto& op : ops_) out[op->id] = op.get();
  return out;
}

inline void Graph::replaceTensor(const TensorId& old_id, const TensorId& new_id) {
  Tensor* t = tensors_.get(old_id);
  for (Op* op : t->consumers.getOps())
    for (InIndex i : op->input->indices(t)) {
      op->disconnectInTensor(i);
      op->connectInTensor(i, new_id);
    }
}

}  // namespace popart
