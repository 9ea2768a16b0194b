// SPDX-License-Identifier: Apache-2.0
#include "ir/graph.h"

#include <numeric>

namespace tessera {

std::unique_ptr<Graph> Graph::clone() const {
  auto copy = std::make_unique<Graph>(*this);
  for (Node& n : copy->nodes) n = clone_node(n);
  return copy;
}

Node clone_node(const Node& n) {
  Node copy = n;
  if (n.body) copy.body = n.body->clone();
  for (std::shared_ptr<Graph>& body : copy.bodies) body = body->clone();
  return copy;
}

bool calls_host(const Node& n) {
  if (n.op == Op::HostCall) return true;
  for (const auto& body : n.bodies)
    for (const Node& inner : body->nodes)
      if (calls_host(inner)) return true;
  return false;
}

bool same_body(const Graph& a, const Graph& b) {
  if (a.sources.size() != b.sources.size() || a.nodes.size() != b.nodes.size() ||
      a.outputs.size() != b.outputs.size())
    return false;
  std::vector<ValueId> match(a.values.size(), kNoValue);  // value of a -> value of b
  auto pair = [&](ValueId v, ValueId w) {
    match[v] = w;
    return a.type(v) == b.type(w);
  };
  auto same = [&](const std::vector<ValueId>& v, const std::vector<ValueId>& w) {
    bool equal = v.size() == w.size();
    for (size_t i = 0; equal && i < v.size(); ++i) equal = match[v[i]] == w[i];
    return equal;
  };
  for (size_t i = 0; i < a.sources.size(); ++i)
    if (!pair(a.sources[i].value, b.sources[i].value)) return false;
  for (size_t i = 0; i < a.nodes.size(); ++i) {
    const Node &n = a.nodes[i], &m = b.nodes[i];
    if (n.op != m.op || n.target != m.target || !(n.args == m.args) ||
        !same(n.operands, m.operands) || n.results.size() != m.results.size() ||
        !n.body != !m.body || n.bodies.size() != m.bodies.size())
      return false;
    if (n.body && !same_body(*n.body, *m.body)) return false;
    for (size_t k = 0; k < n.bodies.size(); ++k)
      if (!same_body(*n.bodies[k], *m.bodies[k])) return false;
    for (size_t k = 0; k < n.results.size(); ++k)
      if (!pair(n.results[k], m.results[k])) return false;
  }
  return same(a.outputs, b.outputs);
}

void Graph::for_each_use(const std::function<void(ValueId&)>& f) {
  for (Node& n : nodes)
    for (ValueId& v : n.operands) f(v);
  for (ValueId& v : outputs) f(v);
  for (StateUpdate& u : grads) f(u.value);
  for (StateUpdate& u : updates) f(u.value);
  if (loss != kNoValue) f(loss);
}

const Source* Graph::find_source(SourceKind kind) const {
  for (const Source& s : sources)
    if (s.kind == kind) return &s;
  return nullptr;
}

ValueId Builder::add(Op op, const std::vector<ValueId>& operands, TensorType type,
                     std::vector<Arg> literals) {
  Args args;
  for (size_t i = 0; i < operands.size(); ++i) args.list.push_back(Arg::operand(i));
  for (Arg& a : literals) args.list.push_back(std::move(a));
  return add_node(op, operands, std::move(args), {std::move(type)})[0];
}

std::vector<ValueId> Builder::add_node(Op op, std::vector<ValueId> operands, Args args,
                                       std::vector<TensorType> types) {
  Node n;
  n.op = op;
  n.operands = std::move(operands);
  n.args = std::move(args);
  n.loc = loc;
  for (size_t i = 0; i < types.size(); ++i)
    n.results.push_back(g_.add_value(std::move(types[i]), static_cast<int32_t>(i)));
  std::vector<ValueId> results = n.results;
  out.push_back(std::move(n));
  return results;
}

ValueId Builder::copy(ValueId v, TensorType type) {
  // Codegen has no opaque types; padding by nothing is a copy of any type.
  if (class_of(type.dtype) == DTypeClass::kOpaque)
    return add_node(Op::ConstantPad, {v}, Args{{Arg::operand(0), Arg::ints({}), Arg::integer(0)}},
                    {std::move(type)})[0];
  return add(Op::Copy, {v}, std::move(type));
}

ValueId Builder::pointwise(Op op, const std::vector<Arg>& args,
                           const std::vector<ValueId>& operands, TensorType type) {
  return add_node(op, operands, Args{args}, {std::move(type)})[0];
}

bool rewrite(Graph& g, const std::function<std::vector<ValueId>(Node&, Builder&)>& visit) {
  std::vector<ValueId> moved;  // value -> what stands for it now; itself by default
  auto resolve = [&](ValueId& v) {
    while (v < static_cast<ValueId>(moved.size()) && moved[v] != v) v = moved[v];
  };
  Builder b(g);
  std::vector<Node> old = std::move(g.nodes);
  g.nodes.clear();
  bool changed = false;
  for (Node& n : old) {
    for (ValueId& v : n.operands) resolve(v);
    b.loc = n.loc;
    std::vector<ValueId> results = n.results;
    std::vector<ValueId> now = visit(n, b);
    if (now.empty()) {
      b.append(std::move(n));
      continue;
    }
    changed = true;
    for (size_t i = 0; i < results.size(); ++i) {
      if (now[i] == results[i]) continue;
      if (moved.size() < g.values.size()) {
        size_t from = moved.size();
        moved.resize(g.values.size());
        std::iota(moved.begin() + static_cast<int64_t>(from), moved.end(),
                  static_cast<ValueId>(from));
      }
      moved[results[i]] = now[i];
    }
  }
  g.nodes = std::move(b.out);
  if (!moved.empty()) g.for_each_use(resolve);
  return changed;
}

std::vector<int32_t> producers(const Graph& g) {
  std::vector<int32_t> out(g.values.size(), -1);
  for (size_t i = 0; i < g.nodes.size(); ++i)
    for (ValueId v : g.nodes[i].results) out[v] = static_cast<int32_t>(i);
  return out;
}

std::vector<int32_t> use_counts(const Graph& g) {
  std::vector<int32_t> out(g.values.size(), 0);
  const_cast<Graph&>(g).for_each_use([&](ValueId& v) { ++out[v]; });
  return out;
}

std::string describe_location(const Graph& g, int32_t loc) {
  if (loc < 0 || loc >= static_cast<int32_t>(g.locations.size())) return "";
  const Location& l = g.locations[loc];
  std::string text = l.file.empty() ? "" : fmt::format("{}:{}", l.file, l.line);
  if (!l.scope.empty()) text += fmt::format("{}({})", text.empty() ? "" : " ", l.scope);
  return text;
}

}  // namespace tessera
