// SPDX-License-Identifier: Apache-2.0
// A `full` that feeds a pointwise op becomes a literal of that op, and pointwise arithmetic between
// literals is done here, in double, as eager does with Python numbers.
#include <cmath>
#include <optional>

#include "passes/pass.h"

namespace tessera {
namespace {

std::optional<double> evaluate(Op op, const std::vector<double>& a) {
  switch (op) {
    case Op::Add:
      return a[0] + a[1];
    case Op::Sub:
      return a[0] - a[1];
    case Op::Mul:
      return a[0] * a[1];
    case Op::Div:
      return a[0] / a[1];
    case Op::Neg:
      return -a[0];
    case Op::Cast:
    case Op::Copy:
      return a[0];
    default:
      return std::nullopt;
  }
}

}  // namespace

bool fold_constants(Graph& g, const PassContext&) {
  std::vector<std::optional<Arg>> literal(g.values.size());
  bool inlined = false;
  bool rewritten = rewrite(g, [&](Node& n, Builder& b) -> std::vector<ValueId> {
    if (!is_pointwise(n.op) || n.op == Op::Uniform || n.op == Op::Iota) {
      // A view of a fill is a fill of another shape.
      if (is_view(n.op) && static_cast<size_t>(n.operands[0]) < literal.size() &&
          literal[n.operands[0]]) {
        TensorType t = g.type(n.results[0]);
        ValueId v = b.pointwise(Op::Fill, {*literal[n.operands[0]]}, {}, t);
        literal.resize(g.values.size());
        literal[v] = literal[n.operands[0]];
        return {v};
      }
      return {};
    }
    if (n.op == Op::Fill) {
      if (n.args.at(0).is_number()) literal[n.results[0]] = n.args.at(0);
      return {};
    }
    // Operands known as literals move into the argument list.
    std::vector<ValueId> kept;
    const Args args = n.args;
    bool any = false;
    for (Arg& a : n.args.list) {
      if (!a.is_operand()) continue;
      ValueId v = n.operands[a.i];
      bool known = static_cast<size_t>(v) < literal.size() && literal[v];
      // An operand also gives the op its type: a literal may not narrow or widen it.
      if (known && (g.type(v).dtype == g.type(n.results[0]).dtype || n.op == Op::Cast)) {
        a = *literal[v];
        any = true;
      } else {
        kept.push_back(v);
        a.i = static_cast<int64_t>(kept.size()) - 1;
      }
    }
    if (!kept.empty()) {
      inlined |= any;
      n.operands = kept;
      return {};
    }
    std::vector<double> values;
    for (const Arg& a : n.args.list)
      if (a.is_number()) values.push_back(a.number());
    const TensorType& t = g.type(n.results[0]);
    std::optional<double> folded;
    if (values.size() == n.args.size() && is_float(t.dtype)) folded = evaluate(n.op, values);
    if (!folded) {  // an op follows a tensor: only `full` is made of a number alone
      n.args = args;
      return {};
    }
    ValueId v = b.pointwise(Op::Fill, {Arg::real(*folded)}, {}, t);
    literal.resize(g.values.size());
    literal[v] = Arg::real(*folded);
    return {v};
  });
  return rewritten || inlined;
}

}  // namespace tessera
