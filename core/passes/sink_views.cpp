// SPDX-License-Identifier: Apache-2.0
// A linear layer flattens [batch, tokens, features] to a matrix and back, so the pointwise work
// after it sees another shape than the matrix product. This moves the reshape after the pointwise
// op: pointwise(view(x)) becomes view(pointwise(x)); the chain then has the product's shape and can
// become its epilogue.
#include <algorithm>
#include <optional>

#include "passes/pass.h"

namespace tessera {
namespace {

// Shape an operand of `shape` takes when the op's result goes from `from` to `to`, both of one
// size; nothing if the operand broadcasts in a way the new shape cannot say.
std::optional<Dims> reshaped(const Dims& shape, const Dims& from, const Dims& to) {
  if (shape == from) return to;
  if (product(shape) == 1) return Dims{};
  // A broadcast along leading dims survives if the trailing dims it covers are the same in both
  // shapes.
  size_t rank = shape.size();
  if (rank > from.size() || rank > to.size()) return std::nullopt;
  for (size_t i = 1; i <= rank; ++i) {
    int64_t f = from[from.size() - i], t = to[to.size() - i];
    if (f != t && shape[rank - i] != 1) return std::nullopt;
  }
  // Leading ones of the operand must not be meant for dims that moved.
  Dims out = shape;
  while (!out.empty() && out[0] == 1) out.erase(out.begin());
  for (size_t i = 1; i <= out.size(); ++i)
    if (from[from.size() - i] != to[to.size() - i]) return std::nullopt;
  return out;
}

}  // namespace

bool sink_views(Graph& g, const PassContext&) {
  std::vector<ValueId> viewed(g.values.size(), kNoValue);  // view result -> what it is a view of
  std::vector<bool> product_like(g.values.size(), false);
  return rewrite(g, [&](Node& n, Builder& b) -> std::vector<ValueId> {
    viewed.resize(g.values.size(), kNoValue);
    product_like.resize(g.values.size(), false);
    if (n.op == Op::View) viewed[n.results[0]] = n.operands[0];
    if (n.op == Op::Mm || n.op == Op::Bmm) product_like[n.results[0]] = true;
    if (!is_pointwise(n.op) || n.op == Op::Iota) return {};
    const TensorType type = g.type(n.results[0]);
    std::optional<Dims> target;
    // Random numbers have no operand to take a shape from: give them the matrix shape that dropout
    // behind a linear layer will have. Their values depend on the linear index only.
    if (n.op == Op::Uniform && type.rank() > 2)
      target = Dims{type.count() / std::max<int64_t>(1, type.shape.back()), type.shape.back()};
    for (ValueId v : n.operands)
      if (viewed[v] != kNoValue && product_like[viewed[v]] && g.type(v).shape == type.shape &&
          g.type(viewed[v]).shape != type.shape) {
        target = g.type(viewed[v]).shape;
        break;
      }
    if (!target) return {};
    std::vector<Dims> shapes;
    for (ValueId v : n.operands) {
      if (n.op == Op::Uniform) {
        shapes.push_back(g.type(v).shape);
        continue;
      }
      auto s = reshaped(g.type(v).shape, type.shape, *target);
      if (!s) return {};
      shapes.push_back(*s);
    }
    std::vector<ValueId> operands;
    for (size_t i = 0; i < n.operands.size(); ++i) {
      ValueId v = n.operands[i];
      if (viewed[v] != kNoValue && g.type(viewed[v]).shape == shapes[i]) {
        v = viewed[v];
      } else if (g.type(v).shape != shapes[i]) {
        v = b.add(Op::View, {v}, {g.type(v).dtype, shapes[i], {}}, {Arg::ints(shapes[i])});
      }
      operands.push_back(v);
    }
    ValueId flat = b.add_node(n.op, operands, n.args, {TensorType{type.dtype, *target, {}}})[0];
    ValueId out = b.add(Op::View, {flat}, type, {Arg::ints(type.shape)});
    viewed.resize(g.values.size(), kNoValue);
    product_like.resize(g.values.size(), false);
    viewed[out] = flat;
    product_like[flat] = true;  // so that the next op of the chain follows
    return {out};
  });
}

}  // namespace tessera
