// SPDX-License-Identifier: Apache-2.0
// An op of two inputs and two outputs: x^3 + b and x^3. Its gradient op reads its inputs the wrong
// way round, as a public example does; that is the op's own affair and must come out. All of it
// stands in an extern "C" block, and all namespaces are opened.
#include <memory>
#include <popart/error.hpp>
#include <popart/logging.hpp>
#include <popart/op.hpp>
#include <popart/opidentifier.hpp>
#include <popart/opmanager.hpp>
#include <popart/popx/devicex.hpp>
#include <popart/popx/opx.hpp>
#include <popart/popx/opxmanager.hpp>
#include <popart/shapeinference.hpp>
#include <popops/ElementWise.hpp>
#include <poputil/TileMapping.hpp>

extern "C" {

using namespace popart;
using namespace popart::popx;
using namespace poplar;
using namespace poplar::program;

namespace Onnx {
const popart::OperatorIdentifier Cube = {"com.acme", "Cube", 1};
const popart::OperatorIdentifier CubeGrad = {"com.acme", "CubeGrad", 1};
}  // namespace Onnx

class CubeGradOp : public popart::Op {
 public:
  CubeGradOp(const popart::Op& forward) : popart::Op(Onnx::CubeGrad, forward.getSettings()) {}
  std::unique_ptr<Op> clone() const final { return std::make_unique<CubeGradOp>(*this); }
  virtual void setup() { outInfo(0) = inInfo(0); }
  virtual const std::vector<popart::GradInOutMapper>& gradInputInfo() const {
    static const std::vector<popart::GradInOutMapper> info = {{0, 0, popart::GradOpInType::GradOut},
                                                              {1, 0, popart::GradOpInType::Out}};
    return info;
  }
  // The second input gets no gradient.
  virtual const std::map<int, int>& gradOutToNonGradIn() const {
    static const std::map<int, int> info = {{0, 0}};
    return info;
  }
  float getSubgraphValue() const final { return getLowSubgraphValue(); }
};

class CubeOp : public popart::Op {
 public:
  CubeOp(const popart::OperatorIdentifier& id, const Op::Settings& s) : Op(id, s) {}
  std::unique_ptr<Op> clone() const final { return std::make_unique<CubeOp>(*this); }
  std::vector<std::unique_ptr<Op>> getGradOps() final {
    std::vector<std::unique_ptr<Op>> ops;
    ops.emplace_back(std::make_unique<CubeGradOp>(*this));
    return ops;
  }
  virtual void setup() {
    outInfo(0) = inInfo(0);
    outInfo(1) = inInfo(0);
  }
  float getSubgraphValue() const final { return getLowSubgraphValue(); }
};

static OpDefinition cubeOpDef({});

static popart::OpCreator<CubeOp> cubeOpCreator(OpDefinitions({{Onnx::Cube, cubeOpDef}}));

static popart::RegisterShapeInferenceFunction cubeShapes(Onnx::Cube, [](auto& ctx) {
  ctx.outInfo(0) = ctx.inInfo(0);
  ctx.outInfo(1) = ctx.inInfo(0);
});

class CubeOpx : public popart::popx::Opx {
 public:
  CubeOpx(popart::Op* op, popart::popx::Devicex* devicex) : popart::popx::Opx(op, devicex) {
    verifyOp<CubeOp>(op, Onnx::Cube);
  }
  void grow(poplar::program::Sequence& prog) const final {
    using namespace popops::expr;
    auto cubed =
        popops::map(graph(), Mul(_1, Mul(_1, _1)), {get(inId(0))}, prog, debugContext("cube"));
    auto shifted =
        popops::map(graph(), Add(Mul(_1, Mul(_1, _1)), _2), {get(inId(0)), get(inId(1))}, prog);
    insert(outId(0), shifted);
    insert(outId(1), cubed);
  }
};

class CubeGradOpx : public popart::popx::Opx {
 public:
  CubeGradOpx(popart::Op* op, popart::popx::Devicex* devicex) : popart::popx::Opx(op, devicex) {
    verifyOp<CubeGradOp>(op, Onnx::CubeGrad);
  }
  void grow(poplar::program::Sequence& prog) const final {
    namespace pe = popops::expr;
    insert(outId(0),
           popops::map(graph(), pe::Mul(pe::Const(3), pe::Mul(pe::Mul(pe::_1, pe::_1), pe::_2)),
                       {get(inId(0)), get(inId(1))}, prog, debugContext()));
  }
};

static popart::popx::OpxCreator<CubeOpx> cubeOpxCreator(Onnx::Cube);
static popart::popx::OpxCreator<CubeGradOpx> cubeGradOpxCreator(Onnx::CubeGrad);

}  // extern "C"
