// SPDX-License-Identifier: Apache-2.0
// Batch norm as two reductions in one pass over the data and pointwise work around them, so that
// activation, residual and mask fuse with it. The sums are taken of values shifted by one sample
// per channel: the plain E[x^2] - E[x]^2 loses all digits when the mean is large against the
// deviation. Half precision is computed in f32, as PyTorch does; the casts fuse too.
#include <limits>

#include "passes/pass.h"

namespace tessera {
namespace {

using Values = std::vector<ValueId>;

struct Emit {
  Builder& b;
  TensorType full;     // of x, in f32
  TensorType channel;  // [C]
  std::vector<int64_t> reduced;
  double count = 1;

  Emit(Builder& builder, ValueId x) : b(builder) {
    const TensorType& t = b.graph().type(x);
    full = {DType::F32, t.shape, {}};
    channel = {DType::F32, {t.shape[1]}, {}};
    for (int d = 0; d < t.rank(); ++d)
      if (d != 1) {
        reduced.push_back(d);
        count *= static_cast<double>(t.shape[d]);
      }
  }

  ValueId cast(ValueId v, DType dtype) {
    if (v == kNoValue || b.graph().type(v).dtype == dtype) return v;
    const Dims shape = b.graph().type(v).shape;
    return b.add(Op::Cast, {v}, {dtype, shape, {}});
  }
  ValueId f32(ValueId v) { return cast(v, DType::F32); }
  // The results in the types of those of `n`; what is not made here stays.
  Values results(const Node& n, Values made) {
    for (size_t i = 0; i < made.size(); ++i)
      if (made[i] != n.results[i]) made[i] = cast(made[i], b.graph().type(n.results[i]).dtype);
    return made;
  }

  // [C] seen as [1, C, 1, 1] so that it broadcasts against x
  ValueId wide(ValueId v) {
    Dims shape(full.shape.size(), 1);
    shape[1] = full.shape[1];
    return b.add(Op::View, {v}, {b.graph().type(v).dtype, shape, {}}, {Arg::ints(shape)});
  }
  ValueId on_x(Op op, ValueId a, ValueId c) { return b.add(op, {a, c}, full); }
  ValueId on_c(Op op, ValueId a, ValueId c) { return b.add(op, {a, c}, channel); }
  ValueId on_c(Op op, ValueId a, double c) { return b.add(op, {a}, channel, {Arg::real(c)}); }
  ValueId sum(ValueId v) {
    return b.add(Op::Sum, {v}, {full.dtype, channel.shape, {}},
                 {Arg::ints(reduced), Arg::boolean(false)});
  }
  ValueId rsqrt_of(ValueId var, double eps) {
    return b.add(Op::Rsqrt, {on_c(Op::Add, var, eps)}, channel);
  }
  // (x - mean) * rstd * w + bias
  ValueId normalised(ValueId x, ValueId mean, ValueId rstd, ValueId w, ValueId bias) {
    ValueId scale = w == kNoValue ? rstd : on_c(Op::Mul, rstd, w);
    ValueId y = on_x(Op::Mul, on_x(Op::Sub, x, wide(mean)), wide(scale));
    return bias == kNoValue ? y : on_x(Op::Add, y, wide(bias));
  }
  // One sample of every channel, as a view of x
  ValueId first_of_channel(ValueId x) {
    ValueId v = x;
    Dims shape = full.shape;
    const DType dtype = b.graph().type(x).dtype;
    auto first = [&](int64_t dim) {
      shape.erase(shape.begin() + dim);
      v = b.add(Op::Select, {v}, {dtype, shape, {}}, {Arg::integer(dim), Arg::integer(0)});
    };
    first(0);
    while (shape.size() > 1) first(1);
    return v;
  }
};

Values training_forward(Node& n, Builder& b) {
  Emit e(b, n.arg_value(0));
  ValueId x = e.f32(n.arg_value(0)), w = e.f32(n.arg_value_or_none(1)),
          bias = e.f32(n.arg_value_or_none(2)), rm = e.f32(n.arg_value_or_none(3)),
          rv = e.f32(n.arg_value_or_none(4));
  double momentum = n.args.real(6), eps = n.args.real(7);
  if (!n.args.boolean(5)) {
    ValueId rstd = e.rsqrt_of(rv, eps);
    return e.results(n, {e.normalised(x, rm, rstd, w, bias), n.results[1], n.results[2], rm, rv});
  }
  ValueId shift = e.f32(e.first_of_channel(n.arg_value(0)));
  ValueId d = e.on_x(Op::Sub, x, e.wide(shift));
  ValueId s1 = e.sum(d), s2 = e.sum(e.on_x(Op::Mul, d, d));
  ValueId m = e.on_c(Op::Mul, s1, 1 / e.count);
  ValueId mean = e.on_c(Op::Add, m, shift);
  // The subtrahend is never infinite, so that a variance that is too large stays infinite.
  ValueId square = e.on_c(Op::Minimum, e.on_c(Op::Mul, m, m), std::numeric_limits<float>::max());
  ValueId var = e.on_c(Op::Sub, e.on_c(Op::Mul, s2, 1 / e.count), square);
  var = e.on_c(Op::Maximum, var, 0.0);
  ValueId rstd = e.rsqrt_of(var, eps);
  Values out{e.normalised(x, mean, rstd, w, bias), mean, rstd, n.results[3], n.results[4]};
  auto blend = [&](ValueId old, ValueId now, double scale) {
    return e.on_c(Op::Add, e.on_c(Op::Mul, old, 1 - momentum),
                  e.on_c(Op::Mul, now, momentum * scale));
  };
  if (rm != kNoValue) out[3] = blend(rm, mean, 1);
  if (rv != kNoValue) out[4] = blend(rv, var, e.count / (e.count - 1));
  return e.results(n, out);
}

Values backward(Node& n, Builder& b) {
  Emit e(b, n.arg_value(1));
  ValueId gy = e.f32(n.arg_value(0)), x = e.f32(n.arg_value(1)), w = e.f32(n.arg_value_or_none(2));
  bool train = n.args.boolean(7);
  double eps = n.args.real(8);
  ValueId mean = e.f32(train ? n.arg_value(5) : n.arg_value(3));
  ValueId rstd = train ? e.f32(n.arg_value(6)) : e.rsqrt_of(e.f32(n.arg_value(4)), eps);
  ValueId centred = e.on_x(Op::Sub, x, e.wide(mean));
  ValueId total = e.sum(gy), dot = e.sum(e.on_x(Op::Mul, gy, centred));
  ValueId scale = w == kNoValue ? rstd : e.on_c(Op::Mul, rstd, w);
  ValueId dx = gy;
  if (train) {
    ValueId mean_gy = e.on_c(Op::Mul, total, 1 / e.count);
    ValueId slope = e.on_c(Op::Mul, e.on_c(Op::Mul, e.on_c(Op::Mul, rstd, rstd), dot), 1 / e.count);
    dx = e.on_x(Op::Sub, e.on_x(Op::Sub, gy, e.wide(mean_gy)),
                e.on_x(Op::Mul, centred, e.wide(slope)));
  }
  dx = e.on_x(Op::Mul, dx, e.wide(scale));
  return e.results(n, {dx, e.on_c(Op::Mul, dot, rstd), total});
}

Values evaluation(Node& n, Builder& b) {
  Emit e(b, n.arg_value(0));
  ValueId x = e.f32(n.arg_value(0)), w = e.f32(n.arg_value_or_none(1)),
          bias = e.f32(n.arg_value_or_none(2)), rm = e.f32(n.arg_value(3)),
          rv = e.f32(n.arg_value(4));
  ValueId y = e.normalised(x, rm, e.rsqrt_of(rv, n.args.real(6)), w, bias);
  return e.results(n, {y, n.results[1], n.results[2]});
}

}  // namespace

bool decompose_batch_norm(Graph& g, const PassContext&) {
  return rewrite(g, [](Node& n, Builder& b) -> Values {
    if (b.graph().type(n.results[0]).dtype == DType::F64) return {};
    if (n.op == Op::BatchNorm) return training_forward(n, b);
    if (n.op == Op::BatchNormEval) return evaluation(n, b);
    if (n.op == Op::BatchNormGrad) return backward(n, b);
    return {};
  });
}

}  // namespace tessera
