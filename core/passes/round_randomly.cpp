// SPDX-License-Identifier: Apache-2.0
// Stochastic rounding: every op with a result in f16 is computed in f32, and its result rounded up
// or down at random with the probability that keeps the expectation. Random numbers come from the
// program's own generator, one stream per rounded value, so a seed gives the same run again.
#include <algorithm>

#include "ops/flow.h"
#include "ops/registry.h"
#include "passes/optimizer_terms.h"

namespace tessera {
namespace {

constexpr Setting<bool> kStochasticRounding{"stochastic_rounding", false};

using Values = std::vector<ValueId>;

constexpr int64_t kFirstStream = int64_t{1} << 30;  // those of the user's ops count from one
// How far the keys of two turns of a loop are apart, and how much farther those of a loop in it.
constexpr int64_t kTurn = 0x9e3779b97f, kDepth = 0x1b873593a1;

const TensorType kKey{DType::I64, {2}, {}};

class Rounder {
 public:
  bool run(Graph& g) {
    const Source* found = g.find_source(SourceKind::kRandom);
    sweep(g, found ? found->value : g.add_source(SourceKind::kRandom, "rng", kKey));
    return next_ > 0;
  }

 private:
  void sweep(Graph& g, ValueId key) {
    rewrite(g, [&](Node& n, Builder& b) {
      if (!n.bodies.empty()) enter(n, b, key);
      return visit(n, b, key);
    });
  }

  // The bodies get the key as their last input. Each turn of a loop has a key of its own.
  void enter(Node& n, Builder& b, ValueId key) {
    const int64_t before = next_;
    std::vector<ValueId> inside;
    ValueId own = kNoValue;
    ++depth_;
    for (const std::shared_ptr<Graph>& body : n.bodies) {
      inside.push_back(body->add_value(kKey));
      own = n.op == Op::Branch ? inside.back() : body->add_value(kKey);
      sweep(*body, own);
    }
    --depth_;
    if (next_ == before) return;
    if (n.op != Op::Branch) add_turn(n, b, inside[0], own);
    n.args.list[captures_argument(n.op)].list.push_back(
        Arg::operand(static_cast<int64_t>(n.operands.size())));
    n.operands.push_back(key);
    for (size_t i = 0; i < n.bodies.size(); ++i)
      n.bodies[i]->sources.push_back({SourceKind::kInput, inside[i], "rng"});
  }

  // Before the body: own key = key + turn * (a number for this depth of loops).
  void add_turn(Node& n, Builder& b, ValueId key, ValueId own) {
    const bool counted = n.op == Op::Scan;
    const LoopParts parts = loop_parts(n.op, n.args);
    const TensorType all{DType::I64, {parts.count}, {}}, one{DType::I64, {}, {}};
    // An x, or a carry that counts.
    const ValueId turns =
        counted
            ? b.pointwise(Op::Iota, {Arg::integer(0), Arg::integer(0), Arg::integer(1)}, {}, all)
            : b.add(Op::Fill, {}, one, {Arg::integer(0)});
    const size_t at = parts.carries + parts.xs;
    n.operands.insert(n.operands.begin() + static_cast<int64_t>(at), turns);
    n.args.list[counted ? 2 : 0].list.push_back({});
    int64_t next = 0;
    for (Arg& a : n.args.list)
      for (Arg& x : a.list) x = Arg::operand(next++);
    Graph& body = *n.bodies[0];
    const ValueId turn = body.add_value(one);
    body.sources.insert(body.sources.begin() + static_cast<int64_t>(at),
                        {SourceKind::kInput, turn, "turn"});
    Builder inner(body);
    const ValueId scaled = inner.add(Op::Mul, {turn}, one, {Arg::integer(kTurn + depth_ * kDepth)});
    inner.add(Op::Add, {key, scaled}, kKey);
    inner.out.back().results = {own};
    if (!counted) {
      body.outputs.push_back(inner.add(Op::Add, {turn}, one, {Arg::integer(1)}));
      n.results.push_back(b.graph().add_value(one, static_cast<int32_t>(n.results.size())));
    }
    for (Node& old : body.nodes) inner.append(std::move(old));
    body.nodes = std::move(inner.out);
  }

  Values visit(Node& n, Builder& b, ValueId key) {
    Graph& g = b.graph();
    bool half = false;
    for (ValueId v : n.results) half = half || g.type(v).dtype == DType::F16;
    if (!half || !has_fact(n.op, kRounds)) return {};
    Values operands = n.operands;
    for (ValueId& v : operands)
      if (g.type(v).dtype == DType::F16 && n.op != Op::Cast) v = cast(b, v, DType::F32);
    std::vector<TensorType> types;
    for (ValueId v : n.results) {
      types.push_back(g.type(v));
      if (types.back().dtype == DType::F16) types.back().dtype = DType::F32;
    }
    Args args = n.args;
    for (Arg& a : args.list)
      if (a.kind == Arg::Kind::kDType && static_cast<DType>(a.i) == DType::F16)
        a.i = static_cast<int64_t>(DType::F32);
    Values made = n.op == Op::Cast ? Values{cast(b, operands[0], DType::F32)}
                                   : b.add_node(n.op, operands, args, types);
    for (size_t i = 0; i < made.size(); ++i)
      if (g.type(n.results[i]).dtype == DType::F16) made[i] = rounded(b, made[i], key);
    return made;
  }

  static ValueId cast(Builder& b, ValueId v, DType dtype) {
    const TensorType t = b.graph().type(v);
    return t.dtype == dtype ? v : b.add(Op::Cast, {v}, {dtype, t.shape, {}});
  }
  ValueId rounded(Builder& b, ValueId v, ValueId key) {
    const TensorType wide{DType::F32, b.graph().type(v).shape, {}};
    const ValueId random = b.add(Op::Uniform, {key}, wide, {Arg::integer(kFirstStream + next_++)});
    return cast(b, b.add(Op::RoundRandom, {v, random}, wide), DType::F16);
  }

  int64_t depth_ = 0;  // of loops and branches
  int64_t next_ = 0;
};

}  // namespace

bool round_randomly(Graph& g, const PassContext& ctx) {
  // Bodies are swept with the graph around them, which has the key.
  if (!ctx.settings.get(kStochasticRounding) || ctx.in_body) return false;
  return Rounder().run(g);
}

}  // namespace tessera
