// SPDX-License-Identifier: Apache-2.0
// Round: float32 with fewer bits, sliced by its tile mapping; it is its own gradient op.
// Decompress: four 4-bit numbers in 16 bits, then times a scale for each group plus a bias, in
// half.
#include <map>
#include <memory>
#include <popart/op.hpp>
#include <popart/opmanager.hpp>
#include <popart/popx/opx.hpp>
#include <popart/popx/opxmanager.hpp>
#include <poplar/Graph.hpp>
#include <popops/ElementWise.hpp>
#include <poputil/TileMapping.hpp>
#include <string>
#include <vector>

namespace {

const popart::OperatorIdentifier RoundId{"test.codelets", "Round", 1};
const popart::OperatorIdentifier DecompressId{"test.codelets", "Decompress", 1};

class RoundOp : public popart::Op {
 public:
  RoundOp(const popart::OpCreatorInfo& info)
      : popart::Op(info.opid, info.settings),
        file(info.attributes.getAttribute<popart::Attributes::String>("file")),
        rounding(info.attributes.getAttribute<popart::Attributes::String>("rounding", "Nearest")),
        dropped(static_cast<unsigned>(
            info.attributes.getAttribute<popart::Attributes::Int>("dropped"))),
        limit(info.attributes.getAttribute<popart::Attributes::Float>("limit", 1e30f)) {}
  std::unique_ptr<popart::Op> clone() const final { return std::make_unique<RoundOp>(*this); }
  void setup() final { outInfo(0) = inInfo(0); }
  std::vector<std::unique_ptr<popart::Op>> getGradOps() final {
    std::vector<std::unique_ptr<popart::Op>> ops;
    ops.push_back(std::make_unique<RoundOp>(*this));
    return ops;
  }
  const std::vector<popart::GradInOutMapper>& gradInputInfo() const final {
    static const std::vector<popart::GradInOutMapper> info = {
        {0, 0, popart::GradOpInType::GradOut}};
    return info;
  }
  const std::map<int, int>& gradOutToNonGradIn() const final {
    static const std::map<int, int> map = {{0, 0}};
    return map;
  }
  bool requiresRandomSeed() const final { return true; }
  float getSubgraphValue() const final { return getLowSubgraphValue(); }
  std::string file, rounding;
  unsigned dropped;
  float limit;
};

popart::OpCreator<RoundOp> round_creator(
    popart::OpDefinitions({{RoundId, {}}}),
    [](const popart::OpCreatorInfo& info) { return std::make_unique<RoundOp>(info); }, true);

class RoundOpx : public popart::popx::Opx {
 public:
  RoundOpx(popart::Op* op, popart::popx::Devicex* device) : popart::popx::Opx(op, device) {
    verifyOp<RoundOp>(op, RoundId);
  }
  void grow(poplar::program::Sequence& prog) const final {
    const auto op = getOp<RoundOp>();
    poplar::Graph& g = graph();
    g.addCodelets(op.file);
    const poplar::Tensor in = getInTensor(0);
    const poplar::Tensor out = g.clone(in, debugContext("rounded"));
    poputil::mapTensorLinearly(g, out, 2, 2);
    const poplar::ComputeSet cs = g.addComputeSet("round");
    const auto mapping = g.getTileMapping(out);
    for (unsigned tile = 0; tile < mapping.size(); ++tile) {
      if (mapping[tile].empty()) continue;
      const auto v = g.addVertex(cs, "RoundFloat<RoundingMode::" + op.rounding + ">");
      g.connect(v["in"], poplar::concat(in.flatten().slices(mapping[tile])));
      g.connect(v["out"], poplar::concat(out.flatten().slices(mapping[tile])));
      g.setInitialValue(v["dropped"], op.dropped);
      g.setInitialValue(v["limit"], op.limit);
      g.setTileMapping(v, tile);
    }
    prog.add(poplar::program::Execute(cs));
    setOutTensor(0, out);
  }
};

popart::popx::OpxCreator<RoundOpx> round_opx(RoundId);

class DecompressOp : public popart::Op {
 public:
  DecompressOp(const popart::OpCreatorInfo& info)
      : popart::Op(info.opid, info.settings),
        file(info.attributes.getAttribute<popart::Attributes::String>("file")) {}
  std::unique_ptr<popart::Op> clone() const final { return std::make_unique<DecompressOp>(*this); }
  void setup() final {
    const popart::Shape in = inInfo(0).shape();
    outInfo(0) = popart::TensorInfo(inInfo(1).data_type(), {in[0], in[1] * in[2] * 4});
  }
  float getSubgraphValue() const final { return getLowSubgraphValue(); }
  std::string file;
};

popart::OpCreator<DecompressOp> decompress_creator(
    popart::OpDefinitions({{DecompressId, {}}}),
    [](const popart::OpCreatorInfo& info) { return std::make_unique<DecompressOp>(info); }, true);

class DecompressOpx : public popart::popx::Opx {
 public:
  DecompressOpx(popart::Op* op, popart::popx::Devicex* device) : popart::popx::Opx(op, device) {}
  void grow(poplar::program::Sequence& prog) const final {
    poplar::Graph& g = graph();
    g.addCodelets(getOp<DecompressOp>().file);
    // [rows, groups, words] -> [rows, groups, words * 4]
    const poplar::Tensor in = getInTensor(0).reinterpret(poplar::UNSIGNED_SHORT);
    const poplar::Tensor out =
        g.addVariable(poplar::HALF, {in.dim(0), in.dim(1), in.dim(2) * 4}, debugContext("out"));
    const poplar::ComputeSet cs = g.addComputeSet(debugContext("decompress"));
    for (std::size_t r = 0; r < in.dim(0); ++r) {
      const auto tile = static_cast<unsigned>(r % g.getTarget().getNumTiles());
      g.setTileMapping(out[r], tile);
      const auto v = g.addVertex(cs, "Decompress", {{"packed", in[r].flatten()}});
      g.connect(v["out"], out[r].flatten());
      g.setTileMapping(v, tile);
    }
    prog.add(poplar::program::Execute(cs));
    namespace pe = popops::expr;
    popops::mapInPlace(g, pe::_1 * pe::_2 + pe::_3,
                       {out, getInTensor(1).expand({2}), getInTensor(2).expand({2})}, prog);
    setOutTensor(0, out.flatten(1, 3));
  }
};

popart::popx::OpxCreator<DecompressOpx> decompress_opx(DecompressId);

}  // namespace
