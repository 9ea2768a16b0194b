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

// bias * beta + alpha * (a @ b). Of half precision the product is in f32: the sum is rounded once.
Values add_product(Node& n, Builder& b, Op product) {
  const Graph& g = b.graph();
  const TensorType t = typed(g.type(n.results[0]).dtype, g.type(n.results[0]).shape);
  const bool half = t.dtype == DType::F16 || t.dtype == DType::BF16;
  const TensorType wide = typed(half ? DType::F32 : t.dtype, t.shape);
  auto cast = [&](ValueId v, DType dtype) {
    const TensorType from = g.type(v);
    return from.dtype == dtype ? v : b.add(Op::Cast, {v}, typed(dtype, from.shape));
  };
  ValueId c = b.add(product, {n.operands[1], n.operands[2]}, wide);
  double beta = n.args.real_or(3, 1), alpha = n.args.real_or(4, 1);
  c = scaled(b, c, alpha);
  if (beta != 0) c = b.add(Op::Add, {c, scaled(b, cast(n.operands[0], wide.dtype), beta)}, wide);
  return {cast(c, t.dtype)};
}

// One op per gradient that is asked for. A transposed convolution is the input gradient of a plain
// one, so its own input gradient is a plain convolution and its weight gradient has input and
// output gradient swapped.
Values split_conv_backward(Node& n, Builder& b) {
  const Graph& g = b.graph();
  const Args& a = n.args;
  ValueId gy = n.arg_value(0), x = n.arg_value(1), w = n.arg_value(2);
  bool transposed = a.boolean(7);
  std::vector<int64_t> mask = a.ints(10);
  Values out = n.results;  // what is not asked for is not used
  auto like = [&](ValueId v) { return typed(g.type(v).dtype, g.type(v).shape); };
  auto gradient = [&](Op op, ValueId first, ValueId second, ValueId of) {
    Args args{{Arg::operand(0), Arg::operand(1), Arg::ints(g.type(of).shape), a.at(4), a.at(5),
               a.at(6), a.at(9)}};
    return b.add_node(op, {first, second}, std::move(args), {like(of)})[0];
  };
  if (mask[0] && transposed) {
    Args args{{Arg::operand(0), Arg::operand(1), Arg::none(), a.at(4), a.at(5), a.at(6),
               Arg::boolean(false), Arg::ints(std::vector<int64_t>(a.ints(4).size(), 0)), a.at(9)}};
    out[0] = b.add_node(Op::Convolution, {gy, w}, std::move(args), {like(x)})[0];
  } else if (mask[0]) {
    out[0] = gradient(Op::ConvInputGrad, gy, w, x);
  }
  if (mask[1])
    out[1] = transposed ? gradient(Op::ConvWeightGrad, x, gy, w)
                        : gradient(Op::ConvWeightGrad, gy, x, w);
  if (mask[2]) {
    std::vector<int64_t> dims;
    for (int d = 0; d < g.type(gy).rank(); ++d)
      if (d != 1) dims.push_back(d);
    out[2] = b.add(Op::Sum, {gy}, typed(g.type(gy).dtype, {g.type(gy).shape[1]}),
                   {Arg::ints(dims), Arg::boolean(false)});
  }
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
      // Sums are taken in the result's type; the row itself widens integers.
      if (g.type(n.operands[0]).dtype != g.type(n.results[0]).dtype &&
          is_float(g.type(n.results[0]).dtype)) {
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
