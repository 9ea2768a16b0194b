// SPDX-License-Identifier: Apache-2.0
// What every graph must satisfy between passes: operands are defined before use, argument lists
// agree with operand lists, orders are permutations, bodies are graphs of their own.
#include <algorithm>

#include "ir/graph.h"

namespace tessera {
namespace {

void count_operands(const Arg& a, std::vector<int>& seen) {
  if (a.is_operand()) {
    invariant(a.i >= 0 && a.i < static_cast<int64_t>(seen.size()),
              "argument refers to operand {} of {}", a.i, seen.size());
    ++seen[a.i];
  }
  for (const Arg& x : a.list) count_operands(x, seen);
}

void check_type(const TensorType& t) {
  if (t.order.empty()) return;
  std::vector<int> sorted = t.order;
  std::sort(sorted.begin(), sorted.end());
  for (int i = 0; i < static_cast<int>(sorted.size()); ++i)
    invariant(sorted[i] == i, "{} is ordered by no permutation", to_string(t));
  invariant(sorted.size() == t.shape.size(), "{} is ordered by too few dims", to_string(t));
}

// What goes into a body and comes out of it; row-major at its border.
void check_bodies(const Graph& g, const Node& n) {
  const bool scan = n.op == Op::Scan;
  if (n.bodies.empty() && !scan && n.op != Op::While && n.op != Op::Branch) return;
  invariant(n.bodies.size() == (scan || n.op == Op::While ? 1u
                                : n.op == Op::Branch      ? 2u
                                                          : 0u),
            "{} has {} bodies", op_text(n.op), n.bodies.size());
  const size_t carries = scan ? n.args.at(1).list.size() : 0;
  const size_t xs = scan ? n.args.at(2).list.size() : 0, first = n.op == Op::Branch ? 1 : 0;
  auto fits = [](const TensorType& outer, const TensorType& inner, bool slice) {
    const Dims shape(outer.shape.begin() + (slice ? 1 : 0), outer.shape.end());
    return outer.dtype == inner.dtype && shape == inner.shape && inner.order.empty();
  };
  for (const auto& body : n.bodies) {
    invariant(body->sources.size() + first == n.operands.size() &&
                  body->outputs.size() == n.results.size(),
              "a body of {} does not fit it", op_text(n.op));
    for (size_t i = 0; i < body->sources.size(); ++i)
      invariant(fits(g.type(n.operands[i + first]), body->type(body->sources[i].value),
                     i >= carries && i < carries + xs),
                "input {} of a body of {} does not fit", i, op_text(n.op));
    for (size_t i = 0; i < body->outputs.size(); ++i) {
      TensorType out = body->type(body->outputs[i]);
      out.order = {};
      invariant(fits(g.type(n.results[i]), out, scan && i >= carries),
                "output {} of a body of {} does not fit", i, op_text(n.op));
    }
    verify_graph(*body);
  }
}

}  // namespace

void verify_graph(const Graph& g) {
  std::vector<bool> defined(g.values.size(), false);
  auto use = [&](ValueId v, const char* what) {
    invariant(v >= 0 && v < static_cast<ValueId>(g.values.size()) && defined[v],
              "{} uses value {} before it is defined", what, v);
  };
  for (const Source& s : g.sources) {
    invariant(!defined[s.value], "source {} is defined twice", s.name);
    defined[s.value] = true;
    check_type(g.type(s.value));
  }
  for (const Node& n : g.nodes) {
    const char* name = op_text(n.op).data();
    std::vector<int> seen(n.operands.size(), 0);
    for (const Arg& a : n.args.list) count_operands(a, seen);
    invariant(n.body || std::all_of(seen.begin(), seen.end(), [](int c) { return c > 0; }),
              "{} has an operand that no argument names", name);
    for (ValueId v : n.operands) use(v, name);
    invariant(!n.results.empty(), "{} has no result", name);
    for (ValueId v : n.results) {
      invariant(!defined[v], "{} defines value {} again", name, v);
      defined[v] = true;
      check_type(g.type(v));
    }
    if (is_pointwise(n.op))
      invariant(
          n.args.size() >= static_cast<size_t>(pointwise_arity(n.op)) && n.results.size() == 1,
          "{} has {} arguments and {} results", name, n.args.size(), n.results.size());
    if (n.body) verify_graph(*n.body);
    check_bodies(g, n);
  }
  for (ValueId v : g.outputs) use(v, "output");
  for (const StateUpdate& u : g.grads) use(u.value, "grad");
  for (const StateUpdate& u : g.updates) {
    use(u.state, "update");
    use(u.value, "update");
    invariant(g.type(u.state).same_logical(g.type(u.value)), "update of {} with {}",
              to_string(g.type(u.state)), to_string(g.type(u.value)));
  }
  if (g.loss != kNoValue) use(g.loss, "loss");
}

}  // namespace tessera
