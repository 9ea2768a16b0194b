// SPDX-License-Identifier: Apache-2.0
// L1Distance and L2Distance: distances of all rows of one matrix from all rows of another, by
// vertices that stand where the tile mapping of the result says. Gradients have two outputs.
#include <map>
#include <memory>
#include <popart/op.hpp>
#include <popart/opmanager.hpp>
#include <popart/opserialiser.hpp>
#include <popart/popx/opx.hpp>
#include <popart/popx/opxmanager.hpp>
#include <poplar/Graph.hpp>
#include <popops/Cast.hpp>
#include <poputil/TileMapping.hpp>
#include <poputil/VertexTemplates.hpp>
#include <string>
#include <vector>

namespace {

const popart::OperatorIdentifier L1{"test.codelets", "L1Distance", 1, {2, 2}, 1};
const popart::OperatorIdentifier L2{"test.codelets", "L2Distance", 1, {2, 2}, 1};
const popart::OperatorIdentifier L1Grad{"test.codelets", "L1DistanceGrad", 1, {3, 3}, 2};
const popart::OperatorIdentifier L2Grad{"test.codelets", "L2DistanceGrad", 1, {4, 4}, 2};

class DistanceGradOp : public popart::Op {
 public:
  DistanceGradOp(const popart::OperatorIdentifier& id, const popart::Op& forward, std::string file)
      : popart::Op(id, forward.settings), file(std::move(file)), power(id == L2Grad ? 2 : 1) {}
  std::unique_ptr<popart::Op> clone() const final {
    return std::make_unique<DistanceGradOp>(*this);
  }
  void setup() final {
    outInfo(0) = inInfo(1);
    outInfo(1) = inInfo(2);
  }
  const std::vector<popart::GradInOutMapper>& gradInputInfo() const final {
    using popart::GradOpInType;
    static const std::vector<popart::GradInOutMapper> one = {
        {0, 0, GradOpInType::GradOut}, {1, 0, GradOpInType::In}, {2, 1, GradOpInType::In}};
    static const std::vector<popart::GradInOutMapper> two = {{0, 0, GradOpInType::GradOut},
                                                             {1, 0, GradOpInType::In},
                                                             {2, 1, GradOpInType::In},
                                                             {3, 0, GradOpInType::Out}};
    return power == 1 ? one : two;
  }
  const std::map<int, int>& gradOutToNonGradIn() const final {
    static const std::map<int, int> map = {{0, 0}, {1, 1}};
    return map;
  }
  float getSubgraphValue() const final { return getHighSubgraphValue(); }
  std::string file;
  int power;
};

class DistanceOp : public popart::Op {
 public:
  DistanceOp(const popart::OperatorIdentifier& id, const popart::Op::Settings& settings,
             std::string file)
      : popart::Op(id, settings), file(std::move(file)) {}
  std::unique_ptr<popart::Op> clone() const final { return std::make_unique<DistanceOp>(*this); }
  void setup() final {
    const popart::Shape a = inInfo(0).shape(), b = inInfo(1).shape();
    if (a.size() != 2 || b.size() != 2 || a[1] != b[1])
      throw popart::error("distances are of two matrices with equal columns");
    outInfo(0) = {inInfo(0).dataType(), {a[0], b[0]}};
  }
  std::vector<std::unique_ptr<popart::Op>> getGradOps() final {
    std::vector<std::unique_ptr<popart::Op>> ops;
    ops.push_back(std::make_unique<DistanceGradOp>(opid == L2 ? L2Grad : L1Grad, *this, file));
    return ops;
  }
  void appendOutlineAttributes(popart::OpSerialiserBase& os) const final {
    Op::appendOutlineAttributes(os);
    os.appendAttribute("file", file);
  }
  float getSubgraphValue() const final { return getHighSubgraphValue(); }
  bool requiresRandomSeed() const final { return false; }
  std::string file;
};

const popart::OpDefinition::DataTypes T = {popart::DataType::FLOAT16, popart::DataType::FLOAT};
const popart::OpDefinition definition({popart::OpDefinition::Inputs({{"a", T}, {"b", T}}),
                                       popart::OpDefinition::Outputs({{"out", T}}),
                                       popart::OpDefinition::Attributes({{"file", {"*"}}})});
popart::OpCreator<DistanceOp> creator(
    popart::OpDefinitions({{L1, definition}, {L2, definition}}),
    [](const popart::OpCreatorInfo& info) {
      return std::make_unique<DistanceOp>(
          info.opid, info.settings,
          info.attributes.getAttribute<popart::Attributes::String>("file"));
    },
    true);

class DistanceOpx : public popart::popx::Opx {
 public:
  DistanceOpx(popart::Op* op, popart::popx::Devicex* device) : popart::popx::Opx(op, device) {
    verifyOp<DistanceOp>(op, std::vector<popart::OperatorIdentifier>{L1, L2});
    graph().addCodelets(getOp<DistanceOp>().file);
  }
  void grow(poplar::program::Sequence& prog) const final {
    const poplar::Tensor a = getInTensor(0), b = getInTensor(1);
    const std::size_t columns = b.dim(0);
    poplar::Tensor out =
        graph().addVariable(a.elementType(), {a.dim(0), columns}, debugContext("distances"));
    poputil::mapTensorLinearly(graph(), out);
    const poplar::ComputeSet cs = graph().addComputeSet(debugContext("distance"));
    const std::string name = poputil::templateVertex(
        getOp<DistanceOp>().opid == L2 ? "L2Element" : "L1Element", a.elementType());
    const auto mapping = graph().getTileMapping(out);
    const poplar::Tensor flat = out.flatten();
    for (unsigned tile = 0; tile < mapping.size(); ++tile)
      for (const poplar::Interval& interval : mapping[tile])
        for (std::size_t i = interval.begin(); i < interval.end(); ++i) {
          const auto v = graph().addVertex(
              cs, name, {{"a", a[i / columns]}, {"b", b[i % columns]}, {"out", flat[i]}});
          graph().setTileMapping(v, tile);
          graph().setPerfEstimate(v, 100);
        }
    prog.add(poplar::program::Execute(cs));
    setOutTensor(0, out);
  }
};

class DistanceGradOpx : public popart::popx::Opx {
 public:
  DistanceGradOpx(popart::Op* op, popart::popx::Devicex* device) : popart::popx::Opx(op, device) {
    graph().addCodelets(getOp<DistanceGradOp>().file);
  }
  void grow(poplar::program::Sequence& prog) const final {
    const poplar::Tensor grad = getInTensor(0), a = getInTensor(1), b = getInTensor(2);
    const bool euclid = getOp<DistanceGradOp>().power == 2;
    // One set for both: the second reads the transposed gradient.
    const poplar::ComputeSet cs = graph().addComputeSet(debugContext("distance_grad"));
    const poplar::Tensor distance = euclid ? getInTensor(3) : grad;
    const poplar::Tensor da = add(cs, a, b, grad, distance, euclid);
    const poplar::Tensor db = add(cs, b, a, grad.transpose(), distance.dimShuffle({1, 0}), euclid);
    prog.add(poplar::program::Execute(cs, debugContext("run")));
    setOutTensor(0, popops::cast(graph(), da, a.elementType(), prog));
    setOutTensor(1, popops::cast(graph(), db, b.elementType(), prog));
  }

 private:
  poplar::Tensor add(const poplar::ComputeSet& cs, const poplar::Tensor& x,
                     const poplar::Tensor& others, const poplar::Tensor& grad,
                     const poplar::Tensor& distance, bool euclid) const {
    poplar::Graph& g = graph();
    poplar::Tensor out = g.addVariable(poplar::FLOAT, x.shape(), debugContext("gradient"));
    poputil::mapTensorLinearly(g, out);
    const auto mapping = g.getTileMapping(out);
    const std::string name =
        poputil::templateVertex(euclid ? "L2Gradient" : "L1Gradient", x.elementType());
    for (unsigned tile = 0; tile < mapping.size(); ++tile)
      for (const poplar::Interval& interval : mapping[tile])
        for (std::size_t i = interval.begin(); i < interval.end(); ++i) {
          const std::size_t row = i / x.dim(1), column = i % x.dim(1);
          const poplar::VertexRef v = g.addVertex(cs, name);
          g.connect(v["x"], x[row][column]);
          g.connect(v["others"], others.slice(column, column + 1, 1).flatten());
          g.connect(v["grad"], grad[row]);
          if (euclid) g.connect(v["distance"], distance[row]);
          g.connect(v["out"], out[row][column]);
          g.setTileMapping(v, tile);
        }
    return out;
  }
};

popart::popx::OpxCreator<DistanceOpx> opx({L1, L2});
popart::popx::OpxCreator<DistanceGradOpx> grad_opx({L1Grad, L2Grad});

}  // namespace
