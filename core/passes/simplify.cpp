// SPDX-License-Identifier: Apache-2.0
// Removes what computes nothing: copies (the IR is pure, so a copy is its operand), views that keep
// the shape, chains of views, casts to the same type or there and back, multiplications by one,
// sums over dims of size one.
#include <algorithm>

#include "passes/pass.h"

namespace tessera {
namespace {

using Values = std::vector<ValueId>;

bool is_literal(const Node& n, size_t i, double v) {
  return i < n.args.size() && n.args.at(i).is_number() && n.args.at(i).number() == v;
}

bool same_type(const Graph& g, ValueId a, ValueId b) {
  return g.type(a).same_logical(g.type(b));
}

// Whether a float type has every value of another.
bool holds(DType wide, DType narrow) {
  return is_float(wide) && is_float(narrow) && size_of(wide) > size_of(narrow);
}

class Simplifier {
 public:
  explicit Simplifier(const Graph& g) : made_by_(g.values.size(), nullptr) {}

  Values visit(Node& n, Builder& b) {
    Values out = simplified(n, b);
    if (out.empty()) remember(n);
    return out;
  }

 private:
  // Producer as of this sweep; nodes are copied because the builder's list moves.
  void remember(const Node& n) {
    auto copy = std::make_shared<Node>(n);
    for (ValueId v : n.results) {
      if (static_cast<size_t>(v) >= made_by_.size()) made_by_.resize(v + 1);
      made_by_[v] = copy;
    }
  }
  const Node* producer(ValueId v) const {
    return static_cast<size_t>(v) < made_by_.size() ? made_by_[v].get() : nullptr;
  }
  ValueId add(Builder& b, Op op, ValueId x, const TensorType& t, Arg literal) {
    ValueId v = b.add(op, {x}, t, {std::move(literal)});
    remember(b.out.back());
    return v;
  }

  Values simplified(Node& n, Builder& b) {
    const Graph& g = b.graph();
    if (n.op == Op::Copy) return {n.operands[0]};
    if (is_pointwise(n.op) && n.op != Op::Uniform) drop_expands(n);
    switch (n.op) {
      case Op::Cast:
        if (same_type(g, n.operands[0], n.results[0])) return {n.operands[0]};
        if (const Node* p = producer(n.operands[0]);
            p && p->op == Op::Cast && same_type(g, p->operands[0], n.results[0]) &&
            holds(g.type(n.operands[0]).dtype, g.type(n.results[0]).dtype))
          return {p->operands[0]};
        return {};
      case Op::View: {
        ValueId x = n.operands[0];
        const Node* p = producer(x);
        if (p && p->op == Op::View) {
          x = p->operands[0];
          if (!same_type(g, x, n.results[0]))
            return {
                add(b, Op::View, x, g.type(n.results[0]), Arg::ints(g.type(n.results[0]).shape))};
        }
        if (same_type(g, x, n.results[0])) return {x};
        return {};
      }
      case Op::Expand:
      case Op::Slice:
        if (same_type(g, n.operands[0], n.results[0])) return {n.operands[0]};
        return {};
      case Op::Permute: {
        std::vector<int64_t> dims = n.args.ints(1);
        int rank = static_cast<int>(dims.size());
        for (int64_t& d : dims)
          if (d < 0) d += rank;
        ValueId x = n.operands[0];
        const Node* p = producer(x);
        bool merged = p && p->op == Op::Permute;
        if (merged) {
          std::vector<int64_t> inner = p->args.ints(1);
          for (int64_t& d : dims) d = inner[d] < 0 ? inner[d] + rank : inner[d];
          x = p->operands[0];
        }
        if (std::is_sorted(dims.begin(), dims.end())) return {x};
        if (merged) return {add(b, Op::Permute, x, g.type(n.results[0]), Arg::ints(dims))};
        return {};
      }
      case Op::Mul:
      case Op::Div:
        if (is_literal(n, 1, 1.0) && same_type(g, n.operands[0], n.results[0]))
          return {n.operands[0]};
        if (n.op == Op::Mul && is_literal(n, 0, 1.0) && same_type(g, n.operands[0], n.results[0]))
          return {n.operands[0]};
        return {};
      case Op::Sum:
        if (g.type(n.operands[0]).count() == g.type(n.results[0]).count() &&
            g.type(n.operands[0]).dtype == g.type(n.results[0]).dtype) {
          const TensorType& t = g.type(n.results[0]);
          return {same_type(g, n.operands[0], n.results[0])
                      ? n.operands[0]
                      : add(b, Op::View, n.operands[0], t, Arg::ints(t.shape))};
        }
        return {};
      default:
        return {};
    }
  }

  // A pointwise op broadcasts by itself, so it reads what an expand reads.
  void drop_expands(Node& n) {
    for (ValueId& v : n.operands)
      if (const Node* p = producer(v); p && p->op == Op::Expand) v = p->operands[0];
  }

  std::vector<std::shared_ptr<Node>> made_by_;
};

}  // namespace

bool simplify(Graph& g, const PassContext&) {
  Simplifier s(g);
  return rewrite(g, [&](Node& n, Builder& b) { return s.visit(n, b); });
}

}  // namespace tessera
