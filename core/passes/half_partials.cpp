// SPDX-License-Identifier: Apache-2.0
// Products of f16 that accumulate in f16, where the user asked for it: the reduction is cut into
// pieces, each computed in f32 and rounded, and the pieces are added in f16. Matrix products, and
// convolutions over their input channels.
#include <algorithm>

#include "passes/pass.h"

namespace tessera {
namespace {

using Values = std::vector<ValueId>;

constexpr int64_t kPiece = 64;  // reduction steps of a partial sum
constexpr int64_t kMostPieces = 64;

ValueId slice(Builder& b, ValueId v, size_t dim, int64_t begin, int64_t end) {
  TensorType t = b.graph().type(v);
  t.order = {};
  t.shape[dim] = end - begin;
  return b.add(Op::Slice, {v}, t,
               {Arg::integer(static_cast<int64_t>(dim)), Arg::integer(begin), Arg::integer(end),
                Arg::integer(1)});
}

// The sum over pieces of `size` long dims of both operands; `piece` makes the product of two.
template <typename F>
Values sum_of_pieces(Builder& b, const TensorType& type, int64_t size, int64_t step, F piece) {
  step = std::max(step, (size + kMostPieces - 1) / kMostPieces);
  if (size <= step) return {};
  ValueId sum = kNoValue;
  for (int64_t at = 0; at < size; at += step) {
    const ValueId part = piece(at, std::min(at + step, size));
    sum = sum == kNoValue ? part : b.add(Op::Add, {sum, part}, type);
  }
  return {sum};
}

Values visit(Node& n, Builder& b) {
  const Graph& g = b.graph();
  if (g.type(n.results[0]).dtype != DType::F16) return {};
  const TensorType type = g.type(n.results[0]);
  if (n.op == Op::Mm || n.op == Op::Bmm) {
    const ValueId left = n.arg_value(0), right = n.arg_value(1);
    const size_t rank = g.type(left).shape.size();
    return sum_of_pieces(
        b, type, g.type(left).shape[rank - 1], kPiece, [&](int64_t begin, int64_t end) {
          return b.add(
              n.op, {slice(b, left, rank - 1, begin, end), slice(b, right, rank - 2, begin, end)},
              type);
        });
  }
  // Operands are the arguments in order: input, filter and perhaps a bias.
  if (n.op != Op::Convolution || n.args.boolean(6) || n.args.integer(8) != 1) return {};
  const ValueId x = n.arg_value(0), w = n.arg_value(1);
  const Dims shape = g.type(w).shape;
  int64_t taps = 1;
  for (size_t d = 2; d < shape.size(); ++d) taps *= shape[d];
  const int64_t step = std::max<int64_t>(1, kPiece / std::max<int64_t>(1, taps));
  return sum_of_pieces(b, type, shape[1], step, [&](int64_t begin, int64_t end) {
    Values operands = n.operands;
    Args args = n.args;
    operands[0] = slice(b, x, 1, begin, end);
    operands[1] = slice(b, w, 1, begin, end);
    if (begin > 0 && args.has(2)) {  // the bias is added once
      operands.pop_back();
      args.list[2] = Arg::none();
    }
    return b.add_node(n.op, operands, args, {type})[0];
  });
}

}  // namespace

bool half_partials(Graph& g, const PassContext& ctx) {
  return ctx.half_partials && rewrite(g, visit);
}

}  // namespace tessera
