// SPDX-License-Identifier: Apache-2.0
// Rewrites rows into the few forms the rest of the compiler knows: addmm becomes mm and pointwise
// ops (which fuse as its epilogue), mean becomes sum and a scale, views that reshape become `view`.
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

Values visit(Node& n, Builder& b) {
  const Graph& g = b.graph();
  switch (n.op) {
    case Op::Addmm:
      return add_product(n, b, Op::Mm);
    case Op::Baddbmm:
      return add_product(n, b, Op::Bmm);
    case Op::Mean:
      return mean_as_sum(n, b);
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
    case Op::View:
    case Op::Unsqueeze:
    case Op::Squeeze: {
      const TensorType& r = g.type(n.results[0]);
      if (n.op == Op::View && n.args.ints(1) == r.shape) return {};
      return {b.add(Op::View, {n.operands[0]}, r, {Arg::ints(r.shape)})};
    }
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
