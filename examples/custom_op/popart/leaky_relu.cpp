// SPDX-License-Identifier: Apache-2.0
// LeakyReLU as PopART's tutorials write ops: an Op, its gradient op, an Opx for each, and the
// objects that make them known. It computes in place of its input.
#include <popart/names.hpp>
#include <popart/op.hpp>
#include <popart/opmanager.hpp>
#include <popart/opserialiser.hpp>
#include <popart/popx/opx.hpp>
#include <popart/popx/opxmanager.hpp>
#include <popops/ElementWise.hpp>

namespace CustomOperators {
const popart::OperatorIdentifier LeakyReluId = {"custom.ops", "LeakyRelu", 1};
}
namespace CustomGradOperators {
const popart::OperatorIdentifier LeakyReluGradId = {"custom.ops", "LeakyReluGrad", 1};
}

class LeakyReluOp;
class LeakyReluGradOp;
class LeakyReluOpx;
class LeakyReluGradOpx;

class LeakyReluGradOp : public popart::Op {
 public:
  LeakyReluGradOp(const LeakyReluOp& forward);

  std::unique_ptr<popart::Op> clone() const final {
    return std::make_unique<LeakyReluGradOp>(*this);
  }
  void setup() final { outInfo(0) = inInfo(0); }

  const std::vector<popart::GradInOutMapper>& gradInputInfo() const {
    static const std::vector<popart::GradInOutMapper> info = {{0, 0, popart::GradOpInType::GradOut},
                                                              {1, 0, popart::GradOpInType::In}};
    return info;
  }
  const std::map<int, int>& gradOutToNonGradIn() const {
    static const std::map<int, int> info = {{0, 0}};
    return info;
  }

  bool requiresRandomSeed() const override { return false; }
  float getSubgraphValue() const final { return getHighSubgraphValue(); }
  float getAlpha() const { return alpha; }
  void appendAttributes(popart::OpSerialiserBase& os) const override;

 private:
  float alpha;
};

class LeakyReluOp : public popart::Op {
 public:
  LeakyReluOp(const popart::OperatorIdentifier& id, float a, const popart::Op::Settings& s)
      : popart::Op(id, s), alpha(a) {}

  std::unique_ptr<popart::Op> clone() const final { return std::make_unique<LeakyReluOp>(*this); }
  void setup() final { outInfo(0) = inInfo(0); }

  void appendAttributes(popart::OpSerialiserBase& os) const override {
    Op::appendAttributes(os);
    os.appendAttribute("alpha", getAlpha());
  }
  void appendOutlineAttributes(popart::OpSerialiserBase& os) const override {
    Op::appendOutlineAttributes(os);
    os.appendAttribute("alpha", getAlpha());
  }
  std::vector<std::unique_ptr<popart::Op>> getGradOps() {
    std::vector<std::unique_ptr<Op>> ops;
    ops.emplace_back(new LeakyReluGradOp(*this));
    return ops;
  }
  float getSubgraphValue() const final { return getHighSubgraphValue(); }
  bool requiresRandomSeed() const override { return false; }
  float getAlpha() const { return alpha; }

 private:
  float alpha;
};

LeakyReluGradOp::LeakyReluGradOp(const LeakyReluOp& forward)
    : popart::Op(CustomGradOperators::LeakyReluGradId, forward.getSettings()),
      alpha(forward.getAlpha()) {}

void LeakyReluGradOp::appendAttributes(popart::OpSerialiserBase& os) const {
  Op::appendAttributes(os);
  os.appendAttribute("alpha", getAlpha());
}

namespace {
using popart::DataType;
using popart::OpDefinition;

static OpDefinition::DataTypes T = {DataType::FLOAT16, DataType::FLOAT};

static OpDefinition leakyReluOpDef({OpDefinition::Inputs({{"input", T}}),
                                    OpDefinition::Outputs({{"output", T}}),
                                    OpDefinition::Attributes({{"alpha", {"*"}}})});

static popart::OpCreator<LeakyReluOp> leakyReluOpCreator(
    popart::OpDefinitions({{CustomOperators::LeakyReluId, leakyReluOpDef}}),
    [](const popart::OpCreatorInfo& info) {
      float alpha = info.attributes.getAttribute<popart::Attributes::Float>("alpha", 1e-2f);
      return std::make_unique<LeakyReluOp>(info.opid, alpha, info.settings);
    },
    true);
}  // namespace

namespace pe = popops::expr;

class LeakyReluOpx : public popart::popx::Opx {
 public:
  LeakyReluOpx(popart::Op* op, popart::popx::Devicex* devicex) : popart::popx::Opx(op, devicex) {
    verifyOp<LeakyReluOp>(op, {CustomOperators::LeakyReluId});
  }

  void grow(poplar::program::Sequence& prog) const final {
    auto op = getOp<LeakyReluOp>();
    poplar::Tensor input = getInTensor(0);
    float alpha = op.getAlpha();
    // x < 0 ? alpha x : x
    auto expression =
        pe::Select(pe::Mul(pe::Const(alpha), pe::_1), pe::_1, pe::Lt(pe::_1, pe::Const(0.0f)));
    popops::mapInPlace(graph(), expression, {input}, prog, debugContext("LeakyRelu"),
                       poplar::OptionFlags());
    setOutTensor(0, input);
  }
};

class LeakyReluGradOpx : public popart::popx::Opx {
 public:
  LeakyReluGradOpx(popart::Op* op, popart::popx::Devicex* devicex)
      : popart::popx::Opx(op, devicex) {
    verifyOp<LeakyReluGradOp>(op, {CustomGradOperators::LeakyReluGradId});
  }

  void grow(poplar::program::Sequence& prog) const final {
    auto op = getOp<LeakyReluGradOp>();
    poplar::Tensor grad = getInTensor(0);
    poplar::Tensor input = getInTensor(1);
    float alpha = op.getAlpha();
    // Both values are constants: float, whatever the tensors are.
    auto expression = pe::Mul(
        pe::Select(pe::Const(alpha), pe::Const(1.0f), pe::Lt(pe::_2, pe::Const(0.0f))), pe::_1);
    auto output = popops::map(graph(), expression, {grad, input}, prog,
                              debugContext("LeakyReluGrad"), poplar::OptionFlags());
    setOutTensor(0, output);
  }
};

static popart::popx::OpxCreator<LeakyReluOpx> LeakyReluOpxCreator({CustomOperators::LeakyReluId});
static popart::popx::OpxCreator<LeakyReluGradOpx> LeakyReluGradOpxCreator(
    {CustomGradOperators::LeakyReluGradId});
// Some say it twice.
static popart::popx::OpxCreator<LeakyReluOpx> LeakyReluOpxCreatorAgain(
    {CustomOperators::LeakyReluId});
