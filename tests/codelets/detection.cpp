// SPDX-License-Identifier: Apache-2.0
// Detection: of a batch of boxes with a score for each class those that are kept, by a loop that
// ends when no row of the batch has any left. The vertices are made from tile mappings, which are
// asked what they are.
#include <print.h>

#include <cstdlib>
#include <memory>
#include <popart/op.hpp>
#include <popart/opmanager.hpp>
#include <popart/popx/opx.hpp>
#include <popart/popx/opxmanager.hpp>
#include <poplar/Graph.hpp>
#include <popnn/Loss.hpp>
#include <popops/ElementWise.hpp>
#include <popops/Fill.hpp>
#include <popops/Reduce.hpp>
#include <popops/Zero.hpp>
#include <poputil/DebugInfo.hpp>
#include <poputil/TileMapping.hpp>
#include <poputil/Util.hpp>
#include <poputil/VertexTemplates.hpp>
#include <string>
#include <vector>

// Sizes of the problem. A name that popart has as well.
class Shape {
 public:
  Shape(const std::vector<std::size_t>& scores, std::size_t most)
      : batch(scores[0]), boxes(scores[1]), classes(scores[2]), most(most) {}
  std::size_t candidates() const { return boxes * classes; }
  std::size_t batch, boxes, classes, most;
};

namespace {

const popart::OperatorIdentifier DetectionId{"test.codelets", "Detection", 1, {2, 2}, 5};

class DetectionOp : public popart::Op {
 public:
  DetectionOp(const popart::OpCreatorInfo& info)
      : popart::Op(info.opid, info.settings),
        overlap(info.attributes.getAttribute<popart::Attributes::Float>("overlap", 0.5f)),
        least(info.attributes.getAttribute<popart::Attributes::Float>("least_score", 0.1f)),
        most(info.attributes.getAttribute<popart::Attributes::Int>("most")) {}
  std::unique_ptr<popart::Op> clone() const final { return std::make_unique<DetectionOp>(*this); }
  void setup() final {
    const int64_t batch = inShape(0)[0];
    const auto real = inInfo(0).dataType();
    outInfo(0) = {popart::DataType::INT32, {batch, most}};
    outInfo(1) = {real, {batch, most}};
    outInfo(2) = {real, {batch, most, 4}};
    outInfo(3) = {popart::DataType::INT32, {batch, most}};
    outInfo(4) = {popart::DataType::INT32, {batch}};
  }
  void appendOutlineAttributes(popart::OpSerialiserBase& os) const final {
    popart::Op::appendOutlineAttributes(os);
    os.appendAttribute("overlap", overlap);
    os.appendAttribute("most", most);
  }
  float getSubgraphValue() const final { return getHighSubgraphValue(); }
  float overlap, least;
  int64_t most;
};

struct Results {
  poplar::Tensor index, score, box, label, count;
};

// Every tile has one interval at most.
std::vector<poplar::Interval> only_intervals(const poplar::Graph& g, const poplar::Tensor& t) {
  std::vector<poplar::Interval> out;
  for (const auto& tile : g.getTileMapping(t)) {
    if (tile.size() > 1) throw poplar::poplar_error("a tile has more than one interval");
    out.push_back(tile.empty() ? poplar::Interval(0, 0) : tile[0]);
  }
  return out;
}

class DetectionOpx : public popart::popx::Opx {
 public:
  DetectionOpx(popart::Op* op, popart::popx::Devicex* device) : popart::popx::Opx(op, device) {
    verifyOp<DetectionOp>(op, DetectionId);
    const char* path = std::getenv("DETECTION_CODELETS");
    if (path == nullptr) throw popart::error("DETECTION_CODELETS is not set");
    graph().addCodelets(std::string(path) + "/detection_codelets.cpp");
  }

  void grow(poplar::program::Sequence& prog) const final {
    const auto& op = getOp<DetectionOp>();
    const Results r =
        detect(graph(), getInTensor(0), getInTensor(1), op, prog, debugContext("detection"));
    setOutTensor(0, r.index);
    setOutTensor(1, r.score);
    setOutTensor(2, r.box);
    setOutTensor(3, r.label);
    setOutTensor(4, r.count);
  }

 private:
  Results detect(poplar::Graph& g, const poplar::Tensor& given, const poplar::Tensor& boxes,
                 const DetectionOp& op, poplar::program::Sequence& prog,
                 const poplar::DebugContext& dc) const {
    poputil::PoplibsOpDebugInfo di(dc, DI_ARGS(given, boxes));
    const Shape s(given.shape(), static_cast<std::size_t>(op.most));
    const poplar::Type real = given.elementType();
    // Candidates, class by class.
    const poplar::Tensor ordered = given.dimShufflePartial({2}, {1}).flatten(1, 3);
    const poplar::Tensor left = g.addVariable(real, ordered.shape(), {di, "left"});
    poputil::mapTensorLinearly(g, left, 4, 2);
    prog.add(poplar::program::Copy(ordered, left, false, {di, "candidates"}));

    Results r;
    r.index = variable(g, poplar::INT, {s.batch, s.most}, {di, "index"});
    r.score = variable(g, real, {s.batch, s.most}, {di, "score"});
    r.box = variable(g, real, {s.batch, s.most, 4}, {di, "box"});
    r.label = variable(g, poplar::INT, {s.batch, s.most}, {di, "label"});
    r.count = variable(g, poplar::INT, {s.batch}, {di, "count"});
    popops::fill(g, poplar::concat(r.index.flatten(), r.label.flatten()), prog, -1, {di, "none"});
    popops::zero(g, poplar::concat(r.score.flatten(), r.box.flatten()), prog, {di, "zero"});
    popops::zero(g, r.count, prog, {di, "zero"});

    const poplar::Tensor turn = variable(g, poplar::UNSIGNED_INT, {1}, {di, "turn"});
    const poplar::Tensor found = variable(g, real, {s.batch}, {di, "found"});
    const poplar::Tensor where = variable(g, poplar::UNSIGNED_INT, {s.batch}, {di, "where"});
    const poplar::Tensor taken = variable(g, real, {s.batch, 4}, {di, "taken"});
    const poplar::Tensor ended = variable(g, poplar::INT, {s.batch}, {di, "ended"});
    popops::zero(g, turn, prog);

    // What is best now, and whether any row has something to take.
    poplar::program::Sequence look({}, {di, "look"});
    const auto best = popnn::maxAndArgMax(g, left, look, {di, "best"});
    look.add(poplar::program::Copy(best.first, found));
    look.add(poplar::program::Copy(best.second, where));
    const poplar::ComputeSet end_set = g.addComputeSet({di, "end"});
    for (std::size_t b = 0; b < s.batch; ++b) {
      const auto v = g.addVertex(end_set, poputil::templateVertex("Ended", real),
                                 {{"best", found[b]}, {"count", r.count[b]}, {"ended", ended[b]}});
      g.setInitialValue(v["least"], op.least);
      g.setInitialValue(v["most"], static_cast<int>(s.most));
      g.setTileMapping(v, static_cast<unsigned>(b) % g.getTarget().getNumTiles());
    }
    look.add(poplar::program::Execute(end_set, {di}));
    const poplar::Tensor all =
        popops::reduce(g, ended, poplar::INT, {0}, {popops::Operation::MIN}, look, {di, "all"});
    const poplar::Tensor go = popops::map(g, popops::expr::_1 == 0, {all}, look, {di, "go"});

    // Takes it and drops what overlaps it.
    poplar::program::Sequence take({}, {di, "take"});
    const poplar::ComputeSet take_set = g.addComputeSet({di, "take"});
    for (std::size_t b = 0; b < s.batch; ++b) {
      const auto v = g.addVertex(take_set, poputil::templateVertex("Take", real));
      g.connect(v["boxes"], boxes[b].flatten());
      g.connect(v["best"], found[b]);
      g.connect(v["where"], where[b]);
      g.connect(v["ended"], ended[b]);
      g.connect(v["index"], r.index[b]);
      g.connect(v["score"], r.score[b]);
      g.connect(v["box"], r.box[b].flatten());
      g.connect(v["label"], r.label[b]);
      g.connect(v["count"], r.count[b]);
      g.connect(v["taken"], taken[b]);
      g.setInitialValue(v["boxes_of_a_class"], static_cast<unsigned>(s.boxes));
      g.setTileMapping(v, static_cast<unsigned>(b) % g.getTarget().getNumTiles());
    }
    take.add(poplar::program::Execute(take_set, {di}));
    take.add(poplar::program::Execute(drop_set(g, left, boxes, where, taken, ended, s, op, di)));
    popops::addInPlace(g, turn, 1u, take, {di, "turn"});

    prog.add(poplar::program::RepeatWhileTrue(look, go, take, {di, "loop"}));
    di.addOutput(r.index);
    return r;
  }

  // A vertex for each tile's candidates of a batch, shared by workers.
  poplar::ComputeSet drop_set(poplar::Graph& g, const poplar::Tensor& left,
                              const poplar::Tensor& boxes, const poplar::Tensor& where,
                              const poplar::Tensor& taken, const poplar::Tensor& ended,
                              const Shape& s, const DetectionOp& op,
                              const poputil::PoplibsOpDebugInfo& di) const {
    const poplar::ComputeSet out = g.addComputeSet({di, "drop"});
    const std::vector<poplar::Interval> tiles = only_intervals(g, left);
    const std::vector<std::size_t> shape{s.batch, s.candidates()};
    const poplar::Tensor flat = left.flatten();
    std::size_t mapped = 0;
    for (unsigned tile = 0; tile < tiles.size(); ++tile) {
      for (std::size_t at = tiles[tile].begin(); at < tiles[tile].end();) {
        const auto place = poputil::unflattenIndex(shape, at);
        // Not beyond the end of the batch's row.
        const std::size_t end = std::min(tiles[tile].end(), (place[0] + 1) * s.candidates());
        const poplar::Interval part(at, end);
        mapped += part.size();
        const auto shares = poputil::splitRegionsBetweenWorkers(g.getTarget(), {part}, 2, 2);
        const auto v = g.addVertex(out, poputil::templateVertex("Drop", left.elementType()));
        std::vector<unsigned> sizes;
        for (const auto& share : shares)
          sizes.push_back(static_cast<unsigned>(poputil::intervalSequenceNumElements(share)));
        g.connect(v["left"], poplar::concat(flat.slices(shares)));
        g.connect(v["boxes"], boxes[place[0]].flatten());
        g.connect(v["where"], where[place[0]]);
        g.connect(v["taken"], taken[place[0]]);
        g.connect(v["ended"], ended[place[0]]);
        g.setInitialValue(v["sizes"], sizes);
        g.setInitialValue(v["first"], static_cast<unsigned>(place[1]));
        g.setInitialValue(v["boxes_of_a_class"], static_cast<unsigned>(s.boxes));
        g.setInitialValue(v["overlap"], op.overlap);
        g.setTileMapping(v, tile);
        at = end;
      }
    }
    if (mapped != left.numElements()) throw poplar::poplar_error("candidates without a tile");
    return out;
  }

  static poplar::Tensor variable(poplar::Graph& g, const poplar::Type& type,
                                 const std::vector<std::size_t>& shape,
                                 const poplar::DebugContext& dc) {
    const poplar::Tensor t = g.addVariable(type, shape, dc);
    poputil::mapTensorLinearly(g, t);
    return t;
  }
};

popart::OpCreator<DetectionOp> creator(
    popart::OpDefinitions({{DetectionId, {}}}),
    [](const popart::OpCreatorInfo& info) { return std::make_unique<DetectionOp>(info); }, true);
popart::popx::OpxCreator<DetectionOpx> opx(DetectionId);

}  // namespace
