// SPDX-License-Identifier: Apache-2.0
// Ops that patterns rewrite: a moving average without an Opx, which becomes an op that updates its
// second input; an op that stands for its first input and gives its gradient to the second, whose
// second input is dropped; ops for the switches of patterns.
#include <memory>
#include <popart/graph.hpp>
#include <popart/ir.hpp>
#include <popart/op.hpp>
#include <popart/op/accumulate.hpp>
#include <popart/op/identity.hpp>
#include <popart/opmanager.hpp>
#include <popart/patterns/patterns.hpp>
#include <popart/popx/opx.hpp>
#include <popart/popx/opxmanager.hpp>
#include <popart/tensors.hpp>
#include <popops/ElementWise.hpp>
#include <vector>

namespace {

using namespace popart;

class AverageOp : public Op {
 public:
  AverageOp(const OperatorIdentifier& id, const Op::Settings& s) : Op(id, s) {}
  std::unique_ptr<Op> clone() const override { return std::make_unique<AverageOp>(*this); }
  void setup() override { outInfo(0) = inInfo(0); }
  bool hasSideEffect() const override { return true; }
  float getSubgraphValue() const override { return getLowSubgraphValue(); }
};

const OperatorIdentifier kAverage{"com.acme", "ExpMovAvg", 1};
const OperatorIdentifier kCount{"com.acme", "CountSteps", 1};
const OpDefinition::DataTypes kTypes{DataType::FLOAT16, DataType::FLOAT};
const OpDefinition kDefinition(
    {OpDefinition::Inputs({{"x", kTypes}, {"avg", kTypes}, {"f", kTypes}}),
     OpDefinition::Outputs({{"y", kTypes}}), OpDefinition::Attributes({})});
OpCreator<AverageOp> makeAverage(
    OpDefinitions({{kAverage, kDefinition}, {kCount, kDefinition}}),
    [](const OpCreatorInfo& info) { return std::make_unique<AverageOp>(info.opid, info.settings); },
    true);

class AveragePattern : public PreAliasPattern {
 public:
  bool matches(Op* op) const override { return op->isConvertibleTo<AverageOp>(); }
  std::vector<const Tensor*> touches(Op*) const override { return {}; }
  bool apply(Op* op) const override {
    Graph& graph = op->getGraph();
    Tensor* source = op->inTensor(0);
    Tensor* average = op->inTensor(1);
    Tensor* out = op->outTensor(0);
    const bool counts = op->opid == kCount;
    auto* update = graph.createOp<AccumulateOp>(
        counts ? AccumulationType::Add : AccumulationType::MovingAverage,
        OptimizerValue(0.5f, counts), Op::Settings(graph, op->name() + "_average"));
    if (!counts) {
      update->setVirtualGraphId(op->getOptionalVGraphId());
      update->settings.executionContext = ExecutionContext::AccumulateOuterFragment;
      update->connectInTensor(AccumulateOp::getFactorInIndex(), op->inId(2));
    }
    update->connectInTensor(VarUpdateOp::getVarToUpdateInIndex(), average->id);
    update->connectInTensor(VarUpdateWithUpdaterOp::getUpdaterInIndex(), source->id);
    op->disconnectAllInputs();
    op->disconnectAllOutputs();
    graph.eraseOp(op->id);
    update->createAndConnectOutTensor(VarUpdateOp::getUpdatedVarOutIndex(),
                                      graph.getIr().createIntermediateTensorId(average->id));
    update->setup();
    (void)out;
    return true;
  }
};
PatternCreator<AveragePattern> averagePattern("AveragePattern", true);

// y = x, and the gradient of y is that of the proxy.
const OperatorIdentifier kProxy{"com.acme", "Proxy", 1};
const OperatorIdentifier kProxyGrad{"com.acme", "ProxyGrad", 1};

class ProxyOp;
class ProxyGradOp : public Op {
 public:
  explicit ProxyGradOp(const ProxyOp& op);
  std::unique_ptr<Op> clone() const override { return std::make_unique<ProxyGradOp>(*this); }
  void setup() override { outInfo(0) = inInfo(0); }
  float getSubgraphValue() const override { return getLowSubgraphValue(); }
  const std::vector<GradInOutMapper>& gradInputInfo() const override {
    static const std::vector<GradInOutMapper> info = {{0, 0, GradOpInType::GradOut}};
    return info;
  }
  const std::map<int, int>& gradOutToNonGradIn() const override {
    static const std::map<int, int> info = {{0, 1}};
    return info;
  }
};
class ProxyOp : public Op {
 public:
  ProxyOp(const OperatorIdentifier& id, const Op::Settings& s) : Op(id, s) {}
  std::unique_ptr<Op> clone() const override { return std::make_unique<ProxyOp>(*this); }
  void setup() override { outInfo(0) = inInfo(0); }
  float getSubgraphValue() const override { return getLowSubgraphValue(); }
  std::vector<std::unique_ptr<Op>> getGradOps() override {
    std::vector<std::unique_ptr<Op>> ops;
    ops.emplace_back(new ProxyGradOp(*this));
    return ops;
  }
};
ProxyGradOp::ProxyGradOp(const ProxyOp& op) : Op(kProxyGrad, op.getSettings()) {}

class ProxyOpx : public popx::Opx {
 public:
  ProxyOpx(Op* op, popx::Devicex* d) : popx::Opx(op, d) {
    verifyOp<Op>(op, std::vector<OperatorIdentifier>{kProxy, kProxyGrad});
  }
  void grow(poplar::program::Sequence&) const final {
    if (op_p->opid == kProxy && hasInput(1)) throw error("the pattern has not run");
    insert(outId(0), get(inId(0)));
  }
};
OpCreator<ProxyOp> makeProxy({{kProxy, OpDefinition()}});
popx::OpxCreator<ProxyOpx> proxyOpx({kProxy, kProxyGrad});

class ProxyPattern : public PreAliasPattern {
 public:
  bool matches(Op* op) const override { return op->isConvertibleTo<ProxyOp>() && op->hasInput(1); }
  std::vector<const Tensor*> touches(Op* op) const override { return {op->inTensor(1)}; }
  bool apply(Op* op) const override {
    if (op->getIr().canTrain() && !op->getIr().hasConstructedBackwards()) return false;
    op->disconnectInTensor(1, op->inTensor(1));
    return true;
  }
};
PatternCreator<ProxyPattern> proxyPattern("ProxyPattern");

// x * 2, unless the pattern, which is off until it is asked for, takes its place.
const OperatorIdentifier kTwice{"com.acme", "Twice", 1};
class TwiceOp : public Op {
 public:
  TwiceOp(const OperatorIdentifier& id, const Op::Settings& s) : Op(id, s) {}
  std::unique_ptr<Op> clone() const override { return std::make_unique<TwiceOp>(*this); }
  void setup() override { outInfo(0) = inInfo(0); }
  float getSubgraphValue() const override { return getLowSubgraphValue(); }
};
class TwiceOpx : public popx::Opx {
 public:
  TwiceOpx(Op* op, popx::Devicex* d) : popx::Opx(op, d) { verifyOp<TwiceOp>(op, kTwice); }
  void grow(poplar::program::Sequence& prog) const final {
    setOutTensor(0, popops::mul(graph(), getInTensor(0), 2.0f, prog, debugContext("twice")));
  }
};
OpCreator<TwiceOp> makeTwice({{kTwice, OpDefinition()}});
popx::OpxCreator<TwiceOpx> twiceOpx(kTwice);

class DropTwice : public PreAliasPattern {
 public:
  bool matches(Op* op) const override { return op->isConvertibleTo<TwiceOp>(); }
  std::vector<const Tensor*> touches(Op*) const override { return {}; }
  bool apply(Op* op) const override {
    Tensor* in = op->inTensor(0);
    Tensor* out = op->outTensor(0);
    Graph& graph = op->getGraph();
    op->disconnectAllInputs();
    op->disconnectAllOutputs();
    graph.eraseOp(op->id);
    for (Op* reader : out->consumers.getOps())
      for (InIndex i : reader->input->indices(out)) {
        reader->disconnectInTensor(i, out);
        reader->connectInTensor(i, in->id);
      }
    return true;
  }
};
PatternCreator<DropTwice> dropTwice("DropTwice", false);

// Says that it has found something for ever.
class Restless : public PreAliasPattern {
 public:
  bool matches(Op* op) const override { return op->isConvertibleTo<TwiceOp>(); }
  std::vector<const Tensor*> touches(Op*) const override { return {}; }
  bool apply(Op*) const override { return true; }
};
PatternCreator<Restless> restless("Restless", false, false);

// A hint about layouts, as residual connections get.
class Hint : public PreAliasPattern {
 public:
  bool matches(Op* op) const override {
    return op->isConvertibleTo<TwiceOp>() && op->settings.inferTensorMappingToFrom.empty();
  }
  std::vector<const Tensor*> touches(Op*) const override { return {}; }
  bool apply(Op* op) const override {
    op->settings.inferTensorMappingToFrom.insert({0, 0});
    op->settings.inplacePriorityVeto = {{"TwiceInplace", -1.0f}};
    op->settings.schedulePriority = 10.0;
    return true;
  }
};
PatternCreator<Hint> hint("Hint");

}  // namespace
