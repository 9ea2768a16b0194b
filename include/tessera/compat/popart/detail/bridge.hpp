// SPDX-License-Identifier: Apache-2.0
// Ops of PopART as ops of Tessera: setup gives the types, the recorded program of grow the
// composition, getGradOps the gradient ops. A gradient op is made anew from the op that it is of,
// so its attributes are those of that op and the types of its inputs.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "../../../abi.h"
#include "../op.hpp"
#include "../opdefinition.hpp"
#include "../popx/opxmanager.hpp"
#include "keys.hpp"

namespace popart {
namespace detail {

using OpFunc = std::function<std::unique_ptr<Op>(const OpCreatorInfo&)>;

// Attribute of gradient ops: the inputs of the op, as dtype, rank, sizes... of each.
inline const char* inputs_key() {
  return "__inputs";
}

struct Entry {
  Entry(const OperatorIdentifier& id, const OpFunc& make) : id(id), make(make) {}
  struct Gradient {
    Entry* entry;
    int index;
    std::string name;
  };
  OperatorIdentifier id;
  OpFunc make;
  std::mutex mutex;
  std::vector<std::unique_ptr<Gradient>> gradients;

  // The i-th gradient op, registered when it is first asked for.
  const std::string& gradient(int i);
};

// An op with the tensors that it reads and writes.
class Built {
 public:
  Built() : graph_(ir_) {}

  void make(const Entry& e, const std::vector<TensorInfo>& inputs, const Attributes& attributes) {
    std::vector<Tensor*> tensors;
    for (std::size_t i = 0; i < inputs.size(); ++i)
      tensors.push_back(tensor(std::string("in:") + std::to_string(i), inputs[i]));
    const Op::Settings settings(graph_, "");
    forward_ = e.make(OpCreatorInfo(e.id, settings, attributes, tensors));
    if (!forward_) throw error("the creator of {} gave no op", e.id);
    for (std::size_t i = 0; i < tensors.size(); ++i)
      forward_->input->insert(static_cast<int>(i), tensors[i]);
    forward_->setup();
    op_ = forward_.get();
  }

  // From here on the op is the i-th gradient op of the one before.
  void take_gradient(int i, const std::vector<TensorInfo>& inputs) {
    gradients_ = forward_->getGradOps();
    op_ = gradients_.at(static_cast<std::size_t>(i)).get();
    op_->set_output_prefix("grad:");
    for (const GradInOutMapper& m : op_->gradInputInfo()) {
      const std::size_t k = static_cast<std::size_t>(m.iGrad);
      if (k >= inputs.size()) continue;
      op_->input->insert(m.iGrad,
                         tensor(std::string("gradin:") + std::to_string(m.iGrad), inputs[k]));
    }
    op_->setup();
  }

  Op& op() { return *op_; }
  Ir& ir() { return ir_; }

 private:
  Tensor* tensor(const std::string& id, const TensorInfo& info) {
    Tensor* t = graph_.getTensors().add(id, graph_);
    t->info = info;
    return t;
  }

  Ir ir_;
  Graph graph_;
  std::unique_ptr<Op> forward_;
  std::vector<std::unique_ptr<Op>> gradients_;
  Op* op_ = nullptr;
};

inline std::vector<TensorInfo> inputs_of(const tessera_call* call) {
  std::vector<TensorInfo> out;
  for (int32_t i = 0; i < tessera_call_inputs(call); ++i) {
    const tessera_type* t = tessera_call_input(call, i);
    out.emplace_back(data_type(t->dtype), Shape(t->shape, t->shape + t->rank));
  }
  return out;
}

inline Attributes attributes_of(const tessera_call* call) {
  Attributes out;
  for (int32_t i = 0; i < tessera_call_attributes(call); ++i) {
    const char* name = tessera_call_attribute_name(call, i);
    const tessera_attribute_kind kind = tessera_call_attribute_kind(call, name);
    int64_t n = 0;
    if (kind == TESSERA_FLOAT || kind == TESSERA_FLOATS) {
      const float* v = tessera_call_floats(call, name, &n);
      out.setFloats(name, std::vector<float>(v, v + n), kind == TESSERA_FLOATS);
    } else if (kind == TESSERA_INT || kind == TESSERA_INTS) {
      const int64_t* v = tessera_call_ints(call, name, &n);
      out.setInts(name, std::vector<int64_t>(v, v + n), kind == TESSERA_INTS);
    } else {
      const char* const* v = tessera_call_strings(call, name, &n);
      out.setStrings(name, std::vector<std::string>(v, v + n), kind == TESSERA_STRINGS);
    }
  }
  return out;
}

// Types that are the same outside.
inline std::string border_name(const poplar::Type& t) {
  if (t == poplar::UNSIGNED_INT) return "int";
  if (t == poplar::UNSIGNED_SHORT) return "short";
  if (t == poplar::CHAR) return "signed char";
  if (t == poplar::UNSIGNED_LONGLONG) return "long long";
  return t.toString();
}

// Types of the op's outputs, which must be numbered without gaps.
inline void tell_outputs(tessera_call* call, Op& op) {
  for (int i = 0; i <= op.output->maxIndex(); ++i) {
    if (!op.output->hasIndex(i) || !op.output->info(i).isSet())
      throw error("setup() of {} does not set outInfo({})", op.opid, i);
    const TensorInfo& info = op.output->info(i);
    tessera_call_set_output(call, i, border_type(info.dataType()), info.rank(),
                            info.shape().data());
  }
}

// Grows the op's Opx on a recorder and gives what it recorded.
inline void tell_composition(tessera_call* call, Built& built) {
  Op& op = built.op();
  popx::Devicex device(built.ir());
  poplar::Graph& graph = device.graph();
  for (const auto& in : op.input->tensorMap()) {
    const TensorInfo& info = in.second->info;
    device.tensors[in.second->id] = poplar::Tensor(poplar::detail::checked(
        tessera_rec_variable(graph.recorder(), popx::popType(info).id(), info.rank(),
                             info.shape().data(), in.first, in.second->id.c_str())));
  }
  const std::unique_ptr<popx::Opx> opx = popx::OpxManager::createOpx(&op, &device);
  if (!opx)
    throw error(
        "Could not create opx for '{}' and there were no patterns intended to remove it. Please "
        "check it is defined and registered correctly",
        op.opid);
  poplar::program::Sequence prog;
  opx->grow(prog);
  std::vector<const tessera_view*> outputs;
  for (const auto& out : op.output->tensorMap()) {
    const auto at = device.tensors.find(out.second->id);
    if (at == device.tensors.end())
      throw error("grow() of {} does not set output {}", op.opid, out.first);
    const TensorInfo& info = out.second->info;
    poplar::Tensor t = at->second;
    if (t.numElements() != static_cast<std::size_t>(info.nelms()) ||
        border_name(t.elementType()) != border_name(popx::popType(info)))
      throw error("grow() of {} sets output {} to {}{}, setup() says {} {}", op.opid, out.first,
                  t.elementType(), t.shapeToString(), info.data_type(), info.text());
    outputs.push_back(t.reshape(info.shape_szt()).handle());
  }
  const char* text = poplar::detail::checked(tessera_rec_compose(
      graph.recorder(), &prog.node()->c, outputs.data(), static_cast<int64_t>(outputs.size())));
  tessera_call_set_composition(call, text);
}

inline void make_forward(Built& built, const tessera_call* call) {
  const Entry& e = *static_cast<const Entry*>(tessera_call_user(call));
  built.make(e, inputs_of(call), attributes_of(call));
}

inline void make_gradient(Built& built, const tessera_call* call) {
  const Entry::Gradient& g = *static_cast<const Entry::Gradient*>(tessera_call_user(call));
  int64_t n = 0;
  const int64_t* packed = tessera_call_ints(call, inputs_key(), &n);
  std::vector<TensorInfo> inputs;
  for (int64_t i = 0; i + 1 < n; i += 2 + packed[i + 1])
    inputs.emplace_back(data_type(static_cast<int32_t>(packed[i])),
                        Shape(packed + i + 2, packed + i + 2 + packed[i + 1]));
  built.make(*g.entry, inputs, attributes_of(call));
  built.take_gradient(g.index, inputs_of(call));
}
// The callbacks of an op and of a gradient op differ in what is built.
using Maker = void (*)(Built&, const tessera_call*);
template <Maker make>
void setup_of(tessera_call* call) {
  Built built;
  make(built, call);
  tell_outputs(call, built.op());
}
template <Maker make>
void compose_of(tessera_call* call) {
  Built built;
  make(built, call);
  tell_composition(call, built);
}

inline void forward_gradients(tessera_call* call) {
  Entry& e = *static_cast<Entry*>(tessera_call_user(call));
  Built built;
  make_forward(built, call);
  std::vector<int64_t> packed;
  for (int32_t i = 0; i < tessera_call_inputs(call); ++i) {
    const tessera_type* t = tessera_call_input(call, i);
    packed.push_back(t->dtype);
    packed.push_back(t->rank);
    packed.insert(packed.end(), t->shape, t->shape + t->rank);
  }
  const std::vector<std::unique_ptr<Op>> ops = built.op().getGradOps();
  for (std::size_t i = 0; i < ops.size(); ++i) {
    tessera_gradient* g = tessera_call_add_gradient(call, e.id.domain.c_str(),
                                                    e.gradient(static_cast<int>(i)).c_str(),
                                                    static_cast<int32_t>(e.id.version));
    tessera_gradient_copy_attributes(g, call);
    tessera_gradient_set_ints(g, inputs_key(), 1, packed.data(),
                              static_cast<int64_t>(packed.size()));
    for (const GradInOutMapper& m : ops[i]->gradInputInfo()) {
      const tessera_gradient_source from = m.type == GradOpInType::In    ? TESSERA_IN
                                           : m.type == GradOpInType::Out ? TESSERA_OUT
                                                                         : TESSERA_GRAD_OUT;
      tessera_gradient_set_input(g, m.iGrad, from, m.iNonGrad);
    }
    for (const auto& out : ops[i]->gradOutToNonGradIn())
      tessera_gradient_set_output(g, out.first, out.second);
  }
}

inline tessera_op blank_op(const OperatorIdentifier& id, const std::string& name, void* user) {
  tessera_op op = tessera_op();
  op.size = sizeof op;
  op.abi = TESSERA_OPS_ABI;
  op.domain = id.domain.c_str();
  op.name = name.c_str();
  op.version = static_cast<int32_t>(id.version);
  op.user = user;
  return op;
}

inline const std::string& Entry::gradient(int i) {
  const std::lock_guard<std::mutex> lock(mutex);
  while (static_cast<int>(gradients.size()) <= i) {
    const int n = static_cast<int>(gradients.size());
    gradients.emplace_back(new Gradient{this, n, id.type + "'" + std::to_string(n)});
    tessera_op op = blank_op(id, gradients.back()->name, gradients.back().get());
    op.setup = setup_of<make_gradient>;
    op.compose = compose_of<make_gradient>;
    tessera_register_op(&op);
  }
  return gradients[static_cast<std::size_t>(i)]->name;
}

// Kept for the life of the process: the registry points to it.
inline void add_op(const OperatorIdentifier& id, const OpFunc& func) {
  std::unique_ptr<Entry> e(new Entry(id, func));
  if (tessera_creator_add("op", key_of(id).c_str(), e.get())) return;
  tessera_op op = blank_op(e->id, e->id.type, e.get());
  op.setup = setup_of<make_forward>;
  op.compose = compose_of<make_forward>;
  op.gradients = forward_gradients;
  tessera_register_op(&op);
  e.release();
}

}  // namespace detail
}  // namespace popart
