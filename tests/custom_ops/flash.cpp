// SPDX-License-Identifier: Apache-2.0
// Causal attention over packed queries, keys and values, a block of each at a time: loops in loops,
// blocks above the diagonal left out by a branch. Its gradient is a loop over blocks of queries.
#include <cmath>
#include <popart/op.hpp>
#include <popart/opmanager.hpp>
#include <popart/popx/opx.hpp>
#include <popart/popx/opxmanager.hpp>
#include <poplin/MatMul.hpp>
#include <popops/DynamicSlice.hpp>
#include <popops/ElementWise.hpp>
#include <popops/Fill.hpp>
#include <popops/Reduce.hpp>
#include <popops/Zero.hpp>
#include <poputil/TileMapping.hpp>

using namespace poplar;
using namespace poplar::program;
using namespace popops::expr;

namespace {

const popart::OperatorIdentifier kForward{"test.flow", "Flash", 1, {1, 1}, 1};
const popart::OperatorIdentifier kBackward{"test.flow", "FlashGrad", 1, {2, 2}, 1};
constexpr float kNothing = -10000.0f;

class FlashGradOp;

class FlashOp : public popart::Op {
 public:
  FlashOp(const popart::OperatorIdentifier& id, std::size_t chunks_q, std::size_t chunks_kv,
          const popart::Op::Settings& s)
      : popart::Op(id, s), chunks_q(chunks_q), chunks_kv(chunks_kv) {}
  std::unique_ptr<popart::Op> clone() const override { return std::make_unique<FlashOp>(*this); }
  std::vector<std::unique_ptr<popart::Op>> getGradOps() override;
  void setup() override {  // [3, groups, n, width]
    const auto& in = inShape(0);
    outInfo(0) = {inInfo(0).dataType(), {in[1], in[2], in[3]}};
  }
  float getSubgraphValue() const final { return getHighSubgraphValue(); }
  std::size_t chunks_q, chunks_kv;
};

class FlashGradOp : public popart::Op {
 public:
  explicit FlashGradOp(const FlashOp& op)
      : popart::Op(kBackward, op.getSettings()), chunks_q(op.chunks_q) {}
  std::unique_ptr<popart::Op> clone() const final { return std::make_unique<FlashGradOp>(*this); }
  void setup() final { outInfo(0) = inInfo(1); }
  const std::vector<popart::GradInOutMapper>& gradInputInfo() const final {
    static const std::vector<popart::GradInOutMapper> in{{0, 0, popart::GradOpInType::GradOut},
                                                         {1, 0, popart::GradOpInType::In}};
    return in;
  }
  const std::map<int, int>& gradOutToNonGradIn() const final {
    static const std::map<int, int> out{{0, 0}};
    return out;
  }
  float getSubgraphValue() const final { return getHighSubgraphValue(); }
  std::size_t chunks_q;
};

std::vector<std::unique_ptr<popart::Op>> FlashOp::getGradOps() {
  std::vector<std::unique_ptr<popart::Op>> out;
  out.emplace_back(new FlashGradOp(*this));
  return out;
}

// 0, 1, ... n - 1
Tensor numbers(Graph& g, std::size_t n) {
  std::vector<unsigned> v(n);
  for (std::size_t i = 0; i < n; ++i) v[i] = static_cast<unsigned>(i);
  return g.addConstant(UNSIGNED_INT, {n}, v);
}

class FlashOpx : public popart::popx::Opx {
 public:
  FlashOpx(popart::Op* op, popart::popx::Devicex* d) : popart::popx::Opx(op, d) {
    verifyOp<FlashOp>(op, kForward);
  }
  void grow(Sequence& prog) const final {
    Graph& g = graph();
    const auto& op = getOp<FlashOp>();
    const Tensor q = getInTensor(0)[0], k = getInTensor(0)[1], v = getInTensor(0)[2];
    const std::size_t groups = q.dim(0), n = q.dim(1), width = q.dim(2);
    const std::size_t rows = n / op.chunks_q, columns = n / op.chunks_kv;
    const float scale = 1.0f / std::sqrt(static_cast<float>(width));
    const Type type = q.elementType();

    const Tensor result = popops::createSliceableTensor(g, type, {groups, n, width}, {1}, {rows}, 1,
                                                        debugContext("result"));
    // Of a block of queries: the largest score so far and the sum of exponentials.
    const Tensor state =
        g.cloneN(type, q.slice(0, rows, 1).slice(0, 1, 2), 2, debugContext("state"));
    const Tensor top = state[0], sum = state[1];
    const Tensor out = g.addVariable(type, {groups, rows, width}, debugContext("out"));
    const Tensor qs = g.clone(out, debugContext("qs"));
    const Tensor at_q = g.addVariable(UNSIGNED_INT, {1}, debugContext("at_q"));
    const Tensor at_k = g.addVariable(UNSIGNED_INT, {1}, debugContext("at_k"));
    for (const Tensor& t : {state, out, qs, at_q, at_k}) poputil::mapTensorLinearly(g, t);
    const Tensor row = numbers(g, rows).expand({1}), column = numbers(g, columns).expand({0});

    Sequence block({}, debugContext("block"));
    {
      const Tensor ks = popops::dynamicSlice(g, k, at_k, {1}, {columns}, block, "ks");
      const Tensor vs = popops::dynamicSlice(g, v, at_k, {1}, {columns}, block, "vs");
      Tensor scores = poplin::matMulGrouped(g, qs, poplin::transposeGroupedMatrix(ks), block, type);
      const Tensor hidden = popops::map(g, _1 + _2 < _3 + _4 && !(_1 + _2 == _3 + _4),
                                        {row, at_q, column, at_k}, block);
      popops::mapInPlace(g, Select(Const(kNothing), _1, _2), {scores, hidden.expand({0})}, block);
      const Tensor most = popops::reduce(g, scores, {2}, {popops::Operation::MAX}, block);
      const Tensor now = popops::max(g, top, most.expand({2}), block);
      popops::subInPlace(g, scores, now, block);
      popops::expInPlace(g, scores, block);
      const Tensor shrink = popops::map(g, Exp(_1 - _2), {top, now}, block);
      popops::mulInPlace(g, out, shrink, block);
      popops::mulInPlace(g, sum, shrink, block);
      const Tensor more = popops::reduce(g, scores, {2}, {popops::Operation::ADD}, block);
      popops::addInPlace(g, sum, more.expand({2}), block);
      poplin::matMulGroupedAcc(g, out, 1.0f, scores, vs, block, debugContext("out"));
      block.add(Copy(now, top));
    }
    Sequence over_k({}, debugContext("over_k"));
    const Tensor below =
        popops::map(g, _1 <= _2 + Const(static_cast<unsigned>(rows - 1)), {at_k, at_q}, over_k);
    over_k.add(If(below[0], block, Sequence(), debugContext("causal")));
    popops::addInPlace(g, at_k, static_cast<unsigned>(columns), over_k);

    Sequence over_q({}, debugContext("over_q"));
    popops::fill(g, top, over_q, kNothing);
    popops::zero(g, concat(sum.flatten(), out.flatten()), over_q);
    popops::zero(g, at_k, over_q);
    over_q.add(Copy(popops::dynamicSlice(g, q, at_q, {1}, {rows}, over_q), qs));
    popops::mulInPlace(g, qs, scale, over_q);
    over_q.add(Repeat(static_cast<unsigned>(op.chunks_kv), over_k));
    popops::divInPlace(g, out, sum, over_q);
    popops::dynamicUpdate(g, result, out, at_q, {1}, {rows}, over_q);
    popops::addInPlace(g, at_q, static_cast<unsigned>(rows), over_q);

    popops::zero(g, at_q, prog);
    prog.add(Repeat(static_cast<unsigned>(op.chunks_q), over_q, debugContext("queries")));
    setOutTensor(0, result);
  }
};

class FlashGradOpx : public popart::popx::Opx {
 public:
  FlashGradOpx(popart::Op* op, popart::popx::Devicex* d) : popart::popx::Opx(op, d) {}
  void grow(Sequence& prog) const final {
    Graph& g = graph();
    const Tensor given = getInTensor(0), qkv = getInTensor(1);
    const Tensor q = qkv[0], k = qkv[1], v = qkv[2];
    const std::size_t chunks = getOp<FlashGradOp>().chunks_q, n = q.dim(1), rows = n / chunks;
    const float scale = 1.0f / std::sqrt(static_cast<float>(q.dim(2)));
    const Tensor result = g.clone(qkv, debugContext("result"));
    const Tensor at = g.addVariable(UNSIGNED_INT, {1}, debugContext("at"));
    const Tensor row = numbers(g, rows).expand({1}), column = numbers(g, n).expand({0});
    popops::zero(g, result, prog);
    popops::zero(g, at, prog);

    Sequence turn({}, debugContext("turn"));
    const Tensor qs = popops::dynamicSlice(g, q, at, {1}, {rows}, turn);
    const Tensor gs = popops::dynamicSlice(g, given, at, {1}, {rows}, turn);
    Tensor p = poplin::matMulGrouped(g, qs, poplin::transposeGroupedMatrix(k), turn, FLOAT);
    popops::mapInPlace(g, Select(_1 * scale, Const(kNothing), _2 + _3 >= _4),
                       {p, row.expand({0}), at, column.expand({0})}, turn);
    const Tensor most = popops::reduce(g, p, {2}, {popops::Operation::MAX}, turn).expand({2});
    popops::mapInPlace(g, Exp(_1 - _2), {p, most}, turn);
    const Tensor all = popops::reduce(g, p, {2}, {popops::Operation::ADD}, turn).expand({2});
    popops::divInPlace(g, p, all, turn);
    poplin::matMulGroupedAcc(g, result[2], 1.0f, poplin::transposeGroupedMatrix(p), gs, turn);
    const Tensor dp = poplin::matMulGrouped(g, gs, poplin::transposeGroupedMatrix(v), turn, FLOAT);
    const Tensor mean =
        popops::reduce(g, popops::mul(g, dp, p, turn), {2}, {popops::Operation::ADD}, turn)
            .expand({2});
    popops::mapInPlace(g, _2 * (_1 - _3) * scale, {dp, p, mean}, turn);
    poplin::matMulGroupedAcc(g, result[1], 1.0f, poplin::transposeGroupedMatrix(dp), qs, turn);
    popops::dynamicUpdate(g, result[0], poplin::matMulGrouped(g, dp, k, turn, FLOAT), at, {1},
                          {rows}, turn);
    popops::addInPlace(g, at, static_cast<unsigned>(rows), turn);
    prog.add(Repeat(static_cast<unsigned>(chunks), turn));
    setOutTensor(0, result);
  }
};

popart::OpCreator<FlashOp> creator({{kForward, {}}}, [](const popart::OpCreatorInfo& info) {
  const auto size = [&](const char* key) {
    return static_cast<std::size_t>(info.attributes.getAttribute<popart::Attributes::Int>(key, 1));
  };
  return std::make_unique<FlashOp>(info.opid, size("chunks_q"), size("chunks_kv"), info.settings);
});
popart::popx::OpxCreator<FlashOpx> forward(kForward);
popart::popx::OpxCreator<FlashGradOpx> backward(kBackward);

}  // namespace
