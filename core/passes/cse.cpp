// SPDX-License-Identifier: Apache-2.0
// Equal calls on equal operands are made once, except cheap pointwise work that forward and
// backward both do: sharing it would keep one more activation alive in between. Random numbers
// carry their stream in their arguments, so two draws never look alike; host calls are left alone
// because torch ops may have effects.
#include <functional>
#include <unordered_map>

#include "ops/flow.h"
#include "passes/pass.h"

namespace tessera {
namespace {

size_t mix(size_t h, size_t v) {
  return (h ^ v) * 0x9e3779b97f4a7c15ull + (h >> 29);
}

size_t hash_arg(const Arg& a) {
  size_t h = mix(static_cast<size_t>(a.kind), static_cast<size_t>(a.i));
  h = mix(h, std::hash<double>{}(a.f));
  h = mix(h, std::hash<std::string>{}(a.s));
  for (const Arg& x : a.list) h = mix(h, hash_arg(x));
  return h;
}

size_t hash_node(const Graph& g, const Node& n) {
  size_t h = static_cast<size_t>(n.op);
  for (ValueId v : n.operands) h = mix(h, static_cast<size_t>(v));
  for (const Arg& a : n.args.list) h = mix(h, hash_arg(a));
  for (ValueId v : n.results) h = mix(h, static_cast<size_t>(g.type(v).dtype));
  return h;
}

bool backward(const Graph& g, const Node& n) {
  return n.loc >= 0 && g.locations[n.loc].backward;
}

int turn(const Graph& g, const Node& n) {
  return n.loc < 0 ? 0 : g.locations[n.loc].turn;
}

// Worth doing twice rather than keeping from forward to backward.
bool cheap_across(const Graph& g, const Node& a, const Node& b) {
  constexpr int kCheapFlops = 4;
  return is_pointwise(a.op) && pointwise_flops(a.op) <= kCheapFlops &&
         g.type(a.results[0]).bytes() >= (1 << 16) && backward(g, a) != backward(g, b);
}

bool same(const Graph& g, const Node& a, const Node& b) {
  if (turn(g, a) != turn(g, b)) return false;
  if (a.op != b.op || a.operands != b.operands || !(a.args == b.args) ||
      a.results.size() != b.results.size())
    return false;
  for (size_t i = 0; i < a.results.size(); ++i)
    if (!(g.type(a.results[i]) == g.type(b.results[i]))) return false;
  for (size_t i = 0; i < a.bodies.size(); ++i)
    if (!same_body(*a.bodies[i], *b.bodies[i])) return false;
  return true;
}

}  // namespace

bool cse(Graph& g, const PassContext&) {
  std::unordered_multimap<size_t, Node> seen;
  return rewrite(g, [&](Node& n, Builder&) -> std::vector<ValueId> {
    if (n.body || !is_pure(n)) return {};
    size_t h = hash_node(g, n);
    auto [begin, end] = seen.equal_range(h);
    for (auto it = begin; it != end; ++it)
      if (same(g, it->second, n) && !cheap_across(g, it->second, n)) return it->second.results;
    seen.emplace(h, n);
    return {};
  });
}

}  // namespace tessera
