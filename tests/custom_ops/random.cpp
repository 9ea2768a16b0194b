// SPDX-License-Identifier: Apache-2.0
// Random numbers: the functions of poprand without a seed, and a dropout whose gradient op draws
// the mask of its forward op again, from the seed that the op was given.
#include <memory>
#include <popart/op.hpp>
#include <popart/opmanager.hpp>
#include <popart/popx/opx.hpp>
#include <popart/popx/opxmanager.hpp>
#include <poprand/RandomGen.hpp>
#include <string>
#include <vector>

namespace {

using namespace popart;

const OperatorIdentifier kDraw{"com.acme", "Draw", 1};

class DrawOp : public Op {
 public:
  DrawOp(const OpCreatorInfo& info)
      : Op(info.opid, info.settings),
        what(info.attributes.getAttribute<Attributes::String>("what")) {}
  std::unique_ptr<Op> clone() const override { return std::make_unique<DrawOp>(*this); }
  float getSubgraphValue() const override { return getLowSubgraphValue(); }
  void setup() override {
    outInfo(0) = {what == "integers" ? DataType::INT32 : inInfo(0).dataType(), inShape(0)};
  }
  std::string what;
};

class DrawOpx : public popx::Opx {
 public:
  DrawOpx(Op* op, popx::Devicex* d) : popx::Opx(op, d) { verifyOp<DrawOp>(op, kDraw); }
  void grow(poplar::program::Sequence& prog) const final {
    const poplar::Tensor& x = getInTensor(0);
    const std::string& what = getOp<DrawOp>().what;
    const poplar::Type type = x.elementType();
    setOutTensor(
        0, what == "uniform"  ? poprand::uniform(graph(), nullptr, 0u, x, type, -1.0, 3.0, prog)
           : what == "normal" ? poprand::normal(graph(), nullptr, 1u, x, type, 2.0, 0.5, prog)
           : what == "truncated"
               ? poprand::truncatedNormal(graph(), nullptr, 0u, x, type, 1.0, 2.0, 1.5, prog)
           : what == "bernoulli" ? poprand::bernoulli(graph(), nullptr, 0u, x, type, 0.25, prog)
           : what == "integers"
               ? poprand::uniform(graph(), nullptr, 0u, x, poplar::INT, -2.0, 5.0, prog)
               : poprand::logUniform(graph(), nullptr, 0u, x, type, 1.0, 8.0, prog));
  }
};
OpCreator<DrawOp> makeDraw(
    OpDefinitions({{kDraw, OpDefinition()}}),
    [](const OpCreatorInfo& info) { return std::unique_ptr<Op>(new DrawOp(info)); }, true);
popx::OpxCreator<DrawOpx> drawOpx(kDraw);

const OperatorIdentifier kDrop{"com.acme", "Drop", 1};
const OperatorIdentifier kDropGrad{"com.acme", "DropGrad", 1};
constexpr double kKeep = 0.75;

class DropGradOp;
class DropOp : public Op {
 public:
  DropOp(const OperatorIdentifier& id, const Op::Settings& s) : Op(id, s) {}
  std::unique_ptr<Op> clone() const override { return std::make_unique<DropOp>(*this); }
  float getSubgraphValue() const override { return getLowSubgraphValue(); }
  void setup() override { outInfo(0) = inInfo(0); }
  bool requiresRandomSeed() const override { return true; }
  InIndex getSeedInIndex() const override { return 1; }
  std::vector<std::unique_ptr<Op>> getGradOps() override;
};
class DropGradOp : public Op {
 public:
  explicit DropGradOp(const DropOp& op) : Op(kDropGrad, op.getSettings()) {}
  std::unique_ptr<Op> clone() const override { return std::make_unique<DropGradOp>(*this); }
  float getSubgraphValue() const override { return getLowSubgraphValue(); }
  void setup() override { outInfo(0) = inInfo(0); }
  const std::vector<GradInOutMapper>& gradInputInfo() const override {
    static const std::vector<GradInOutMapper> info = {{0, 0, GradOpInType::GradOut},
                                                      {1, 1, GradOpInType::In}};
    return info;
  }
  const std::map<int, int>& gradOutToNonGradIn() const override {
    static const std::map<int, int> info = {{0, 0}};
    return info;
  }
};
std::vector<std::unique_ptr<Op>> DropOp::getGradOps() {
  std::vector<std::unique_ptr<Op>> ops;
  ops.push_back(std::make_unique<DropGradOp>(*this));
  return ops;
}
class DropOpx : public popx::Opx {
 public:
  DropOpx(Op* op, popx::Devicex* d) : popx::Opx(op, d) {}
  void grow(poplar::program::Sequence& prog) const final {
    const poplar::Tensor& seed = getInTensor(1);
    setOutTensor(0, poprand::dropout(graph(), &seed, 17u, getInTensor(0), getInTensor(0), kKeep,
                                     1.0 / kKeep, prog, debugContext("drop")));
  }
};
OpCreator<DropOp> makeDrop({{kDrop, OpDefinition()}});
popx::OpxCreator<DropOpx> dropOpx({kDrop, kDropGrad});

}  // namespace
