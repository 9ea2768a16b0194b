// SPDX-License-Identifier: Apache-2.0
// Rewrites composite rows into the few forms the rest of the compiler knows: addmm becomes mm and
// pointwise ops (which fuse as its epilogue), a convolution's backward becomes one op per gradient,
// mean becomes sum and a scale.
#include "passes/pass.h"

namespace tessera {
namespace {

using Values = std::vector<ValueId>;

TensorType typed(DType dtype, Dims shape) {
  return {dtype, std::move(shape), {}};
}

ValueId scaled(Builder& b, ValueId v, double factor) {
  if (factor == 1.0) return v;
  TensorType t = typed(b.graph().type(v).dtype, b.graph().type(v).shape);
  return b.add(Op::Mul, {v}, t, {Arg::real(factor)});
}

// bias * beta + alpha * (a @ b)
Values add_product(Node& n, Builder& b, Op product) {
  const Graph& g = b.graph();
  ValueId bias = n.operands[0];
  TensorType t = typed(g.type(n.results[0]).dtype, g.type(n.results[0]).shape);
  ValueId c = b.add(product, {n.operands[1], n.operands[2]}, t);
  double beta = n.args.real_or(3, 1), alpha = n.args.real_or(4, 1);
  c = scaled(b, c, alpha);
  if (beta == 0) return {c};
  return {b.add(Op::Add, {c, scaled(b, bias, beta)}, t)};
}

Values split_conv_backward(Node& n, Builder& b) {
  const Graph& g = b.graph();
  const Args& a = n.args;
  ValueId gy = n.arg_value(0), x = n.arg_value(1), w = n.arg_value(2);
  bool transposed = a.boolean(7);
  if (transposed) return {};  // stays whole: runs as a host call's twin in the reference path
  std::vector<int64_t> mask = a.ints(10);
  Values out(n.results.size(), kNoValue);
  Args shared;
  auto window = [&](ValueId other, const Dims& shape) {
    Args args{
        {Arg::operand(0), Arg::operand(1), Arg::ints(shape), a.at(4), a.at(5), a.at(6), a.at(9)}};
    (void)other;
    return args;
  };
  if (mask[0])
    out[0] = b.add_node(Op::ConvInputGrad, {gy, w}, window(w, g.type(x).shape),
                        {typed(g.type(x).dtype, g.type(x).shape)})[0];
  if (mask[1])
    out[1] = b.add_node(Op::ConvWeightGrad, {gy, x}, window(x, g.type(w).shape),
                        {typed(g.type(w).dtype, g.type(w).shape)})[0];
  if (mask[2]) {
    std::vector<int64_t> dims;
    for (int d = 0; d < g.type(gy).rank(); ++d)
      if (d != 1) dims.push_back(d);
    out[2] = b.add(Op::Sum, {gy}, typed(g.type(gy).dtype, {g.type(gy).shape[1]}),
                   {Arg::ints(dims), Arg::boolean(false)});
  }
  for (size_t i = 0; i < out.size(); ++i)
    if (out[i] == kNoValue) out[i] = n.results[i];  // not asked for, so not used
  return out;
}

Values mean_as_sum(Node& n, Builder& b) {
  const Graph& g = b.graph();
  ValueId x = n.operands[0];
  const TensorType& r = g.type(n.results[0]);
  const TensorType& xt = g.type(x);
  double count =
      static_cast<double>(xt.count()) / static_cast<double>(std::max<int64_t>(1, r.count()));
  ValueId in = x;
  if (xt.dtype != r.dtype) in = b.add(Op::Cast, {x}, typed(r.dtype, xt.shape));
  ValueId s = b.add(Op::Sum, {in}, typed(r.dtype, r.shape),
                    {n.args.size() > 1 ? n.args.at(1) : Arg::ints({}),
                     n.args.size() > 2 ? n.args.at(2) : Arg::boolean(false)});
  return {b.add(Op::Mul, {s}, typed(r.dtype, r.shape), {Arg::real(1.0 / count)})};
}

Values split_as_slices(Node& n, Builder& b) {
  const Graph& g = b.graph();
  const TensorType& x = g.type(n.operands[0]);
  int64_t dim = n.args.integer_or(2, 0);
  if (dim < 0) dim += x.rank();
  Values out;
  int64_t start = 0;
  for (ValueId r : n.results) {
    int64_t size = g.type(r).shape[dim];
    out.push_back(b.add(
        Op::Slice, {n.operands[0]}, typed(x.dtype, g.type(r).shape),
        {Arg::integer(dim), Arg::integer(start), Arg::integer(start + size), Arg::integer(1)}));
    start += size;
  }
  return out;
}

Values visit(Node& n, Builder& b) {
  const Graph& g = b.graph();
  switch (n.op) {
    case Op::Addmm:
      return add_product(n, b, Op::Mm);
    case Op::Baddbmm:
      return add_product(n, b, Op::Bmm);
    case Op::ConvBackward:
      return split_conv_backward(n, b);
    case Op::Mean:
      return mean_as_sum(n, b);
    case Op::Split:
      return split_as_slices(n, b);
    case Op::T: {
      const TensorType& r = g.type(n.results[0]);
      if (r.rank() < 2) return {n.operands[0]};
      return {b.add(Op::Permute, {n.operands[0]}, r, {Arg::ints({1, 0})})};
    }
    case Op::Transpose: {
      const TensorType& r = g.type(n.results[0]);
      int rank = r.rank();
      if (rank == 0) return {n.operands[0]};
      std::vector<int64_t> dims(rank);
      for (int i = 0; i < rank; ++i) dims[i] = i;
      int64_t d0 = n.args.integer(1), d1 = n.args.integer(2);
      std::swap(dims[d0 < 0 ? d0 + rank : d0], dims[d1 < 0 ? d1 + rank : d1]);
      return {b.add(Op::Permute, {n.operands[0]}, r, {Arg::ints(dims)})};
    }
    case Op::UnsafeView:
    case Op::View:
    case Op::Unsqueeze:
    case Op::Squeeze: {
      const TensorType& r = g.type(n.results[0]);
      if (n.op == Op::View && n.args.ints(1) == r.shape) return {};
      return {b.add(Op::View, {n.operands[0]}, r, {Arg::ints(r.shape)})};
    }
    case Op::Detach:
    case Op::Alias:
      return {n.operands[0]};
    case Op::Sum:
      // Integer and bool sums are taken in the result's type.
      if (g.type(n.operands[0]).dtype != g.type(n.results[0]).dtype) {
        TensorType wide = typed(g.type(n.results[0]).dtype, g.type(n.operands[0]).shape);
        ValueId x = b.add(Op::Cast, {n.operands[0]}, wide);
        return {b.add(Op::Sum, {x}, g.type(n.results[0]), {n.args.at(1), n.args.at(2)})};
      }
      return {};
    default:
      return {};
  }
}

}  // namespace

bool canonicalize(Graph& g, const PassContext&) {
  return rewrite(g, visit);
}

}  // namespace tessera
