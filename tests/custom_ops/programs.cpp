// SPDX-License-Identifier: Apache-2.0
// Programs on graphs: a copy with another tile mapping, attention by blocks with a loop, and views
// that are written to.
#include <popart/op.hpp>
#include <popart/opmanager.hpp>
#include <popart/popx/opx.hpp>
#include <popart/popx/opxmanager.hpp>
#include <poplin/MatMul.hpp>
#include <popnn/Loss.hpp>
#include <popops/Cast.hpp>
#include <popops/DynamicSlice.hpp>
#include <popops/ElementWise.hpp>
#include <popops/Fill.hpp>
#include <popops/Rearrange.hpp>
#include <popops/Reduce.hpp>
#include <popops/Zero.hpp>
#include <poputil/TileMapping.hpp>
#include <poputil/Util.hpp>
#include <poputil/VarStructure.hpp>

using namespace poplar;
using namespace poplar::program;
using namespace popops::expr;

namespace {

class PlainOp : public popart::Op {
 public:
  PlainOp(const popart::OperatorIdentifier& id, const popart::Op::Settings& s)
      : popart::Op(id, s) {}
  std::unique_ptr<popart::Op> clone() const override { return std::make_unique<PlainOp>(*this); }
  void setup() override {
    outInfo(0) = inInfo(0);
    if (opid.type == "RowMax") {
      outInfo(0) = {inInfo(0).dataType(), {inShape(0)[0]}};
      outInfo(1) = {popart::DataType::INT32, {inShape(0)[0]}};
    }
  }
  float getSubgraphValue() const final { return getLowSubgraphValue(); }
};

// The same values, laid out in grains.
class RemapOpx : public popart::popx::Opx {
 public:
  RemapOpx(popart::Op* op, popart::popx::Devicex* d) : popart::popx::Opx(op, d) {}
  void grow(Sequence& prog) const final {
    Tensor in = getInTensor(0);
    Tensor out = graph().addVariable(in.elementType(), in.shape(), debugContext("remap"));
    poputil::mapTensorLinearly(graph(), out, 1, 4);
    const auto mapping = graph().getTileMapping(out);
    std::size_t mapped = 0;
    for (const auto& tile : mapping)
      for (const Interval& i : tile) mapped += i.size();
    if (mapping.size() != graph().getTarget().getNumTiles() || mapped != out.numElements())
      throw popart::error("the mapping is of {} elements", mapped);
    if (mapping[0][0].size() != 4) throw popart::error("grains of {}", mapping[0][0].size());
    const Tensor corner = out.slice({0, 1}, {2, 3});
    graph().setTileMapping(corner, 7);
    const auto part = graph().getTileMapping(corner);
    if (part[7].size() != 1 || part[7][0] != Interval(0, 4)) throw popart::error("a part is lost");
    if (poputil::detectDimGroupings(graph(), in.flatten(0, in.rank() - 1)).empty())
      in = popops::rearrange::regroupIfBeneficial(graph(), in, out, prog, debugContext("regroup"));
    prog.add(Copy(in, out, false, debugContext("copy")));
    setOutTensor(0, out);
  }
};

// Softmax(q k^T) v for q = k = v = x [groups, n, width], a block of keys at a time.
class BlockAttentionOpx : public popart::popx::Opx {
 public:
  BlockAttentionOpx(popart::Op* op, popart::popx::Devicex* d) : popart::popx::Opx(op, d) {}
  void grow(Sequence& prog) const final {
    Graph& g = graph();
    const Tensor x = getInTensor(0);
    const std::size_t groups = x.dim(0), n = x.dim(1), block = n / 4;
    Tensor top = g.addVariable(FLOAT, {groups, n, 1}, VariableMappingMethod::LINEAR, "top");
    Tensor sum = g.clone(top, {debugContext(), "sum"});
    Tensor out = popops::createSliceableTensor(g, FLOAT, x.shape(), {1}, {block}, 1, "out");
    Tensor step = g.addVariable(UNSIGNED_INT, {1}, "step");
    g.setTileMapping(step, 0);
    popops::fill(g, top, prog, -10000.0f);
    popops::zero(g, concat(sum.flatten(), out.flatten()), prog, "zero");
    popops::zero(g, step, prog);
    Sequence body({}, {debugContext(), "body"});
    {
      const Tensor k = popops::dynamicSlice(g, x, step, {1}, {block}, body, "k");
      Tensor scores = poplin::matMulGrouped(g, x, k.dimShuffle({0, 2, 1}), body, FLOAT, "scores");
      const Tensor most =
          popops::reduce(g, scores, {2}, {popops::Operation::MAX}, body).expand({2});
      const Tensor now = popops::map(g, Max(_1, _2), {top, most}, body);
      const Tensor shrink = popops::map(g, Exp(_1 - _2), {top, now}, body);
      popops::mapInPlace(g, Exp(_1 - _2), {scores, now}, body);
      const Tensor more =
          popops::reduce(g, scores, {2}, {popops::Operation::ADD}, body).expand({2});
      popops::mapInPlace(g, _1 * _2 + _3, {sum, shrink, more}, body);
      popops::mulInPlace(g, out, shrink, body);
      poplin::matMulGroupedAcc(g, out, 1.0f, scores, k, body, "out");
      body.add(Copy(now, top));
      // Every other turn another way to the same step.
      Sequence even, odd;
      popops::addInPlace(g, step, static_cast<unsigned>(block), even);
      popops::mapInPlace(g, _1 + Const(static_cast<unsigned>(block)), {step}, odd);
      const Tensor is_even = popops::map(g, _1 % 2u == 0u && _1 >= 0u, {step}, body);
      body.add(If(is_even.squeeze({0}), even, odd));
    }
    prog.add(Repeat(4, body));
    popops::divInPlace(g, out, sum, prog);
    setOutTensor(0, out);
  }
};

// Doubles the middle columns and turns the rows round, through views.
class ViewsOpx : public popart::popx::Opx {
 public:
  ViewsOpx(popart::Op* op, popart::popx::Devicex* d) : popart::popx::Opx(op, d) {}
  void grow(Sequence& prog) const final {
    Tensor t = cloneNcopy(prog, getInTensor(0).reverse(0));
    const Tensor middle = t.transpose().slice(1, t.dim(1) - 1).flatten();
    popops::mapInPlace(graph(), _1 * 2.0f, {middle}, prog);
    const Tensor first = t[0].slice(Interval(0, 1));
    popops::dynamicUpdate(graph(), t, graph().addConstant(FLOAT, {1, 1}, 100.0f),
                          graph().addConstant(UNSIGNED_INT, {2}, std::vector<unsigned>{1, 0}),
                          {0, 1}, {1, 1}, prog);
    popops::fill(graph(), first, prog, -1.0f);
    setOutTensor(0, t);
  }
};

class RowMaxOpx : public popart::popx::Opx {
 public:
  RowMaxOpx(popart::Op* op, popart::popx::Devicex* d) : popart::popx::Opx(op, d) {}
  void grow(Sequence& prog) const final {
    const auto found = popnn::maxAndArgMax(graph(), getInTensor(0), prog, debugContext());
    setOutTensor(0, found.first);
    setOutTensor(1, popops::cast(graph(), found.second, INT, prog));
  }
};

// An element-wise function by its place in popops' list; two inputs make it one of two operands.
class ByNumberOp : public PlainOp {
 public:
  ByNumberOp(const popart::OperatorIdentifier& id, int64_t number, bool asks,
             const popart::Op::Settings& s)
      : PlainOp(id, s), number(number), asks(asks) {}
  std::unique_ptr<popart::Op> clone() const final { return std::make_unique<ByNumberOp>(*this); }
  void setup() final {
    outInfo(0) = inInfo(0);
    if (asks) outInfo(0).set(popart::DataType::BOOL);
  }
  int64_t number;
  bool asks;
};

class ByNumberOpx : public popart::popx::Opx {
 public:
  ByNumberOpx(popart::Op* op, popart::popx::Devicex* d) : popart::popx::Opx(op, d) {}
  void grow(Sequence& prog) const final {
    const auto& op = getOp<ByNumberOp>();
    const Tensor a = getInTensor(0);
    Tensor out = graph().addVariable(op.asks ? BOOL : a.elementType(), a.shape());
    if (hasInput(1))
      popops::mapWithOutput(graph(), static_cast<BinaryOpType>(op.number), a, getInTensor(1), out,
                            prog);
    else
      popops::mapWithOutput(graph(), static_cast<UnaryOpType>(op.number), a, out, prog);
    setOutTensor(0, out);
  }
};

popart::OperatorIdentifier id(const char* name) {
  return {"test.programs", name, 1};
}
popart::OpCreator<PlainOp> ops({{id("Remap"), {}},
                                {id("BlockAttention"), {}},
                                {id("Views"), {}},
                                {id("RowMax"), {}},
                                {id("NoOpx"), {}}});
popart::OpCreator<ByNumberOp> by_number({{id("ByNumber"), {}}},
                                        [](const popart::OpCreatorInfo& info) {
                                          const auto& a = info.attributes;
                                          return std::make_unique<ByNumberOp>(
                                              info.opid,
                                              a.getAttribute<popart::Attributes::Int>("number"),
                                              a.getAttribute<popart::Attributes::Int>("asks") != 0,
                                              info.settings);
                                        });
popart::popx::OpxCreator<ByNumberOpx> by_number_opx(id("ByNumber"));
popart::popx::OpxCreator<RemapOpx> remap(id("Remap"));
popart::popx::OpxCreator<BlockAttentionOpx> attention(id("BlockAttention"));
popart::popx::OpxCreator<ViewsOpx> views(id("Views"));
popart::popx::OpxCreator<RowMaxOpx> rows(id("RowMax"));

}  // namespace
