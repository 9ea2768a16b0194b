// SPDX-License-Identifier: Apache-2.0
// How an op is computed: grow adds to the program on the tensors of the op.
#pragma once

#include <limits>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "../../poplar/Graph.hpp"
#include "../../poplar/Program.hpp"
#include "../../popops/ElementWise.hpp"
#include "../op.hpp"
#include "devicex.hpp"

namespace popart {
namespace popx {

using popart::InputCreatorType;
using PreparedTensorInfos = std::vector<std::pair<TensorId, TensorInfo>>;

struct UnwindEndpoint {};
struct ViewChangers {};

class Opx {
 public:
  Opx(Op* op, Devicex* device) : op_p(op), dv_p(device) {}
  virtual ~Opx() {}

  virtual void grow(poplar::program::Sequence& prog) const {
    (void)prog;
    throw error("adding poplar::Tensors not implemented for {}", op_p->opid);
  }

  Op* op_p;
  Devicex* dv_p;
  double inputCreatorPriority = 0.0;

  template <typename OP>
  OP& getOp() const {
    OP* p = dynamic_cast<OP*>(op_p);
    if (!p) throw error("Failed to cast to op ({}) to the type that its Opx is for", op_p->opid);
    return *p;
  }
  template <typename OP>
  void verifyOp(Op* op, const OperatorIdentifier& id) {
    if (id.domain != op->opid.domain || id.type != op->opid.type)
      throw error("Cannot create opx type for {} from {}", id, op->opid);
    verifyOp<OP>(op);
  }
  template <typename OP>
  void verifyOp(Op* op, const std::vector<OperatorIdentifier>& ids) {
    for (const OperatorIdentifier& id : ids)
      if (id == op->opid) return;
    throw error("Cannot create opx for {}: it is none of those that the opx is for", op->opid);
  }
  template <typename OP>
  void verifyOp(Op* op) {
    if (!dynamic_cast<OP*>(op))
      throw error("Failed to cast to op ({}) to the type that its Opx is for", op->opid);
  }

  poplar::Graph& graph() const { return dv_p->graph(); }
  poplar::Graph& topLevelGraph() const { return dv_p->graph(); }
  poplar::Graph& srcVirtualGraph(InIndex) const { return dv_p->graph(); }
  poplar::Graph& dstVirtualGraph(OutIndex) const { return dv_p->graph(); }

  // Tensors
  const poplar::Tensor& get(const TensorId& id) const {
    const auto at = dv_p->tensors.find(id);
    if (at == dv_p->tensors.end()) throw error("no tensor {} for {}", id, op_p->debugName());
    return at->second;
  }
  void insert(const TensorId& id, const poplar::Tensor& t) const { dv_p->tensors[id] = t; }
  const poplar::Tensor& getInTensor(InIndex i) const { return get(inId(i)); }
  const poplar::Tensor& getOutTensor(OutIndex i) const { return get(outId(i)); }
  bool hasInViewChangers(InIndex) const { return false; }
  void setOutTensor(OutIndex i, const poplar::Tensor& t) const { insert(outId(i), t); }
  TensorId inId(InIndex i) const { return op_p->inTensor(i)->id; }
  TensorId outId(OutIndex i) const { return op_p->outTensor(i)->id; }
  Tensor* inTensor(InIndex i) const { return op_p->inTensor(i); }
  Tensor* outTensor(OutIndex i) const { return op_p->outTensor(i); }
  bool hasInput(InIndex i) const { return op_p->hasInput(i); }
  bool hasOutput(OutIndex i) const { return op_p->hasOutput(i); }
  const TensorInfo& inInfo(InIndex i) const { return op_p->inTensor(i)->info; }
  const TensorInfo& outInfo(OutIndex i) const { return op_p->outTensor(i)->info; }
  const Shape& inShape(InIndex i) const { return inInfo(i).shape(); }
  const Shape& outShape(OutIndex i) const { return outInfo(i).shape(); }
  std::vector<std::size_t> inShapeSzt(InIndex i) const { return inInfo(i).shape_szt(); }
  std::vector<std::size_t> outShapeSzt(OutIndex i) const { return outInfo(i).shape_szt(); }

  // Names
  poplar::DebugContext debugContext(const std::string& name = "",
                                    poplar::SourceLocation = poplar::SourceLocation()) const {
    const std::string& own = op_p->name();
    return own.empty() ? name : (name.empty() ? own : own + "/" + name);
  }
  poplar::DebugNameAndId getDebugNameAndId(const std::string& name = "") const {
    return poplar::DebugNameAndId(debugContext(name).getPathName());
  }
  std::string debugPrefix(const std::string& name = "") const {
    return debugContext(name).getPathName();
  }
  std::string debugPrefix(const std::string& name, const std::string& more) const {
    return debugPrefix(name + "/" + more);
  }

  // Helpers
  poplar::Tensor cloneNcopy(poplar::program::Sequence& prog, const TensorId& id) const {
    return cloneNcopy(prog, get(id));
  }
  poplar::Tensor cloneNcopy(poplar::program::Sequence& prog, const poplar::Tensor& t,
                            const std::string& name = "") const {
    const poplar::Tensor out = graph().clone(t, debugContext(name));
    prog.add(poplar::program::Copy(t, out));
    return out;
  }
  poplar::Tensor broadcast(const std::vector<int64_t>& shape, const poplar::Tensor& t) const {
    poplar::Tensor out = t;
    while (out.rank() < shape.size()) out = out.expand({0});
    for (unsigned d = 0; d < out.rank(); ++d) {
      const std::size_t n = static_cast<std::size_t>(shape.at(d));
      if (out.dim(d) == n) continue;
      if (out.dim(d) != 1) throw error("cannot broadcast {} to {}", t.shapeToString(), shape);
      out = out.broadcast(static_cast<unsigned>(n), d);
    }
    return out;
  }
  poplar::Tensor broadcast(const std::vector<int64_t>& shape, const TensorId& id) const {
    return broadcast(shape, get(id));
  }
  poplar::Tensor getConst(const poplar::Type& type, const std::vector<std::size_t>& shape,
                          double value, const std::string& name = "") const {
    (void)name;
    return graph().addConstant(type, shape, value);
  }
  poplar::Tensor getScalarVariable(const poplar::Type& type, const std::string& name = "") const {
    poplar::Tensor t = graph().addVariable(type, {}, debugContext(name));
    graph().setTileMapping(t, 0);
    return t;
  }
  poplar::Tensor getZerosTensor(std::vector<std::size_t> shape, poplar::Type type,
                                const std::string& name = "") const {
    return getConst(type, shape, 0.0, name);
  }

  // Layouts of inputs. They may be overridden and are not asked.
  virtual InputCreatorType getInputCreatorType(InIndex) const { return InputCreatorType::Deadend; }
  virtual poplar::Tensor createInput(InIndex, const poplar::DebugNameAndId&) const {
    throw error("createInput of {}", op_p->opid);
  }
  virtual poplar::Tensor createInputTensor(InIndex, const poplar::DebugNameAndId&) const {
    throw error("createInputTensor of {}", op_p->opid);
  }
  virtual poplar::Tensor unwindTensorLayout(poplar::Tensor t, InIndex, OutIndex) const { return t; }
  virtual view::RegMap unwindRegion(InIndex, OutIndex) const {
    return [](const view::Region& r) { return view::Regions{r}; };
  }
  virtual bool createsEquiv(int, const Opx*, int) const { return false; }
  virtual std::set<TensorId> mustExistBeforeCreate(InIndex) const { return {}; }
  virtual bool outputCreatedExternally(OutIndex) const { return false; }
  virtual bool hasCreatorViewChangers(InIndex) const { return false; }
  virtual PreparedTensorInfos getInputsToPrepare() const { return {}; }
  virtual PreparedTensorInfos getOutputsToPrepare() const { return {}; }
};

}  // namespace popx
}  // namespace popart
