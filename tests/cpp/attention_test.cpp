// SPDX-License-Identifier: Apache-2.0
// Attention forward and backward against plain loops in double: masks, causal, dropout, strides,
// thread counts.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "kernel_harness.h"
#include "kernels/random.h"
#include "ops/registry.h"

namespace tessera::test {

namespace {

struct Case {
  int64_t b, h, tq, tk, d;
  enum Mask { kNone, kKeyBias, kFull, kBool, kDeadRow } mask = kNone;
  bool causal = false;
  double drop = 0;
  bool tokens_major = false;  // [B,T,H,D] in memory
};

struct Reference {
  std::vector<double> out, lse, dq, dk, dv;
};

constexpr uint32_t kSeed = 1234, kCall = 5, kStream = 3;

double mask_value(Buffer& m, const Case& c, int64_t b, int64_t h, int64_t q, int64_t t) {
  auto pick = [&](int d, int64_t i) { return m.ref.shape[d] == 1 ? 0 : i; };
  const Dims at{pick(0, b), pick(1, h), pick(2, q), pick(3, t)};
  if (c.mask == Case::kBool || c.mask == Case::kDeadRow)
    return m.at<uint8_t>(at) != 0 ? 0.0 : -std::numeric_limits<double>::infinity();
  return m.at<float>(at);
}

Reference reference(const Case& c, Buffer& q, Buffer& k, Buffer& v, Buffer* mask, Buffer& grad) {
  Reference r;
  r.out.resize(c.b * c.h * c.tq * c.d);
  r.lse.resize(c.b * c.h * c.tq);
  r.dq.resize(r.out.size());
  r.dk.resize(c.b * c.h * c.tk * c.d);
  r.dv.resize(r.dk.size());
  const double scale = 1 / std::sqrt(static_cast<double>(c.d));
  std::vector<double> p(c.tk), kept(c.tk), dp(c.tk);
  auto at = [](Buffer& x, int64_t b, int64_t h, int64_t t) {
    return x.data<float>() + b * x.ref.strides[0] + h * x.ref.strides[1] + t * x.ref.strides[2];
  };
  for (int64_t b = 0; b < c.b; ++b)
    for (int64_t h = 0; h < c.h; ++h) {
      const int64_t head = b * c.h + h;
      for (int64_t i = 0; i < c.tq; ++i) {
        double top = -std::numeric_limits<double>::infinity(), sum = 0;
        for (int64_t t = 0; t < c.tk; ++t) {
          p[t] = 0;
          for (int64_t d = 0; d < c.d; ++d)
            p[t] += double(at(q, b, h, i)[d]) * at(k, b, h, t)[d] * scale;
          if (mask != nullptr) p[t] += mask_value(*mask, c, b, h, i, t);
          if (c.causal && t > i) p[t] = -std::numeric_limits<double>::infinity();
          top = std::max(top, p[t]);
        }
        const bool dead = std::isinf(top);
        for (int64_t t = 0; t < c.tk; ++t) {
          p[t] = dead ? 0 : std::exp(p[t] - top);
          sum += p[t];
        }
        r.lse[head * c.tq + i] = dead ? top : top + std::log(sum);
        double delta = 0;
        for (int64_t t = 0; t < c.tk; ++t) {
          if (!dead) p[t] /= sum;
          kept[t] = 1;
          if (c.drop > 0)
            kept[t] =
                kernels::uniform(kSeed, kCall, kStream, (uint64_t(head) << 32) + i * c.tk + t) >=
                        static_cast<float>(c.drop)
                    ? 1 / (1 - c.drop)
                    : 0;
          dp[t] = 0;
          for (int64_t d = 0; d < c.d; ++d) {
            const double g = at(grad, b, h, i)[d];
            r.out[(head * c.tq + i) * c.d + d] += p[t] * kept[t] * at(v, b, h, t)[d];
            r.dv[(head * c.tk + t) * c.d + d] += p[t] * kept[t] * g;
            dp[t] += g * at(v, b, h, t)[d] * kept[t];
          }
          delta += p[t] * dp[t];
        }
        for (int64_t t = 0; t < c.tk; ++t) {
          const double ds = p[t] * (dp[t] - delta) * scale;
          for (int64_t d = 0; d < c.d; ++d) {
            r.dq[(head * c.tq + i) * c.d + d] += ds * at(k, b, h, t)[d];
            r.dk[(head * c.tk + t) * c.d + d] += ds * at(q, b, h, i)[d];
          }
        }
      }
    }
  return r;
}

double worst(Buffer& x, const std::vector<double>& want) {
  double w = 0;
  const Dims& s = x.ref.shape;
  size_t n = 0;
  const int64_t depth = s.size() == 4 ? s[3] : 1;
  for (int64_t b = 0; b < s[0]; ++b)
    for (int64_t h = 0; h < s[1]; ++h)
      for (int64_t t = 0; t < s[2]; ++t)
        for (int64_t d = 0; d < depth; ++d, ++n) {
          const double got = s.size() == 4 ? x.at<float>({b, h, t, d}) : x.at<float>({b, h, t});
          if (std::isinf(want[n]) && got == want[n]) continue;
          const double e = std::abs(got - want[n]);
          w = e <= w ? w : e;  // a NaN sticks
          if (std::isnan(e)) return e;
        }
  return w;
}

Buffer tokens(int64_t b, int64_t h, int64_t t, int64_t d, bool tokens_major) {
  Dims shape{b, h, t, d};
  return tokens_major ? Buffer(DType::F32, shape, strides_of_order(shape, {3, 1, 2, 0}))
                      : Buffer(DType::F32, shape);
}

void check_attention(const Case& c, int threads, bool depth_major_results = false) {
  CAPTURE(c.tq);
  CAPTURE(c.tk);
  CAPTURE(c.d);
  CAPTURE(int(c.mask));
  CAPTURE(c.causal);
  CAPTURE(c.drop);
  CAPTURE(threads);
  Buffer q = tokens(c.b, c.h, c.tq, c.d, c.tokens_major),
         k = tokens(c.b, c.h, c.tk, c.d, c.tokens_major),
         v = tokens(c.b, c.h, c.tk, c.d, c.tokens_major),
         grad = tokens(c.b, c.h, c.tq, c.d, c.tokens_major);
  q.randn(1);
  k.randn(2);
  v.randn(3);
  grad.randn(4);
  auto result = [&](int64_t t) {
    Dims shape{c.b, c.h, t, c.d};
    if (depth_major_results)
      return Buffer(DType::F32, shape, strides_of_order(shape, {2, 3, 1, 0}));
    return tokens(c.b, c.h, t, c.d, !c.tokens_major);
  };
  Buffer out = result(c.tq), lse(DType::F32, {c.b, c.h, c.tq}), dq = result(c.tq),
         dk = result(c.tk), dv = result(c.tk);
  for (Buffer* x : {&out, &dq, &dk, &dv}) x->randn(9);

  const bool boolean = c.mask == Case::kBool || c.mask == Case::kDeadRow;
  Dims mask_shape = c.mask == Case::kKeyBias ? Dims{c.b, 1, 1, c.tk}
                    : c.mask == Case::kFull  ? Dims{c.b, 1, c.tq, c.tk}
                                             : Dims{1, c.h, c.tq, c.tk};
  Buffer mask(boolean ? DType::Bool : DType::F32, mask_shape);
  if (boolean) {
    for (int64_t i = 0; i < c.h * c.tq * c.tk; ++i)
      mask.data<uint8_t>()[i] =
          (i * 2654435761u >> 7) % 3 != 0 && !(c.mask == Case::kDeadRow && i / c.tk % 5 == 2);
  } else {
    mask.randn(5);
    if (c.mask == Case::kKeyBias)
      mask.data<float>()[c.tk / 2] = -std::numeric_limits<float>::infinity();
  }
  Buffer key(DType::I64, {2});
  key.data<int64_t>()[0] = kSeed;
  key.data<int64_t>()[1] = kCall;

  const Reference want = reference(c, q, k, v, c.mask == Case::kNone ? nullptr : &mask, grad);
  std::vector<Buffer*> inputs{&q, &k, &v};
  auto optional = [&](Buffer& b, bool present) {
    if (!present) return Arg::none();
    inputs.push_back(&b);
    return Arg::operand(static_cast<int64_t>(inputs.size()) - 1);
  };
  StepDesc f;
  f.op = Op::Sdpa;
  f.args.list = {Arg::operand(0), Arg::operand(1), Arg::operand(2)};
  f.args.list.push_back(optional(mask, c.mask != Case::kNone));
  f.args.list.push_back(optional(key, c.drop > 0));
  for (Arg a : {Arg::integer(kStream), Arg::real(c.drop), Arg::boolean(c.causal), Arg::none()})
    f.args.list.push_back(a);
  run_step(make_attention, f, inputs, {&out, &lse}, threads);
  const double tolerance = 2e-5;
  CHECK(worst(out, want.out) < tolerance);
  CHECK(worst(lse, want.lse) < tolerance);

  inputs = {&grad, &q, &k, &v};
  StepDesc g;
  g.op = Op::SdpaGrad;
  for (int i = 0; i < 4; ++i) g.args.list.push_back(Arg::operand(i));
  g.args.list.push_back(optional(mask, c.mask != Case::kNone));
  // The gradient reads `out` with unit stride along the depth, as accepts_attention asks.
  Buffer saved = tokens(c.b, c.h, c.tq, c.d, false);
  for (int64_t b = 0; b < c.b; ++b)
    for (int64_t h = 0; h < c.h; ++h)
      for (int64_t t = 0; t < c.tq; ++t)
        for (int64_t d = 0; d < c.d; ++d)
          saved.at<float>({b, h, t, d}) = out.at<float>({b, h, t, d});
  g.args.list.push_back(optional(saved, true));
  g.args.list.push_back(optional(lse, true));
  g.args.list.push_back(optional(key, c.drop > 0));
  for (Arg a : {Arg::integer(kStream), Arg::real(c.drop), Arg::boolean(c.causal), Arg::none()})
    g.args.list.push_back(a);
  run_step(make_attention, g, inputs, {&dq, &dk, &dv}, threads);
  CHECK(worst(dq, want.dq) < tolerance);
  CHECK(worst(dk, want.dk) < tolerance * 4);
  CHECK(worst(dv, want.dv) < tolerance * 4);
}

}  // namespace

TEST_CASE("attention: shapes") {
  for (int threads : {1, 2}) {
    check_attention({2, 3, 7, 7, 8}, threads);
    check_attention({1, 1, 1, 1, 1}, threads);
    check_attention({1, 2, 130, 130, 64}, threads);
    check_attention({1, 2, 33, 70, 20}, threads);
    check_attention({1, 3, 70, 33, 40, Case::kNone, false, 0, true}, threads);
    check_attention({1, 2, 40, 1500, 16}, threads);
  }
}

TEST_CASE("attention: masks") {
  for (int threads : {1, 2})
    for (Case::Mask mask : {Case::kKeyBias, Case::kFull, Case::kBool, Case::kDeadRow}) {
      check_attention({2, 2, 37, 50, 16, mask}, threads);
      check_attention({2, 2, 110, 110, 16, mask, true}, threads);
    }
}

TEST_CASE("attention: causal, also with more queries than keys and the other way round") {
  for (int threads : {1, 2}) {
    check_attention({1, 2, 200, 200, 32, Case::kNone, true}, threads);
    check_attention({1, 2, 200, 90, 32, Case::kNone, true}, threads);
    check_attention({1, 2, 90, 200, 32, Case::kNone, true}, threads);
  }
}

TEST_CASE("attention: dropout agrees with the generator in forward and backward") {
  for (int threads : {1, 2}) {
    check_attention({2, 2, 50, 70, 16, Case::kNone, false, 0.3}, threads);
    check_attention({2, 2, 120, 120, 16, Case::kKeyBias, true, 0.1, true}, threads);
  }
}

TEST_CASE("attention: strides that collide in the cache, results in any order") {
  for (int threads : {1, 2}) {
    check_attention({1, 8, 40, 40, 64, Case::kNone, false, 0, true},
                    threads);  // 8 * 64 * 4 = 2048 bytes per token
    check_attention({1, 3, 40, 50, 12}, threads, true);
  }
}

TEST_CASE("attention: half precision is computed in f32 and rounded once") {
  const int64_t h = 2, t = 40, d = 24;
  // Multiples of 1/64 below 4 are exact in f16.
  auto fill = [](Buffer& wide, Buffer& half, uint32_t salt) {
    for (int64_t i = 0; i < wide.ref.count(); ++i) {
      const float x =
          static_cast<float>(
              static_cast<int>((static_cast<uint32_t>(i) * 2654435761u + salt) >> 24) - 128) /
          64;
      wide.data<float>()[i] = x;
      half.data<_Float16>()[i] = static_cast<_Float16>(x);
    }
  };
  for (int threads : {1, 2}) {
    const Dims shape{1, h, t, d};
    std::vector<Buffer> wide, half;
    for (uint32_t i = 0; i < 4; ++i) {
      wide.emplace_back(DType::F32, shape);
      half.emplace_back(DType::F16, shape);
      fill(wide[i], half[i], i * 977);
    }
    StepDesc f;
    f.op = Op::Sdpa;
    f.args.list = {Arg::operand(0), Arg::operand(1), Arg::operand(2),    Arg::none(), Arg::none(),
                   Arg::integer(0), Arg::real(0),    Arg::boolean(true), Arg::none()};
    Buffer out(DType::F32, shape), lse(DType::F32, {1, h, t}), out16(DType::F16, shape),
        lse16(DType::F32, {1, h, t});
    run_step(make_attention, f, {&wide[0], &wide[1], &wide[2]}, {&out, &lse}, threads);
    run_step(make_attention, f, {&half[0], &half[1], &half[2]}, {&out16, &lse16}, threads);
    StepDesc g;
    g.op = Op::SdpaGrad;
    g.args.list = {Arg::operand(0), Arg::operand(1), Arg::operand(2),    Arg::operand(3),
                   Arg::none(),     Arg::operand(4), Arg::operand(5),    Arg::none(),
                   Arg::integer(0), Arg::real(0),    Arg::boolean(true), Arg::none()};
    std::vector<Buffer> grads, grads16;
    for (int i = 0; i < 3; ++i) {
      grads.emplace_back(DType::F32, shape);
      grads16.emplace_back(DType::F16, shape);
    }
    run_step(make_attention, g, {&wide[3], &wide[0], &wide[1], &wide[2], &out, &lse},
             {&grads[0], &grads[1], &grads[2]}, threads);
    run_step(make_attention, g, {&half[3], &half[0], &half[1], &half[2], &out16, &lse16},
             {&grads16[0], &grads16[1], &grads16[2]}, threads);
    double forward = 0, backward = 0;
    for (int64_t i = 0; i < out.ref.count(); ++i) {
      auto error = [&](Buffer& a, Buffer& b) {
        const double x = a.data<float>()[i];
        return std::abs(x - static_cast<double>(b.data<_Float16>()[i])) /
               std::max(1.0, std::abs(x));
      };
      forward = std::max(forward, error(out, out16));
      for (int j = 0; j < 3; ++j) backward = std::max(backward, error(grads[j], grads16[j]));
    }
    CHECK(std::memcmp(lse.data<float>(), lse16.data<float>(), h * t * 4) == 0);
    CHECK(forward < 5e-4);
    CHECK(backward < 1e-2);  // `out` was rounded before it came back
  }
}

}  // namespace tessera::test
