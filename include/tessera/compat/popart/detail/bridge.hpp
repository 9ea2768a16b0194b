// SPDX-License-Identifier: Apache-2.0
// Ops of PopART as ops of Tessera: setup gives the types, the recorded program of grow the
// composition, getGradOps the gradient ops. A gradient op is made anew from the op that it is of,
// so its attributes are those of that op and the types of its inputs.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "../../../abi.h"
#include "../op.hpp"
#include "../op/varupdate.hpp"
#include "../opdefinition.hpp"
#include "../patterns/patterns.hpp"
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

// What takes the results of an op, so that patterns can give it others.
class ResultsOp : public Op {
 public:
  explicit ResultsOp(const Settings& s) : Op(OperatorIdentifier("tessera", "Results", 1), s) {}
  std::unique_ptr<Op> clone() const override { return std::unique_ptr<Op>(new ResultsOp(*this)); }
  float getSubgraphValue() const override { return 0.0f; }
};

// An op with the tensors that it reads and writes.
class Built {
 public:
  Built() : graph_(ir_) {}

  void make(const Entry& e, const std::vector<TensorInfo>& inputs, const Attributes& attributes) {
    for (const TensorInfo& info : inputs) tensor("in:", info);
    const Op::Settings settings(graph_, "");
    std::unique_ptr<Op> op = e.make(OpCreatorInfo(e.id, settings, attributes, inputs_));
    if (!op) throw error("the creator of {} gave no op", e.id);
    op_ = op.get();
    graph_.moveIntoGraph(std::move(op));
    wants_seed_ =
        op_->requiresRandomSeed() && op_->getSeedInIndex() == static_cast<int>(inputs_.size());
    if (wants_seed_) tensor("in:", TensorInfo(DataType::UINT32, {2}));
    for (std::size_t i = 0; i < inputs_.size(); ++i)
      op_->connectInTensor(static_cast<int>(i), inputs_[i]->id);
    op_->setup();
  }

  // From here on the op is the i-th gradient op of the one before.
  void take_gradient(int i, const std::vector<TensorInfo>& inputs) {
    std::vector<std::unique_ptr<Op>> gradients = op_->getGradOps();
    std::unique_ptr<Op>& gradient = gradients.at(static_cast<std::size_t>(i));
    graph_.eraseOp(op_->id);
    op_ = gradient.get();
    op_->set_output_prefix("grad:");
    graph_.moveIntoGraph(std::move(gradient));
    inputs_.clear();
    for (const TensorInfo& info : inputs) tensor("gradin:", info);
    for (const GradInOutMapper& m : op_->gradInputInfo())
      if (static_cast<std::size_t>(m.iGrad) < inputs_.size())
        op_->connectInTensor(m.iGrad, inputs_[static_cast<std::size_t>(m.iGrad)]->id);
    op_->setup();
  }

  // Lets patterns have their way; the op may be gone then.
  void rewrite() {
    results_ = graph_.createOp<ResultsOp>(op_->settings);
    for (const auto& out : op_->output->tensorMap())
      results_->connectInTensor(out.first, out.second->id);
    ir_.end_of_autodiff();
    apply_patterns(graph_, results_);
  }

  // Those that are left, each behind those whose results it reads.
  std::vector<Op*> order() const {
    std::vector<Op*> out;
    std::set<const Op*> done;
    const std::map<OpId, Op*> ops = graph_.getOps();
    for (std::size_t before = 0;; before = out.size()) {
      for (const auto& entry : ops) {
        Op* op = entry.second;
        bool ready = op != results_ && done.count(op) == 0;
        for (const auto& in : op->input->tensorMap()) {
          const Op* producer = in.second->getProducerUnsafe();
          ready = ready && (!producer || done.count(producer) > 0);
        }
        if (!ready) continue;
        out.push_back(op);
        done.insert(op);
      }
      if (out.size() == before) break;
    }
    if (out.size() + 1 != ops.size()) throw error("patterns have left ops that read each other");
    return out;
  }

  Op& op() { return *op_; }
  Op& results() { return *results_; }
  Ir& ir() { return ir_; }
  // One that the call has not given.
  bool wants_seed() const { return wants_seed_; }
  const std::vector<Tensor*>& inputs() const { return inputs_; }

 private:
  void tensor(const std::string& prefix, const TensorInfo& info) {
    Tensor* t = graph_.getTensors().add(prefix + std::to_string(inputs_.size()), graph_);
    t->info = info;
    inputs_.push_back(t);
  }

  Ir ir_;
  Graph graph_;
  std::vector<Tensor*> inputs_;
  Op* op_ = nullptr;
  ResultsOp* results_ = nullptr;
  bool wants_seed_ = false;
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

// What an op in the graph of another one computes.
inline void grow(Op& op, popx::Devicex& device, poplar::program::Sequence& prog) {
  if (op.canBeReplacedByIdentity()) {
    device.tensors[op.outId(0)] = device.tensors.at(op.inId(0));
    return;
  }
  const std::unique_ptr<popx::Opx> opx = popx::OpxManager::createOpx(&op, &device);
  if (!opx)
    throw error(
        "Could not create opx for '{}' and there were no patterns intended to remove it. Please "
        "check it is defined and registered correctly",
        op.opid);
  opx->grow(prog);
  for (const auto& out : op.output->tensorMap())
    if (device.tensors.count(out.second->id) == 0)
      throw error("grow() of {} does not set output {}", op.opid, out.first);
}

// Result `i`, which setup() has said to be of this type. One that patterns have left nobody to make
// is zero.
inline poplar::Tensor result_of(Op& op, int i, const TensorInfo& info, popx::Devicex& device) {
  const auto at = device.tensors.find(op.inId(i));
  if (at == device.tensors.end())
    return device.graph().addConstant(popx::popType(info), info.shape_szt(), 0.0);
  const poplar::Tensor& t = at->second;
  if (t.numElements() != static_cast<std::size_t>(info.nelms()) ||
      border_name(t.elementType()) != border_name(popx::popType(info)))
    throw error("grow() sets output {} to {}{}, setup() says {} {}", i, t.elementType(),
                t.shapeToString(), info.data_type(), info.text());
  return t.reshape(info.shape_szt());
}

// An input that an op gives a new value.
inline int updated_input(const Built& built, const VarUpdateOp& op) {
  const Tensor* var = op.inTensor(VarUpdateOp::getVarToUpdateInIndex());
  for (std::size_t i = 0; i < built.inputs().size(); ++i)
    if (built.inputs()[i] == var) return static_cast<int>(i);
  throw error("{} updates a tensor that is no input of the op", op.debugName());
}

// Grows the Opx of the op, or of what patterns have made of it, on a recorder and gives what it
// recorded.
inline void tell_composition(tessera_call* call, Built& built) {
  const OperatorIdentifier id = built.op().opid;
  std::vector<TensorInfo> types;
  for (const auto& out : built.op().output->tensorMap()) types.push_back(out.second->info);
  built.rewrite();
  popx::Devicex device(built.ir());
  poplar::Graph& graph = device.graph();
  std::vector<poplar::Tensor> input_tensors;
  for (std::size_t i = 0; i < built.inputs().size(); ++i) {
    const Tensor& in = *built.inputs()[i];
    input_tensors.emplace_back(poplar::detail::checked(
        tessera_rec_variable(graph.recorder(), popx::popType(in.info).id(), in.info.rank(),
                             in.info.shape().data(), static_cast<int32_t>(i), in.id.c_str())));
    device.tensors[in.id] = input_tensors.back();
  }
  poplar::program::Sequence prog;
  std::vector<const tessera_view*> outputs, updates;
  for (Op* op : built.order()) {
    grow(*op, device, prog);
    const VarUpdateOp* update = dynamic_cast<const VarUpdateOp*>(op);
    if (!update) continue;
    const bool once = op->settings.executionContext == ExecutionContext::AccumulateOuterFragment;
    tessera_call_add_update(call, updated_input(built, *update),
                            once ? TESSERA_EVERY_STEP : TESSERA_EVERY_MICRO_BATCH);
    const TensorInfo& var = op->inInfo(VarUpdateOp::getVarToUpdateInIndex());
    const TensorId& now = op->outId(VarUpdateOp::getUpdatedVarOutIndex());
    updates.push_back(device.tensors.at(now).reshape(var.shape_szt()).handle());
  }
  try {
    for (std::size_t i = 0; i < types.size(); ++i)
      outputs.push_back(result_of(built.results(), static_cast<int>(i), types[i], device).handle());
  } catch (const error& e) {
    throw error("{}: {}", id, e.what());
  }
  outputs.insert(outputs.end(), updates.begin(), updates.end());
  // What the op leaves in its inputs is read behind all that it does.
  for (std::size_t i = 0; tessera_fact("literal in place", 0) && i < built.inputs().size(); ++i) {
    tessera_call_add_update(call, static_cast<int32_t>(i), TESSERA_FOR_GRADIENTS);
    outputs.push_back(input_tensors[i].handle());
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
  if (built.wants_seed()) tessera_call_want_seed(call);
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
