// SPDX-License-Identifier: Apache-2.0
// Nms: of boxes [n, 4] with scores [n] those that are kept, by a loop over two compute sets.
// Outputs: indices [turns], -1 where there is none, and their number [1].
#include <memory>
#include <popart/op.hpp>
#include <popart/opmanager.hpp>
#include <popart/popx/opx.hpp>
#include <popart/popx/opxmanager.hpp>
#include <poplar/Graph.hpp>
#include <popnn/Loss.hpp>
#include <popops/Fill.hpp>
#include <popops/Zero.hpp>
#include <poputil/TileMapping.hpp>
#include <string>
#include <vector>

namespace {

const popart::OperatorIdentifier NmsId{"test.codelets", "Nms", 1, {2, 2}, 2};

class NmsOp : public popart::Op {
 public:
  NmsOp(const popart::OpCreatorInfo& info)
      : popart::Op(info.opid, info.settings),
        file(info.attributes.getAttribute<popart::Attributes::String>("file")),
        threshold(info.attributes.getAttribute<popart::Attributes::Float>("threshold")),
        turns(info.attributes.getAttribute<popart::Attributes::Int>("turns")) {}
  std::unique_ptr<popart::Op> clone() const final { return std::make_unique<NmsOp>(*this); }
  void setup() final {
    outInfo(0) = {popart::DataType::INT32, {turns}};
    outInfo(1) = {popart::DataType::INT32, {1}};
  }
  float getSubgraphValue() const final { return getHighSubgraphValue(); }
  std::string file;
  float threshold;
  int64_t turns;
};

popart::OpCreator<NmsOp> creator(
    popart::OpDefinitions({{NmsId, {}}}),
    [](const popart::OpCreatorInfo& info) { return std::make_unique<NmsOp>(info); }, true);

class NmsOpx : public popart::popx::Opx {
 public:
  NmsOpx(popart::Op* op, popart::popx::Devicex* device) : popart::popx::Opx(op, device) {}
  void grow(poplar::program::Sequence& prog) const final {
    const auto& op = getOp<NmsOp>();
    poplar::Graph& g = graph();
    g.addCodelets(op.file);
    const poplar::Tensor boxes = getInTensor(0);
    const std::size_t n = boxes.dim(0);
    const poplar::Tensor scores = g.addVariable(poplar::FLOAT, {n}, debugContext("scores"));
    poputil::mapTensorLinearly(g, scores);
    prog.add(poplar::program::Copy(getInTensor(1), scores));
    const poplar::Tensor kept =
        g.addVariable(poplar::INT, {static_cast<std::size_t>(op.turns)}, debugContext("kept"));
    const poplar::Tensor count = g.addVariable(poplar::INT, {1}, debugContext("count"));
    const poplar::Tensor best = g.addVariable(poplar::FLOAT, {4}, debugContext("best"));
    for (const poplar::Tensor& t : {kept, count, best}) g.setTileMapping(t, 0);
    popops::fill(g, kept, prog, -1);
    popops::zero(g, count, prog);

    poplar::program::Sequence body;
    const auto top = popnn::maxAndArgMax(g, scores.expand({0}), body);
    const poplar::ComputeSet keep = g.addComputeSet(debugContext("keep"));
    // The program may name a set before it has vertices.
    body.add(poplar::program::Execute(keep));
    const auto k =
        g.addVertex(keep, "Keep", {{"boxes", boxes.flatten()}, {"best", best}, {"kept", kept}});
    g.connect(k["score"], top.first[0]);
    g.connect(k["index"], top.second[0]);
    g.connect(k["count"], count[0]);
    g.setTileMapping(k, 0);

    const poplar::ComputeSet suppress = g.addComputeSet(debugContext("suppress"));
    const auto mapping = g.getTileMapping(scores);
    for (unsigned tile = 0; tile < mapping.size(); ++tile)
      for (const poplar::Interval& i : mapping[tile]) {
        const auto v = g.addVertex(suppress, "Suppress");
        g.connect(v["boxes"], boxes.slice(i).flatten());
        g.connect(v["scores"], scores.slice(i));
        g.connect(v["best"], best);
        g.connect(v["index"], top.second[0]);
        g.setInitialValue(v["offset"], i.begin());
        g.setInitialValue(v["threshold"], op.threshold);
        g.setTileMapping(v, tile);
      }
    body.add(poplar::program::Execute(suppress));
    prog.add(poplar::program::Repeat(static_cast<unsigned>(op.turns), body));
    setOutTensor(0, kept);
    setOutTensor(1, count);
  }
};

popart::popx::OpxCreator<NmsOpx> opx(NmsId);

}  // namespace
