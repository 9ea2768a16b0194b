// SPDX-License-Identifier: Apache-2.0
// The op of PopART: its inputs, outputs and attributes, the types of its outputs and its gradient
// ops.
#pragma once

#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "alias/aliasmodel.hpp"
#include "attributes.hpp"
#include "error.hpp"
#include "graph.hpp"
#include "logging.hpp"
#include "names.hpp"
#include "operatoridentifier.hpp"
#include "opserialiser.hpp"
#include "region.hpp"
#include "tensor.hpp"
#include "tensorindex.hpp"

namespace popart {

// What an input of a gradient op is: an input or output of the op, or the gradient of an output.
enum class GradOpInType { In = 0, Out, GradOut };

class GradInOutMapper {
 public:
  GradInOutMapper(InIndex iGrad, int iNonGrad, GradOpInType type)
      : iGrad(iGrad), iNonGrad(iNonGrad), type(type) {}
  InIndex iGrad;
  int iNonGrad;
  GradOpInType type;
};

class Op {
 public:
  struct Settings {
    Settings(Graph& g, const std::string& n) : graph(g), name(n) {}
    Settings(Graph& g, const std::string& n, const std::string&) : graph(g), name(n) {}
    virtual ~Settings() {}
    Settings(const Settings&) = default;
    Settings& operator=(const Settings&) = default;
    Settings copy(const OpId&) const { return *this; }
    Ir& getIr() const { return graph.get().getIr(); }
    virtual void setFromAttributes(const Attributes&) {}

    std::reference_wrapper<Graph> graph;
    std::string name;
    std::vector<std::tuple<std::string, float>> inplacePriorityVeto;
    ExecutionContext executionContext = ExecutionContext::Normal;
    RecomputeType recomputeType = RecomputeType::Undefined;
    TileSet tileSet = TileSet::Compute;
    std::map<InIndex, InIndex> inferTensorMappingToFrom;
    std::set<std::string> excludePatterns;
    double schedulePriority = 0.0;
    bool optimizerOp = false;
    bool gradientClippingOp = false;
  };

  Op(const OperatorIdentifier& id, const Settings& s)
      : input(new TensorIndexMap), output(new TensorIndexMap), id(0), opid(id), settings(s) {}
  Op(const Op& o)
      : input(new TensorIndexMap),
        output(new TensorIndexMap),
        id(o.id),
        opid(o.opid),
        settings(o.settings) {}
  Op& operator=(const Op&) = delete;
  virtual ~Op() {}

  std::unique_ptr<TensorIndexMap> input;
  std::unique_ptr<TensorIndexMap> output;
  OpId id;
  OperatorIdentifier opid;
  Settings settings;

  Settings& getSettings() { return settings; }
  const Settings& getSettings() const { return settings; }
  virtual Settings getInSettings(InIndex) const { return settings; }
  virtual Settings getOutSettings(OutIndex) const { return settings; }

  virtual std::unique_ptr<Op> clone() const = 0;
  virtual float getSubgraphValue() const = 0;
  virtual void setup() { throw error("No setup() for {}", opid); }

  // Gradients
  virtual std::vector<std::unique_ptr<Op>> getGradOps() { return {}; }
  virtual const std::vector<GradInOutMapper>& gradInputInfo() const {
    throw error("Op {} cannot get `grad input info'", opid);
  }
  virtual const std::map<int, int>& gradOutToNonGradIn() const {
    throw error("Op {} cannot get `grad out to non grad in'", opid);
  }
  int getNonGradInIndex(int i) const { return gradOutToNonGradIn().at(i); }

  // Attributes
  virtual void appendAttributes(OpSerialiserBase& os) const { (void)os; }
  virtual void appendOutlineAttributes(OpSerialiserBase& os) const { appendAttributes(os); }
  virtual void appendMore(OpSerialiserBase&) const {}

  // Types
  const TensorInfo& inInfo(InIndex i) const { return in_tensor(i)->info; }
  TensorInfo& inInfo(InIndex i) { return in_tensor(i)->info; }
  const TensorInfo& outInfo(OutIndex i) const { return output->tensor(i)->info; }
  TensorInfo& outInfo(OutIndex i) { return out_tensor(i)->info; }
  const Shape& inShape(InIndex i) const { return inInfo(i).shape(); }
  const Shape& outShape(OutIndex i) const { return outInfo(i).shape(); }
  std::size_t inTensorCount() const { return static_cast<std::size_t>(input->n()); }
  std::size_t outTensorCount() const { return static_cast<std::size_t>(output->n()); }
  Rank inRank(InIndex i) const { return inInfo(i).rank(); }
  Rank outRank(OutIndex i) const { return outInfo(i).rank(); }
  bool hasInput(InIndex i) const { return input->hasIndex(i); }
  bool hasOutput(OutIndex i) const { return output->hasIndex(i); }
  TensorId inId(InIndex i) const { return in_tensor(i)->id; }
  TensorId outId(OutIndex i) const { return output->id(i); }
  Tensor* inTensor(InIndex i) { return in_tensor(i); }
  const Tensor* inTensor(InIndex i) const { return in_tensor(i); }
  Tensor* outTensor(OutIndex i) { return out_tensor(i); }
  const Tensor* outTensor(OutIndex i) const { return output->tensor(i); }

  // Names
  const std::string& name() const { return settings.name; }
  const std::string& getName() const { return settings.name; }
  std::string str() const { return debugName(); }
  virtual std::string debugName() const {
    return tessera_compat::format("Op({}{})", opid,
                                  settings.name.empty() ? "" : ", " + settings.name);
  }
  Graph& getGraph() { return settings.graph.get(); }
  const Graph& getGraph() const { return settings.graph.get(); }
  Ir& getIr() { return settings.getIr(); }
  const Ir& getIr() const { return settings.getIr(); }

  template <typename T>
  bool isConvertibleTo() const {
    return dynamic_cast<const T*>(this) != nullptr;
  }

  // Hints to PopART's passes. They may be overridden and are not asked.
  float getHighSubgraphValue() const { return 1000.0f; }
  float getLowSubgraphValue() const { return 0.1f; }
  virtual float calcAutoVirtualGraphCost(std::set<int>&) { return 0.0f; }
  virtual bool isOutlineable() const { return true; }
  virtual bool hasSideEffect() const { return false; }
  virtual bool canRecompute() const { return true; }
  virtual bool canBeReplacedByIdentity() const { return false; }
  virtual bool canShard() const { return false; }
  virtual bool isNorm() const { return false; }
  virtual bool isElementWiseUnary() const { return false; }
  virtual bool isLossOp() const { return false; }
  virtual bool isIpuCopyOp() const { return false; }
  virtual bool isOptimizerOp() const { return false; }
  virtual bool isInplaceViewChange() const { return false; }
  virtual bool isOutplaceViewChange() const { return false; }
  virtual bool copiesOptimizerTensors() const { return false; }
  virtual bool requiresRandomSeed() const { return false; }
  virtual InIndex getSeedInIndex() const { return -1; }
  virtual int getInBatchAxis(InIndex) const { return 0; }
  virtual int getOutBatchAxis(OutIndex) const { return 0; }
  virtual std::set<InIndex> optionalInputs() const { return {}; }
  virtual ReplicatedTensorShardingIndices getReplicatedTensorShardingIndices() const { return {}; }

  // Memory. Inputs are never changed: what an op writes to them is its own copy.
  virtual std::vector<std::tuple<OperatorIdentifier, float>> inplacePriorityDefault() const {
    return {};
  }
  virtual std::unique_ptr<Op> getInplaceVariant(const OperatorIdentifier& o) const {
    throw error("Op {} cannot get an inplace Op of type {}", opid, o);
  }
  virtual view::Regions modifies(InIndex i) const {
    return {view::Region::getEmpty(static_cast<int64_t>(inRank(i)))};
  }
  virtual view::Regions uses(InIndex i) const { return {view::Region::getFull(inShape(i))}; }
  virtual view::Regions aliases(InIndex i, OutIndex) const {
    return {view::Region::getEmpty(static_cast<int64_t>(inRank(i)))};
  }
  virtual view::RegMap fwdRegMap(InIndex, OutIndex o) const {
    const Shape shape = outShape(o);
    return [shape](const view::Region&) { return view::Regions{view::Region::getFull(shape)}; };
  }
  virtual view::RegMap bwdRegMap(InIndex i, OutIndex) const {
    const Shape shape = inShape(i);
    return [shape](const view::Region&) { return view::Regions{view::Region::getFull(shape)}; };
  }
  virtual void growAliasModel(AliasModel&) const {}
  virtual poprithms::memory::inplace::Proposal mapInplaceProposal(const AliasModel&,
                                                                  OperatorIdentifier) const {
    return {};
  }
  poprithms::memory::inplace::Proposal mapInplaceProposalGate0(const AliasModel&,
                                                               OperatorIdentifier) const {
    return {};
  }

  // Which tensors it reads and makes
  void connectInTensor(InIndex i, const TensorId& id) {
    Tensor* t = getGraph().getTensors().get(id);
    input->insert(i, t);
    t->consumers.increment(this);
  }
  void disconnectInTensor(InIndex i) {
    if (!input->hasIndex(i)) return;
    input->tensor(i)->consumers.decrement(this);
    input->erase(i);
  }
  void disconnectInTensor(InIndex i, Tensor*) { disconnectInTensor(i); }
  void disconnectInTensor(Tensor* t) {
    for (InIndex i : input->indices(t)) disconnectInTensor(i);
  }
  void connectOutTensor(OutIndex i, const TensorId& id) {
    Tensor* t = getGraph().getTensors().get(id);
    t->setProducer(this);
    output->insert(i, t);
  }
  void createAndConnectOutTensor(OutIndex i, const TensorId& id) {
    if (getGraph().getTensors().contains(id)) throw error("there is a tensor {} already", id);
    getGraph().getTensors().add(id, getGraph());
    connectOutTensor(i, id);
  }
  void disconnectOutTensor(Tensor* t) {
    for (OutIndex i : output->indices(t)) output->erase(i);
    t->setProducer(nullptr);
  }
  void disconnectAllInputs() {
    for (Tensor* t : input->tensors()) disconnectInTensor(t);
  }
  void disconnectAllOutputs() {
    for (Tensor* t : output->tensors()) disconnectOutTensor(t);
  }

  // Where it runs: where the op that it stands for does.
  void setVirtualGraphId(const OptionalVGraphId&) {}
  OptionalVGraphId getOptionalVGraphId() const { return {}; }
  bool hasVirtualGraphId() const { return false; }
  void setPipelineStage(const OptionalPipelineStage&) {}
  OptionalPipelineStage getOptionalPipelineStage() const { return {}; }
  bool hasPipelineStage() const { return false; }
  void setExecutionPhase(const OptionalExecutionPhase&) {}
  OptionalExecutionPhase getOptionalExecutionPhase() const { return {}; }
  bool hasExecutionPhase() const { return false; }
  void inheritPlacementAttributes(bool, AliasModel&) {}
  void inheritPlacementAttributes(bool) {}
  bool pruneable = true;

  // Names of all of this op's outputs begin with this.
  void set_output_prefix(const std::string& prefix) { prefix_ = prefix; }

 private:
  Tensor* in_tensor(InIndex i) const {
    if (!input->hasIndex(i)) throw error("{} has no input {}", debugName(), i);
    return input->tensor(i);
  }
  // Outputs come to be when their type is set.
  Tensor* out_tensor(OutIndex i) {
    if (!output->hasIndex(i)) {
      Graph& g = settings.graph.get();
      Tensor* t = g.getTensors().add(prefix_ + std::to_string(i), g);
      t->setProducer(this);
      output->insert(i, t);
    }
    return output->tensor(i);
  }

  std::string prefix_ = "out:";
};

class GradOp : public Op {
 public:
  using Op::Op;
};

}  // namespace popart

#include "detail/graph_ops.hpp"
