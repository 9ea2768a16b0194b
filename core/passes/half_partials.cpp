// SPDX-License-Identifier: Apache-2.0
// Products of f16 that accumulate in f16, where the user asked for it: the reduction is cut into
// pieces, each computed in f32 and rounded, and the pieces are added in f16. Matrix products,
// convolutions over the channels, and the gradients of their filters over the images.
#include <algorithm>
#include <optional>

#include "passes/pass.h"

namespace tessera {
namespace {

constexpr Setting<bool> kHalfPartials{"half_partials", false};

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

// What a product sums over: a dim of each operand, and how many of it make one piece.
struct Reduced {
  size_t left, right;
  int64_t piece;
};

int64_t spatial_size(const Dims& shape) {
  int64_t n = 1;
  for (size_t d = 2; d < shape.size(); ++d) n *= shape[d];
  return std::max<int64_t>(1, n);
}

std::optional<Reduced> reduced(const Graph& g, const Node& n) {
  // As many as make a piece together with the window, or the image, of the operand.
  auto with = [&](size_t arg) {
    return std::max<int64_t>(1, kPiece / spatial_size(g.type(n.arg_value(arg)).shape));
  };
  switch (n.op) {
    case Op::Mm:
      return Reduced{1, 0, kPiece};
    case Op::Bmm:
      return Reduced{2, 1, kPiece};
    case Op::Convolution:  // of groups, each sums over its own channels: they stay whole
      if (n.args.integer(8) != 1) return std::nullopt;
      return Reduced{1, n.args.boolean(6) ? 0u : 1u, with(1)};
    case Op::ConvInputGrad:
      if (n.args.integer(6) != 1) return std::nullopt;
      return Reduced{1, 0, with(1)};
    case Op::ConvWeightGrad:
      return Reduced{0, 0, with(0)};
    default:
      return std::nullopt;
  }
}

Values visit(Node& n, Builder& b) {
  const Graph& g = b.graph();
  const std::optional<Reduced> r = reduced(g, n);
  if (!r || g.type(n.operands[0]).dtype != DType::F16) return {};
  const TensorType result = g.type(n.results[0]), type{DType::F16, result.shape, {}};
  const int64_t size = g.type(n.arg_value(0)).shape[r->left];
  const int64_t step = std::max(r->piece, (size + kMostPieces - 1) / kMostPieces);
  if (size <= step) return {};
  ValueId sum = kNoValue;
  for (int64_t at = 0; at < size; at += step) {
    const int64_t end = std::min(at + step, size);
    // Operands are the arguments in order: two factors and perhaps a bias, which is added once.
    Values operands = n.operands;
    Args args = n.args;
    operands[0] = slice(b, n.operands[0], r->left, at, end);
    operands[1] = slice(b, n.operands[1], r->right, at, end);
    if (at > 0 && operands.size() > 2) {
      operands.pop_back();
      args.list[2] = Arg::none();
    }
    const ValueId part = b.add_node(n.op, operands, args, {type})[0];
    sum = sum == kNoValue ? part : b.add(Op::Add, {sum, part}, type);
  }
  return {result.dtype == DType::F16 ? sum : b.add(Op::Cast, {sum}, result)};
}

}  // namespace

bool half_partials(Graph& g, const PassContext& ctx) {
  return ctx.settings.get(kHalfPartials) && rewrite(g, visit);
}

}  // namespace tessera
