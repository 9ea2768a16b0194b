// SPDX-License-Identifier: Apache-2.0
// Rows that the canonicalize pass rewrites: only their types are needed.
#include <algorithm>

#include "ops/registry.h"
#include "ops/view.h"

namespace tessera {
namespace {

std::vector<TensorType> split_types(const TensorType& x, const Node& n) {
  user_check(x.rank() > 0, "[split_with_sizes] cannot split a scalar");
  const int64_t dim = wrap_dim(n.args.integer_or(2, 0), x.rank());
  std::vector<TensorType> out;
  int64_t left = x.shape[dim];
  for (int64_t size : n.args.ints(1)) {
    user_check(size >= 0 && size <= left, "[split_with_sizes] the sizes do not fit {}",
               x.shape[dim]);
    left -= size;
    out.push_back({x.dtype, x.shape, {}});
    out.back().shape[dim] = size;
  }
  user_check(left == 0, "[split_with_sizes] the sizes leave {} of {}", left, x.shape[dim]);
  return out;
}

}  // namespace

std::vector<TensorType> infer_composite(const Graph& g, const Node& n) {
  const TensorType& x = g.type(n.arg_value(0));
  TensorType out{x.dtype, x.shape, {}};
  Node as = n;  // the same call of a row that it becomes
  switch (n.op) {
    case Op::Mean:
      as.op = Op::Sum;
      out = op_row(Op::Sum).infer(g, as)[0];
      out.dtype = g.type(n.results[0]).dtype;
      user_check(is_float(out.dtype), "[mean] has no result of type {}", name_of(out.dtype));
      return {out};
    case Op::Split:
      return split_types(x, n);
    case Op::T:
      user_check(x.rank() <= 2, "[t] of a tensor with {} dims", x.rank());
      std::reverse(out.shape.begin(), out.shape.end());
      return {out};
    case Op::UnsafeView:
      as.op = Op::View;
      return infer_view(g, as);
    default:  // detach, alias
      return {out};
  }
}

}  // namespace tessera
