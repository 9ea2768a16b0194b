// SPDX-License-Identifier: Apache-2.0
// Spikes with the gradient of something smoother; an op whose gradient goes elsewhere; a copy whose
// gradient op is PopART's. Each file has its own Op and Opx in a namespace without a name, as users
// have.
#include <popart/op.hpp>
#include <popart/op/identity.hpp>
#include <popart/opmanager.hpp>
#include <popart/patterns/pattern.hpp>
#include <popart/patterns/patterns.hpp>
#include <popart/popx/devicex.hpp>
#include <popart/popx/opx.hpp>
#include <popart/popx/opxmanager.hpp>
#include <popart/region.hpp>
#include <popart/version.hpp>
#include <popops/ElementWise.hpp>
#include <popops/Expr.hpp>
#include <popops/ExprOp.hpp>

namespace pe = popops::expr;

namespace {

// A gradient op of (gradient, input), with a slope.
class SpikeGradOp : public popart::Op {
 public:
  SpikeGradOp(const popart::OperatorIdentifier& id, const popart::Op& forward, float slope)
      : popart::Op(id, forward.settings), slope(slope) {}
  std::unique_ptr<popart::Op> clone() const final { return std::make_unique<SpikeGradOp>(*this); }
  void setup() final { outInfo(0) = inInfo(0); }
  const std::vector<popart::GradInOutMapper>& gradInputInfo() const final {
    static const std::vector<popart::GradInOutMapper> info = {{0, 0, popart::GradOpInType::GradOut},
                                                              {1, 0, popart::GradOpInType::In}};
    return info;
  }
  const std::map<int, int>& gradOutToNonGradIn() const final {
    static const std::map<int, int> info = {{0, 0}};
    return info;
  }
  float getSubgraphValue() const final { return getHighSubgraphValue(); }
  float slope;
};

class SpikeOp : public popart::Op {
 public:
  SpikeOp(const popart::OperatorIdentifier& id, float slope, const popart::Op::Settings& s)
      : popart::Op(id, s), slope(slope) {}
  std::unique_ptr<popart::Op> clone() const final { return std::make_unique<SpikeOp>(*this); }
  void setup() final { outInfo(0) = inInfo(0); }
  std::vector<std::unique_ptr<popart::Op>> getGradOps() final {
    std::vector<std::unique_ptr<popart::Op>> ops;
    ops.emplace_back(new SpikeGradOp({opid.domain, opid.type + "Grad", 1}, *this, slope));
    return ops;
  }
  float getSubgraphValue() const final { return getHighSubgraphValue(); }
  float slope;
};

class SpikeOpx : public popart::popx::Opx {
 public:
  SpikeOpx(popart::Op* op, popart::popx::Devicex* d) : popart::popx::Opx(op, d) {
    verifyOp<SpikeOp>(op);
  }
  void grow(poplar::program::Sequence& prog) const final {
    poplar::Tensor in = getInTensor(0);
    auto expression = pe::Select(pe::Const(0.0f), pe::Const(1.0f), pe::Lt(pe::_1, pe::Const(0.0f)));
    popops::mapInPlace(graph(), expression, {in}, prog, debugContext("spike"),
                       poplar::OptionFlags());
    setOutTensor(0, in);
  }
};

// Heaviside: the gradient passes where the input was positive.
class HeavisideGradOpx : public popart::popx::Opx {
 public:
  HeavisideGradOpx(popart::Op* op, popart::popx::Devicex* d) : popart::popx::Opx(op, d) {}
  void grow(poplar::program::Sequence& prog) const final {
    auto expression = pe::Mul(
        pe::Select(pe::Const(1.0f), pe::Const(0.0f), pe::Gt(pe::_2, pe::Const(0.0f))), pe::_1);
    setOutTensor(0, popops::map(graph(), expression, {getInTensor(0), getInTensor(1)}, prog));
  }
};

// Straight through: an expression that is only its tensor.
class StraightGradOpx : public popart::popx::Opx {
 public:
  StraightGradOpx(popart::Op* op, popart::popx::Devicex* d) : popart::popx::Opx(op, d) {}
  void grow(poplar::program::Sequence& prog) const final {
    setOutTensor(0, popops::map(graph(), pe::_1, {getInTensor(0)}, prog, debugContext()));
  }
};

// g / (slope |x| + 1)^2
class FastSigmoidGradOpx : public popart::popx::Opx {
 public:
  FastSigmoidGradOpx(popart::Op* op, popart::popx::Devicex* d) : popart::popx::Opx(op, d) {}
  void grow(poplar::program::Sequence& prog) const final {
    auto op = getOp<SpikeGradOp>();
    auto expression = pe::Divide(
        pe::_1, pe::Pow(pe::Add(pe::Mul(pe::Const(op.slope), pe::Abs(pe::_2)), pe::Const(1.0f)),
                        pe::Const(2.0f)));
    setOutTensor(0, popops::map(graph(), expression, {getInTensor(0), getInTensor(1)}, prog));
  }
};

popart::OperatorIdentifier spike(const std::string& name) {
  return {"custom.ops", name, 1};
}

popart::OpCreator<SpikeOp> spikes(
    popart::OpDefinitions({{spike("Heaviside"), {}},
                           {spike("StraightThroughEstimator"), {}},
                           {spike("FastSigmoid"), {}}}),
    [](const popart::OpCreatorInfo& info) {
      const float slope = info.attributes.getAttribute<popart::Attributes::Float>("slope", 25.0f);
      return std::make_unique<SpikeOp>(info.opid, slope, info.settings);
    },
    true);
popart::popx::OpxCreator<SpikeOpx> s0({spike("Heaviside"), spike("StraightThroughEstimator"),
                                       spike("FastSigmoid")});
popart::popx::OpxCreator<HeavisideGradOpx> s1(spike("HeavisideGrad"));
popart::popx::OpxCreator<StraightGradOpx> s2(spike("StraightThroughEstimatorGrad"));
popart::popx::OpxCreator<FastSigmoidGradOpx> s3(spike("FastSigmoidGrad"));

}  // namespace

// An op that is its first input and sends the gradient to the second.
namespace proxy {
namespace {

const popart::OperatorIdentifier Id{"ai.graphcore", "AutogradProxy", 1};
const popart::OperatorIdentifier GradId{"ai.graphcore", "AutogradProxyGrad", 1};

struct GradOp : popart::Op {
  explicit GradOp(const popart::Op& o) : popart::Op(GradId, o.settings) {}
  std::unique_ptr<Op> clone() const override { return std::make_unique<GradOp>(*this); }
  void setup() override { outInfo(0) = inInfo(0); }
  float getSubgraphValue() const override { return getLowSubgraphValue(); }
  const std::vector<popart::GradInOutMapper>& gradInputInfo() const override {
    static const std::vector<popart::GradInOutMapper> in{{0, 0, popart::GradOpInType::GradOut}};
    return in;
  }
  const std::map<int, int>& gradOutToNonGradIn() const override {
    static const std::map<int, int> out{{0, 1}};
    return out;
  }
  popart::view::RegMap fwdRegMap(popart::InIndex, popart::OutIndex) const override {
    return [](const popart::view::Region& r) { return popart::view::Regions{r}; };
  }
};

struct Op : popart::Op {
  using popart::Op::Op;
  std::unique_ptr<popart::Op> clone() const override { return std::make_unique<Op>(*this); }
  void setup() override {
    if (hasInput(1) && inShape(0) != inShape(1))
      throw popart::error("AutogradProxy: forward and proxy have shapes {} and {}", inShape(0),
                          inShape(1));
    outInfo(0) = inInfo(0);
  }
  float getSubgraphValue() const override { return getLowSubgraphValue(); }
  popart::view::Regions aliases(popart::InIndex in, popart::OutIndex) const override {
    return {in == 0 ? popart::view::Region::getFull(inShape(in))
                    : popart::view::Region::getEmpty(inRank(in))};
  }
  popart::view::RegMap fwdRegMap(popart::InIndex in, popart::OutIndex out) const override {
    if (in == 0) return [](const popart::view::Region& r) { return popart::view::Regions{r}; };
    auto empty = popart::view::Region::getEmpty(outRank(out));
    return [empty](const popart::view::Region&) { return popart::view::Regions{empty}; };
  }
  std::vector<std::unique_ptr<popart::Op>> getGradOps() override {
    std::vector<std::unique_ptr<popart::Op>> ops;
    ops.push_back(std::make_unique<GradOp>(*this));
    return ops;
  }
};

struct Opx : popart::popx::Opx {
  Opx(popart::Op* op, popart::popx::Devicex* d) : popart::popx::Opx(op, d) { verifyOp<Op>(op, Id); }
  void grow(poplar::program::Sequence&) const override { insert(outId(0), get(inId(0))); }
  popart::popx::InputCreatorType getInputCreatorType(popart::InIndex in) const override {
    return in == 0 ? popart::popx::InputCreatorType::CanUnwind
                   : popart::popx::InputCreatorType::Deadend;
  }
  poplar::Tensor unwindTensorLayout(poplar::Tensor t, popart::InIndex,
                                    popart::OutIndex) const override {
    return t;
  }
};

struct GradOpx : popart::popx::Opx {
  GradOpx(popart::Op* op, popart::popx::Devicex* d) : popart::popx::Opx(op, d) {
    verifyOp<GradOp>(op, GradId);
  }
  void grow(poplar::program::Sequence& prog) const override {
    setOutTensor(0, cloneNcopy(prog, getInTensor(0)));
  }
};

// Takes the second input away when the op no longer needs it.
struct Prune : popart::PreAliasPattern {
  bool matches(popart::Op* op) const override { return op->isConvertibleTo<Op>(); }
  std::vector<const popart::Tensor*> touches(popart::Op*) const override { return {}; }
  bool apply(popart::Op* op) const override {
    if (!op->hasInput(1) || !op->getIr().hasConstructedBackwards()) return false;
    op->disconnectInTensor(1);
    return true;
  }
};

popart::OpCreator<Op> creator({{Id, popart::OpDefinition{}}});
popart::popx::OpxCreator<Opx> opx(Id);
popart::popx::OpxCreator<GradOpx> grad_opx(GradId);
popart::PatternCreator<Prune> pattern("AutogradProxyPattern", true, true);

}  // namespace
}  // namespace proxy

namespace {

// A copy; its gradient op is one of PopART's own.
class CopyTensorOp : public popart::Op {
 public:
  CopyTensorOp(const popart::OperatorIdentifier& id, const popart::Op::Settings& s) : Op(id, s) {}
  std::unique_ptr<Op> clone() const final { return std::make_unique<CopyTensorOp>(*this); }
  void setup() final { outInfo(0) = inInfo(0); }
  std::vector<std::unique_ptr<Op>> getGradOps() final {
    std::vector<std::unique_ptr<Op>> ops;
    ops.emplace_back(std::make_unique<popart::IdentityGradOp>(settings));
    return ops;
  }
  float getSubgraphValue() const final { return getLowSubgraphValue(); }
};

class CopyTensorOpx : public popart::popx::Opx {
 public:
  CopyTensorOpx(popart::Op* op, popart::popx::Devicex* d) : Opx(op, d) {
    verifyOp<CopyTensorOp>(op);
  }
  void grow(poplar::program::Sequence& prog) const final {
    auto in = getInTensor(0);
    auto out = graph().clone(in, debugContext("copy"));
    prog.add(poplar::program::Copy(in, out, false, debugContext("copy")));
    setOutTensor(0, out);
  }
};

const popart::OperatorIdentifier CopyTensorId("ai.graphcore", "CopyTensor", 1);
popart::OpCreator<CopyTensorOp> copyTensor(popart::OpDefinitions({{CopyTensorId, {}}}), true);
popart::popx::OpxCreator<CopyTensorOpx> copyTensorOpx(CopyTensorId);

}  // namespace
