// SPDX-License-Identifier: Apache-2.0
// Every implementation of convolution against the plain loops, in all memory orders, with one and
// two threads.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "kernel_harness.h"
#include "kernels/conv_chwn.h"
#include "kernels/conv_reference.h"
#include "kernels/dnnl.h"
#include "kernels/simd.h"
#include "ops/convolution.h"
#include "ops/registry.h"

namespace tessera {
namespace {

using kernels::ConvShape;
using kernels::Strides5;
using test::Buffer;

struct Case {
  int64_t n, c, k, h, w, kh, kw, sh, sw, ph, pw, dh, dw, groups;
};

// n c k h w kh kw sh sw ph pw dh dw groups
const Case kCases[] = {
    {16, 1, 5, 28, 28, 3, 3, 1, 1, 0, 0, 1, 1, 1},  // tutorial CNN
    {16, 5, 12, 13, 13, 5, 5, 1, 1, 0, 0, 1, 1, 1},
    {64, 5, 12, 13, 13, 5, 5, 1, 1, 0, 0, 1, 1, 1},
    {256, 2, 3, 6, 5, 3, 3, 1, 1, 1, 1, 1, 1, 1},
    {16, 3, 8, 17, 15, 7, 7, 2, 2, 3, 3, 1, 1, 1},  // stem of a ResNet
    {32, 4, 7, 9, 11, 3, 3, 2, 2, 1, 1, 1, 1, 1},
    {16, 4, 6, 12, 12, 3, 3, 1, 1, 2, 2, 2, 2, 1},  // dilation
    {16, 4, 6, 12, 11, 3, 2, 2, 3, 1, 2, 2, 1, 1},
    {16, 4, 6, 13, 13, 3, 3, 2, 2, 2, 2, 2, 2, 1},   // stride and dilation share a factor
    {16, 6, 9, 8, 8, 3, 3, 1, 1, 1, 1, 1, 1, 3},     // groups
    {16, 10, 10, 9, 7, 3, 3, 1, 1, 1, 1, 1, 1, 10},  // depthwise
    {16, 4, 8, 9, 9, 3, 3, 2, 2, 1, 1, 1, 1, 4},     // depthwise with multiplier
    {16, 8, 13, 7, 7, 1, 1, 1, 1, 0, 0, 1, 1, 1},
    {16, 8, 4, 8, 8, 1, 1, 2, 2, 0, 0, 1, 1, 1},  // stride beyond kernel: untouched input
    {16, 17, 19, 4, 4, 3, 3, 1, 1, 1, 1, 1, 1, 1},
    {16, 2, 3, 3, 3, 3, 3, 1, 1, 0, 0, 1, 1, 1},  // one output pixel
    {16, 2, 3, 2, 2, 5, 5, 1, 1, 2, 2, 1, 1, 1},  // kernel larger than the image
    {8, 3, 4, 6, 6, 3, 3, 1, 1, 1, 1, 1, 1, 1},   // half a vector
    {24, 3, 4, 6, 6, 3, 3, 1, 1, 1, 1, 1, 1, 1},
    {19, 3, 4, 6, 7, 3, 3, 2, 1, 1, 0, 1, 1, 1},
    {3, 2, 2, 5, 5, 2, 2, 1, 1, 0, 0, 1, 1, 1},
    {83, 2, 5, 5, 5, 3, 3, 1, 1, 1, 1, 1, 1, 1},  // all kinds of batch section
    {1, 3, 8, 10, 10, 3, 3, 1, 1, 1, 1, 1, 1, 1},
    {4, 16, 32, 14, 14, 3, 3, 1, 1, 1, 1, 1, 1, 1},
    {2, 64, 48, 8, 8, 1, 1, 2, 2, 0, 0, 1, 1, 1},
    {2, 32, 32, 9, 9, 3, 3, 1, 1, 1, 1, 1, 1, 32},
};

const std::vector<int> kChwn{0, 3, 2, 1}, kChannelsLast{1, 3, 2, 0}, kRowMajor{3, 2, 1, 0};
const std::vector<int> kOrders[] = {kChwn, kChannelsLast, kRowMajor};

ConvShape shape_of(const Case& c) {
  ConvShape s;
  s.n = c.n, s.c = c.c, s.k = c.k, s.groups = c.groups;
  s.in = {1, c.h, c.w}, s.kernel = {1, c.kh, c.kw};
  s.stride = {1, c.sh, c.sw}, s.pad = {0, c.ph, c.pw}, s.dilation = {1, c.dh, c.dw};
  for (int d = 1; d < 3; ++d)
    s.out[d] = (s.in[d] + 2 * s.pad[d] - s.dilation[d] * (s.kernel[d] - 1) - 1) / s.stride[d] + 1;
  return s;
}

Strides5 strides5(const Buffer& b) {
  const Dims& s = b.ref.strides;
  return {s[0], s[1], 0, s[2], s[3]};
}

void poison(Buffer& b) {
  std::fill_n(b.data<float>(), b.ref.count(), std::numeric_limits<float>::quiet_NaN());
}

// Largest difference relative to the size of the sums involved; NaN (a hole) counts as infinite.
double error(Buffer& got, Buffer& want) {
  double worst = 0, scale = 1e-3;
  for (int64_t i = 0; i < want.ref.count(); ++i)
    scale = std::max(scale, std::abs(static_cast<double>(want.data<float>()[i])));
  for (int64_t i = 0; i < want.ref.count(); ++i) {
    const double d = std::abs(static_cast<double>(got.data<float>()[i]) - want.data<float>()[i]);
    if (!(d <= worst)) worst = std::isnan(d) ? std::numeric_limits<double>::infinity() : d;
  }
  for (size_t i = got.memory.size() - 64; i < got.memory.size(); ++i)
    if (got.memory[i] != std::byte{0}) return std::numeric_limits<double>::infinity();
  return worst / scale;
}

struct Problem {
  ConvShape s;
  Buffer x, w, y, bias;
  Problem(const Case& c, const std::vector<int>& order)
      : s(shape_of(c)),
        x(DType::F32, {s.n, s.c, s.in[1], s.in[2]},
          test::strides_of_order({s.n, s.c, s.in[1], s.in[2]}, order)),
        w(DType::F32, {s.k, s.group_c(), s.kernel[1], s.kernel[2]}),
        y(DType::F32, {s.n, s.k, s.out[1], s.out[2]},
          test::strides_of_order({s.n, s.k, s.out[1], s.out[2]}, order)),
        bias(DType::F32, {s.k}) {
    x.randn(1), w.randn(2), y.randn(3), bias.randn(4);
  }
};

std::vector<Arg> geometry_args(const Case& c) {
  return {Arg::ints({c.sh, c.sw}), Arg::ints({c.ph, c.pw}), Arg::ints({c.dh, c.dw})};
}

StepDesc forward_desc(const Case& c, bool bias) {
  StepDesc d;
  d.op = Op::Convolution;
  d.args.list = {Arg::operand(0), Arg::operand(1), bias ? Arg::operand(2) : Arg::none()};
  for (const Arg& a : geometry_args(c)) d.args.list.push_back(a);
  d.args.list.push_back(Arg::boolean(false));
  d.args.list.push_back(Arg::ints({0, 0}));
  d.args.list.push_back(Arg::integer(c.groups));
  return d;
}

StepDesc grad_desc(Op op, const Case& c, const Dims& shape) {
  StepDesc d;
  d.op = op;
  d.args.list = {Arg::operand(0), Arg::operand(1), Arg::ints(shape)};
  for (const Arg& a : geometry_args(c)) d.args.list.push_back(a);
  d.args.list.push_back(Arg::integer(c.groups));
  return d;
}

constexpr double kTolerance = 5e-6;  // sums of up to 50,000 products in f32

std::string name(const Case& c) {
  return fmt::format(
      "n{} c{} k{} {}x{} kernel {}x{} stride {}x{} pad {}x{} dilation {}x{} groups {}", c.n, c.c,
      c.k, c.h, c.w, c.kh, c.kw, c.sh, c.sw, c.ph, c.pw, c.dh, c.dw, c.groups);
}

TEST_CASE("convolution equals the plain loops in every order") {
  for (const Case& c : kCases)
    for (const auto& order : kOrders)
      for (bool bias : {false, true}) {
        CAPTURE(name(c));
        CAPTURE(order[0]);
        Problem p(c, order);
        Buffer want = p.y;
        kernels::conv_forward_reference<float>(
            p.s, p.x.data<float>(), strides5(p.x), p.w.data<float>(), strides5(p.w),
            bias ? p.bias.data<float>() : nullptr, want.data<float>(), strides5(want));
        Buffer one = p.y, two = p.y;
        poison(one), poison(two);
        std::vector<Buffer*> inputs{&p.x, &p.w};
        if (bias) inputs.push_back(&p.bias);
        test::run_step(make_convolution, forward_desc(c, bias), inputs, {&one}, 1);
        test::run_step(make_convolution, forward_desc(c, bias), inputs, {&two}, 2);
        CHECK(error(one, want) < kTolerance);
        CHECK(one.memory == two.memory);
      }
}

TEST_CASE("input gradient equals the plain loops in every order") {
  for (const Case& c : kCases)
    for (const auto& order : kOrders) {
      CAPTURE(name(c));
      CAPTURE(order[0]);
      Problem p(c, order);
      Buffer want = p.x;
      kernels::conv_input_grad_reference<float>(p.s, p.y.data<float>(), strides5(p.y),
                                                p.w.data<float>(), strides5(p.w), nullptr,
                                                want.data<float>(), strides5(want));
      Buffer one = p.x, two = p.x;
      poison(one), poison(two);
      const StepDesc d = grad_desc(Op::ConvInputGrad, c, p.x.ref.shape);
      test::run_step(make_convolution, d, {&p.y, &p.w}, {&one}, 1);
      test::run_step(make_convolution, d, {&p.y, &p.w}, {&two}, 2);
      CHECK(error(one, want) < kTolerance);
      CHECK(one.memory == two.memory);
    }
}

TEST_CASE("weight gradient equals the plain loops in every order") {
  for (const Case& c : kCases)
    for (const auto& order : kOrders) {
      CAPTURE(name(c));
      CAPTURE(order[0]);
      Problem p(c, order);
      Buffer want = p.w;
      kernels::conv_weight_grad_reference<float>(p.s, p.y.data<float>(), strides5(p.y),
                                                 p.x.data<float>(), strides5(p.x),
                                                 want.data<float>(), strides5(want));
      Buffer one = p.w, two = p.w;
      poison(one), poison(two);
      const StepDesc d = grad_desc(Op::ConvWeightGrad, c, p.w.ref.shape);
      test::run_step(make_convolution, d, {&p.y, &p.x}, {&one}, 1);
      test::run_step(make_convolution, d, {&p.y, &p.x}, {&two}, 2);
      CHECK(error(one, want) < kTolerance);
      CHECK(one.memory == two.memory);
    }
}

TEST_CASE("CHWN kernels built for AVX2 agree too") {
  const kernels::ConvChwnKernels& table = kernels::conv_chwn_kernels(kernels::Isa::kV3);
  for (const Case& c : kCases) {
    CAPTURE(name(c));
    Problem p(c, kChwn);
    const float* bias = p.bias.data<float>();
    Buffer want = p.y, got = p.y;
    poison(got);
    kernels::conv_forward_reference<float>(p.s, p.x.data<float>(), strides5(p.x), p.w.data<float>(),
                                           strides5(p.w), bias, want.data<float>(), strides5(want));
    const auto forward = kernels::ConvChwnPlan::forward(p.s, table);
    for (int part = 0; part < 3; ++part)
      forward.run(p.x.data<float>(), p.w.data<float>(), bias, got.data<float>(), part, 3);
    CHECK(error(got, want) < kTolerance);

    Buffer want_x = p.x, got_x = p.x;
    poison(got_x);
    kernels::conv_input_grad_reference<float>(p.s, p.y.data<float>(), strides5(p.y),
                                              p.w.data<float>(), strides5(p.w), nullptr,
                                              want_x.data<float>(), strides5(want_x));
    const auto back = kernels::ConvChwnPlan::input_grad(p.s, table);
    back.run(p.y.data<float>(), p.w.data<float>(), nullptr, got_x.data<float>(), 0, 1);
    CHECK(error(got_x, want_x) < kTolerance);

    Buffer want_w = p.w, got_w = p.w;
    poison(got_w);
    kernels::conv_weight_grad_reference<float>(p.s, p.y.data<float>(), strides5(p.y),
                                               p.x.data<float>(), strides5(p.x),
                                               want_w.data<float>(), strides5(want_w));
    const kernels::ConvChwnWeightPlan weights(p.s, table);
    std::vector<float> scratch(weights.scratch_floats() + 1);
    if (weights.pads()) weights.pad(p.x.data<float>(), scratch.data(), 0, 1);
    weights.sum(p.y.data<float>(), p.x.data<float>(), got_w.data<float>(), scratch.data(), 0, 1);
    if (weights.splits()) weights.combine(scratch.data(), got_w.data<float>(), 0, 1);
    CHECK(error(got_w, want_w) < kTolerance);
  }
}

TEST_CASE("transposed convolution is the input gradient with a bias") {
  for (const Case& c : kCases)
    for (const auto& order : kOrders) {
      if (c.kh > c.h) continue;
      CAPTURE(name(c));
      CAPTURE(order[0]);
      Problem p(c, order);
      Buffer bias(DType::F32, {p.s.c});
      bias.randn(5);
      Buffer want = p.x;
      kernels::conv_input_grad_reference<float>(
          p.s, p.y.data<float>(), strides5(p.y), p.w.data<float>(), strides5(p.w),
          bias.data<float>(), want.data<float>(), strides5(want));
      StepDesc d = forward_desc(c, true);
      d.args.list[6] = Arg::boolean(true);
      Buffer one = p.x, two = p.x;
      poison(one), poison(two);
      test::run_step(make_convolution, d, {&p.y, &p.w, &bias}, {&one}, 1);
      test::run_step(make_convolution, d, {&p.y, &p.w, &bias}, {&two}, 2);
      CHECK(error(one, want) < kTolerance);
      CHECK(one.memory == two.memory);
    }
}

TEST_CASE("one and three spatial dims") {
  SUBCASE("1-D") {
    Buffer x(DType::F32, {3, 4, 20}), w(DType::F32, {6, 2, 3}), y(DType::F32, {3, 6, 10});
    x.randn(1), w.randn(2);
    StepDesc d;
    d.op = Op::Convolution;
    d.args.list = {Arg::operand(0),     Arg::operand(1), Arg::none(),
                   Arg::ints({2}),      Arg::ints({2}),  Arg::ints({2}),
                   Arg::boolean(false), Arg::ints({0}),  Arg::integer(2)};
    poison(y);
    test::run_step(make_convolution, d, {&x, &w}, {&y}, 1);
    for (int64_t n = 0; n < 3; ++n)
      for (int64_t k = 0; k < 6; ++k)
        for (int64_t o = 0; o < 10; ++o) {
          double sum = 0;
          for (int64_t c = 0; c < 2; ++c)
            for (int64_t t = 0; t < 3; ++t) {
              const int64_t i = o * 2 - 2 + t * 2;
              if (i >= 0 && i < 20)
                sum += x.at<float>({n, k / 3 * 2 + c, i}) * w.at<float>({k, c, t});
            }
          CHECK(y.at<float>({n, k, o}) == doctest::Approx(sum).epsilon(1e-5));
        }
  }
  SUBCASE("3-D") {
    Buffer x(DType::F32, {2, 2, 4, 5, 6}), w(DType::F32, {3, 2, 2, 3, 1}),
        y(DType::F32, {2, 3, 3, 5, 6});
    x.randn(1), w.randn(2);
    poison(y);
    StepDesc d;
    d.op = Op::Convolution;
    d.args.list = {Arg::operand(0),      Arg::operand(1),      Arg::none(),
                   Arg::ints({1, 1, 1}), Arg::ints({0, 1, 0}), Arg::ints({1, 1, 1}),
                   Arg::boolean(false),  Arg::ints({0, 0, 0}), Arg::integer(1)};
    test::run_step(make_convolution, d, {&x, &w}, {&y}, 1);
    for (int64_t k = 0; k < 3; ++k)
      for (int64_t a = 0; a < 3; ++a)
        for (int64_t b = 0; b < 5; ++b)
          for (int64_t e = 0; e < 6; ++e) {
            double sum = 0;
            for (int64_t c = 0; c < 2; ++c)
              for (int64_t r = 0; r < 2; ++r)
                for (int64_t q = 0; q < 3; ++q)
                  if (b + q - 1 >= 0 && b + q - 1 < 5)
                    sum += x.at<float>({1, c, a + r, b + q - 1, e}) * w.at<float>({k, c, r, q, 0});
            CHECK(y.at<float>({1, k, a, b, e}) == doctest::Approx(sum).epsilon(1e-4));
          }
  }
}

TEST_CASE("kept weights are packed once and reused") {
  Problem p(kCases[std::size(kCases) - 3], kChannelsLast);
  kernels::DnnlConvDesc d{.direction = kernels::ConvDirection::kForward,
                          .shape = p.s,
                          .x = strides5(p.x),
                          .w = strides5(p.w),
                          .y = strides5(p.y),
                          .keep_weights = true};
  auto kept = kernels::DnnlConvolution::make(d);
  d.keep_weights = false;
  auto plain = kernels::DnnlConvolution::make(d);
  REQUIRE(kept);
  REQUIRE(plain);
  CHECK(kept->scratch_bytes() <= plain->scratch_bytes());
  std::vector<std::byte> scratch(plain->scratch_bytes() + 64);
  auto* aligned = scratch.data() + (64 - reinterpret_cast<uintptr_t>(scratch.data()) % 64) % 64;
  Buffer a = p.y, b = p.y;
  for (int run = 0; run < 2; ++run) {
    poison(a), poison(b);
    kept->run(p.x.memory.data(), p.w.memory.data(), nullptr, a.memory.data(), aligned);
    plain->run(p.x.memory.data(), p.w.memory.data(), nullptr, b.memory.data(), aligned);
    CHECK(a.memory == b.memory);
  }
}

TEST_CASE("double and integer convolutions take the plain loops") {
  Buffer x(DType::F64, {1, 1, 3, 3}), w(DType::F64, {1, 1, 2, 2}), y(DType::F64, {1, 1, 2, 2});
  for (int i = 0; i < 9; ++i) x.data<double>()[i] = i;
  for (int i = 0; i < 4; ++i) w.data<double>()[i] = i + 1;
  const Case c{1, 1, 1, 3, 3, 2, 2, 1, 1, 0, 0, 1, 1, 1};
  test::run_step(make_convolution, forward_desc(c, false), {&x, &w}, {&y}, 2);
  const double want[] = {0 + 2 + 9 + 16, 1 + 4 + 12 + 20, 3 + 8 + 18 + 28, 4 + 10 + 21 + 32};
  for (int i = 0; i < 4; ++i) CHECK(y.data<double>()[i] == want[i]);
}

TEST_CASE("half precision is computed in float and rounded once") {
  const Case c{19, 3, 4, 6, 7, 3, 3, 2, 1, 1, 0, 1, 1, 1};
  for (DType type : {DType::F16, DType::BF16})
    for (const auto& order : kOrders) {
      CAPTURE(name_of(type));
      CAPTURE(order[0]);
      Problem p(c, order);
      // Halves and the floats they stand for; both formats hold small multiples of 1/8 exactly.
      auto halves = [&](Buffer& b) {
        Buffer h(type, b.ref.shape, b.ref.strides);
        for (int64_t i = 0; i < b.ref.count(); ++i) {
          float& f = b.data<float>()[i];
          f = std::round(f * 8) / 8;
          h.data<uint16_t>()[i] =
              type == DType::F16 ? kernels::v3::f32_to_f16(f) : kernels::v3::f32_to_bf16(f);
        }
        return h;
      };
      Buffer x = halves(p.x), w = halves(p.w), bias = halves(p.bias);
      Buffer want = p.y;
      kernels::conv_forward_reference<float>(p.s, p.x.data<float>(), strides5(p.x),
                                             p.w.data<float>(), strides5(p.w), p.bias.data<float>(),
                                             want.data<float>(), strides5(want));
      for (int threads : {1, 2}) {
        Buffer y(type, p.y.ref.shape, p.y.ref.strides);
        test::run_step(make_convolution, forward_desc(c, true), {&x, &w, &bias}, {&y}, threads);
        int64_t wrong = 0;
        for (int64_t i = 0; i < want.ref.count(); ++i) {
          // Sums of multiples of 1/64 are exact in f32, so one rounding gives one answer.
          const float f = want.data<float>()[i];
          wrong += y.data<uint16_t>()[i] !=
                   (type == DType::F16 ? kernels::v3::f32_to_f16(f) : kernels::v3::f32_to_bf16(f));
        }
        CHECK(wrong == 0);
      }
    }
}

TEST_CASE("orders a convolution reads without a copy") {
  auto ref = [](const Dims& shape, const Dims& strides) {
    return TensorRef{DType::F32, shape, strides, 0, 0};
  };
  const Dims shape{16, 4, 6, 5};
  for (const auto& order : kOrders)
    CHECK(
        accepts_convolution(Op::Convolution, 0, ref(shape, test::strides_of_order(shape, order))));
  const TensorRef chwn = ref(shape, test::strides_of_order(shape, kChwn));
  CHECK(accepts_convolution(Op::ConvWeightGrad, 1, chwn));
  CHECK_FALSE(accepts_convolution(Op::Convolution, 1, chwn));
  CHECK_FALSE(accepts_convolution(Op::Convolution, 0, ref(shape, {0, 30, 5, 1})));
}

}  // namespace
}  // namespace tessera
