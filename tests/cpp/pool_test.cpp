// SPDX-License-Identifier: Apache-2.0
// Pooling against loops written from ATen's definition, in all memory orders, with one and two
// threads.
#include "kernels/pool.h"

#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "kernel_harness.h"
#include "ops/registry.h"
#include "row_test_util.h"

namespace tessera {
namespace {

using test::Buffer;

struct Case {
  int64_t n, c, h, w, kh, kw, sh, sw, ph, pw, dh, dw;
  bool ceil;
};

const Case kCases[] = {
    {16, 5, 26, 26, 2, 2, 2, 2, 0, 0, 1, 1, false},  // tutorial CNN
    {4, 24, 17, 15, 3, 3, 2, 2, 1, 1, 1, 1, false},  // ResNet
    {16, 3, 7, 9, 2, 2, 2, 2, 0, 0, 1, 1, false},    // uncovered last row and column
    {16, 3, 7, 9, 2, 2, 2, 2, 0, 0, 1, 1, true},
    {8, 4, 9, 9, 3, 3, 2, 2, 1, 1, 1, 1, true},
    {19, 5, 8, 7, 3, 2, 1, 1, 1, 1, 1, 1, false},
    {3, 7, 11, 12, 3, 3, 2, 2, 1, 1, 2, 2, false},  // dilation
    {1, 2, 6, 6, 3, 2, 2, 1, 1, 1, 1, 2, false},    // padding cuts taps off a dilated window
    {2, 33, 10, 10, 3, 3, 3, 3, 0, 0, 1, 1, false},
    {1, 20, 6, 6, 6, 6, 6, 6, 0, 0, 1, 1, false},  // global
    {1, 1, 5, 5, 2, 2, 2, 1, 0, 0, 1, 1, false},
    {2, 3, 4, 300, 2, 3, 2, 2, 1, 1, 1, 1, false},  // wider than one block of columns
    {2, 2, 3, 40, 2, 1, 1, 3, 0, 0, 1, 1, false},   // gaps between windows
};

const std::vector<int> kOrders[] = {{0, 3, 2, 1}, {1, 3, 2, 0}, {3, 2, 1, 0}, {2, 3, 0, 1}};

int64_t pooled(int64_t in, int64_t k, int64_t s, int64_t p, int64_t d, bool ceil) {
  int64_t out = (in + 2 * p - d * (k - 1) - 1 + (ceil ? s - 1 : 0)) / s + 1;
  if (ceil && (out - 1) * s >= in + p) --out;
  return out;
}

Buffer buffer(DType t, const Dims& shape, const std::vector<int>& order) {
  return Buffer(t, shape, test::strides_of_order(shape, order));
}

template <typename F>
void for_each_index(const Dims& shape, F f) {
  for (int64_t n = 0; n < shape[0]; ++n)
    for (int64_t c = 0; c < shape[1]; ++c)
      for (int64_t h = 0; h < shape[2]; ++h)
        for (int64_t w = 0; w < shape[3]; ++w) f(Dims{n, c, h, w});
}

void spoil(Buffer& b) {
  std::fill_n(b.memory.begin(), b.ref.bytes(), std::byte{0xff});
}

bool guard_intact(const Buffer& b) {
  for (size_t i = b.memory.size() - 64; i < b.memory.size(); ++i)
    if (b.memory[i] != std::byte{0}) return false;
  return true;
}

void same(Buffer& got, Buffer& want, double tolerance = 0) {
  double worst = 0;
  for (int64_t i = 0; i < want.ref.count(); ++i) {
    const double d = std::abs(static_cast<double>(got.data<float>()[i]) - want.data<float>()[i]);
    if (!(d <= worst)) worst = std::isnan(d) ? std::numeric_limits<double>::infinity() : d;
  }
  CHECK(worst <= tolerance);
  CHECK(guard_intact(got));
}

// Zeros of either sign are equal, and so are all NaNs.
bool equal_numbers(Buffer& got, Buffer& want) {
  bool equal = guard_intact(got);
  for (int64_t i = 0; i < want.ref.count(); ++i) {
    const float a = got.data<float>()[i], b = want.data<float>()[i];
    equal &= a == b || (std::isnan(a) && std::isnan(b));
  }
  return equal;
}

// y, index from x as ATen defines them.
void max_by_definition(const Case& p, Buffer& x, Buffer& y, Buffer& index) {
  for_each_index(y.ref.shape, [&](const Dims& i) {
    int64_t h0 = i[2] * p.sh - p.ph, w0 = i[3] * p.sw - p.pw;
    const int64_t h1 = std::min(h0 + (p.kh - 1) * p.dh + 1, p.h);
    const int64_t w1 = std::min(w0 + (p.kw - 1) * p.dw + 1, p.w);
    while (h0 < 0) h0 += p.dh;
    while (w0 < 0) w0 += p.dw;
    float best = -std::numeric_limits<float>::infinity();
    int64_t at = h0 * p.w + w0;
    for (int64_t h = h0; h < h1; h += p.dh)
      for (int64_t w = w0; w < w1; w += p.dw) {
        const float v = x.at<float>({i[0], i[1], h, w});
        if (v > best || std::isnan(v)) best = v, at = h * p.w + w;
      }
    y.at<float>(i) = best;
    index.at<int64_t>(i) = at;
  });
}

std::vector<Arg> window_args(const Case& p, bool dilation) {
  std::vector<Arg> a{Arg::ints({p.kh, p.kw}), Arg::ints({p.sh, p.sw}), Arg::ints({p.ph, p.pw})};
  if (dilation) a.push_back(Arg::ints({p.dh, p.dw}));
  a.push_back(Arg::boolean(p.ceil));
  return a;
}

StepDesc desc(Op op, std::vector<Arg> args) {
  StepDesc d;
  d.op = op;
  d.args.list = std::move(args);
  return d;
}

StepDesc max_desc(const Case& p) {
  std::vector<Arg> a{Arg::operand(0)};
  for (Arg& v : window_args(p, true)) a.push_back(v);
  return desc(Op::MaxPool, a);
}

StepDesc max_grad_desc(const Case& p) {
  std::vector<Arg> a{Arg::operand(0), Arg::operand(1)};
  for (Arg& v : window_args(p, true)) a.push_back(v);
  a.push_back(Arg::operand(2));
  return desc(Op::MaxPoolGrad, a);
}

Dims pooled_shape(const Case& p) {
  return {p.n, p.c, pooled(p.h, p.kh, p.sh, p.ph, p.dh, p.ceil),
          pooled(p.w, p.kw, p.sw, p.pw, p.dw, p.ceil)};
}

std::string name(const Case& p) {
  return fmt::format("{}x{}x{}x{} kernel {}x{} stride {}x{} pad {}x{} dilation {}x{} ceil {}", p.n,
                     p.c, p.h, p.w, p.kh, p.kw, p.sh, p.sw, p.ph, p.pw, p.dh, p.dw, p.ceil);
}

TEST_CASE("max pool and its gradient equal ATen's definition") {
  for (const Case& p : kCases)
    for (const auto& order : kOrders) {
      CAPTURE(name(p));
      CAPTURE(order[0]);
      const Dims shape{p.n, p.c, p.h, p.w}, small = pooled_shape(p);
      Buffer x = buffer(DType::F32, shape, order).randn(1);
      // Ties, which must go to the first; NaN and -inf, which have rules of their own.
      for (int64_t i = 0; i < x.ref.count(); ++i) {
        float& v = x.data<float>()[i];
        v = std::round(v);
        if (i % 97 == 0) v = std::numeric_limits<float>::quiet_NaN();
        if (i % 5 == 0) v = -std::numeric_limits<float>::infinity();
      }
      Buffer want = buffer(DType::F32, small, order), want_index = buffer(DType::I64, small, order);
      max_by_definition(p, x, want, want_index);
      for (int threads : {1, 2}) {
        Buffer y = want, index = want_index;
        spoil(y), spoil(index);
        test::run_step(make_pool, max_desc(p), {&x}, {&y, &index}, threads);
        CHECK(y.memory == want.memory);
        CHECK(index.memory == want_index.memory);
        Buffer alone = want;  // without indices
        spoil(alone);
        test::run_step(make_pool, max_desc(p), {&x}, {&alone}, threads);
        CHECK(equal_numbers(alone, want));
      }

      Buffer gy = buffer(DType::F32, small, order).randn(2);
      Buffer want_gx = x;
      std::fill_n(want_gx.data<float>(), want_gx.ref.count(), 0.0f);
      for_each_index(small, [&](const Dims& i) {
        const int64_t at = want_index.at<int64_t>(i);
        want_gx.at<float>({i[0], i[1], at / p.w, at % p.w}) += gy.at<float>(i);
      });
      Buffer first = x;
      for (int threads : {1, 2}) {
        Buffer gx = x;
        spoil(gx);
        test::run_step(make_pool, max_grad_desc(p), {&gy, &x, &want_index}, {&gx}, threads);
        same(gx, want_gx, 1e-5);
        if (threads == 1) first = gx;
        CHECK(gx.memory == first.memory);
      }
    }
}

TEST_CASE("average pool and its gradient equal ATen's definition") {
  for (const Case& p : kCases)
    for (const auto& order : kOrders)
      for (int variant = 0; variant < 3; ++variant) {  // count padding, do not, fixed divisor
        if (p.dh != 1) continue;
        CAPTURE(name(p));
        CAPTURE(order[0]);
        CAPTURE(variant);
        const bool include_pad = variant == 0;
        const Dims shape{p.n, p.c, p.h, p.w}, small = pooled_shape(p);
        Buffer x = buffer(DType::F32, shape, order).randn(1);
        Buffer gy = buffer(DType::F32, small, order).randn(2);
        Buffer want = gy, want_gx = x;
        std::fill_n(want_gx.data<float>(), want_gx.ref.count(), 0.0f);
        for_each_index(small, [&](const Dims& i) {
          int64_t h0 = i[2] * p.sh - p.ph, w0 = i[3] * p.sw - p.pw;
          int64_t h1 = std::min(h0 + p.kh, p.h + p.ph), w1 = std::min(w0 + p.kw, p.w + p.pw);
          int64_t size = (h1 - h0) * (w1 - w0);
          h0 = std::max<int64_t>(h0, 0), w0 = std::max<int64_t>(w0, 0);
          h1 = std::min(h1, p.h), w1 = std::min(w1, p.w);
          if (!include_pad) size = (h1 - h0) * (w1 - w0);
          if (variant == 2) size = 7;
          double sum = 0;
          for (int64_t h = h0; h < h1; ++h)
            for (int64_t w = w0; w < w1; ++w) {
              sum += x.at<float>({i[0], i[1], h, w});
              want_gx.at<float>({i[0], i[1], h, w}) += gy.at<float>(i) / static_cast<float>(size);
            }
          want.at<float>(i) = static_cast<float>(sum / static_cast<double>(size));
        });
        std::vector<Arg> tail = window_args(p, false);
        tail.push_back(Arg::boolean(include_pad));
        tail.push_back(variant == 2 ? Arg::integer(7) : Arg::none());
        std::vector<Arg> args{Arg::operand(0)}, grad_args{Arg::operand(0), Arg::operand(1)};
        args.insert(args.end(), tail.begin(), tail.end());
        grad_args.insert(grad_args.end(), tail.begin(), tail.end());
        Buffer first = want, first_gx = x;
        for (int threads : {1, 2}) {
          Buffer y = want, gx = x;
          spoil(y), spoil(gx);
          test::run_step(make_pool, desc(Op::AvgPool, args), {&x}, {&y}, threads);
          test::run_step(make_pool, desc(Op::AvgPoolGrad, grad_args), {&gy, &x}, {&gx}, threads);
          same(y, want, 1e-5);
          same(gx, want_gx, 1e-5);
          if (threads == 1) first = y, first_gx = gx;
          CHECK(y.memory == first.memory);
          CHECK(gx.memory == first_gx.memory);
        }
      }
}

TEST_CASE("adaptive average pool cuts the image as ATen does") {
  const Dims shapes[] = {{4, 20, 7, 7}, {16, 3, 10, 13}, {1, 5, 4, 4}, {2, 600, 7, 7}};
  const Dims sizes[] = {{1, 1}, {3, 5}, {4, 4}, {6, 9}};
  for (const Dims& shape : shapes)
    for (const Dims& size : sizes)
      for (const auto& order : kOrders) {
        CAPTURE(shape);
        CAPTURE(size);
        CAPTURE(order[0]);
        const Dims small{shape[0], shape[1], size[0], size[1]};
        Buffer x = buffer(DType::F32, shape, order).randn(1);
        Buffer gy = buffer(DType::F32, small, order).randn(2);
        Buffer want = gy, want_gx = x;
        std::fill_n(want_gx.data<float>(), want_gx.ref.count(), 0.0f);
        for_each_index(small, [&](const Dims& i) {
          auto begin = [](int64_t o, int64_t in, int64_t out) { return o * in / out; };
          auto end = [](int64_t o, int64_t in, int64_t out) {
            return static_cast<int64_t>(std::ceil(static_cast<double>((o + 1) * in) / out));
          };
          const int64_t h0 = begin(i[2], shape[2], size[0]), h1 = end(i[2], shape[2], size[0]);
          const int64_t w0 = begin(i[3], shape[3], size[1]), w1 = end(i[3], shape[3], size[1]);
          const auto count = static_cast<float>((h1 - h0) * (w1 - w0));
          double sum = 0;
          for (int64_t h = h0; h < h1; ++h)
            for (int64_t w = w0; w < w1; ++w) {
              sum += x.at<float>({i[0], i[1], h, w});
              want_gx.at<float>({i[0], i[1], h, w}) += gy.at<float>(i) / count;
            }
          want.at<float>(i) = static_cast<float>(sum / count);
        });
        for (int threads : {1, 2}) {
          Buffer y = want, gx = x;
          spoil(y), spoil(gx);
          test::run_step(make_pool, desc(Op::AdaptiveAvgPool, {Arg::operand(0), Arg::ints(size)}),
                         {&x}, {&y}, threads);
          test::run_step(
              make_pool,
              desc(Op::AdaptiveAvgPoolGrad, {Arg::operand(0), Arg::operand(1), Arg::ints(size)}),
              {&gy, &x}, {&gx}, threads);
          same(y, want, 1e-5);
          same(gx, want_gx, 1e-5);
        }
      }
}

TEST_CASE("images without a batch dim, and results in another order than the image") {
  const Case p{1, 6, 9, 8, 3, 3, 2, 2, 1, 1, 1, 1, false};
  const Dims small = pooled_shape(p);
  Buffer x(DType::F32, {6, 9, 8});
  x.randn(1);
  Buffer view = x;
  view.ref.shape = {1, 6, 9, 8};
  view.ref.strides = dense_strides(view.ref.shape);
  Buffer want(DType::F32, small), want_index(DType::I64, small);
  max_by_definition(p, view, want, want_index);
  Buffer y(DType::F32, {6, small[2], small[3]}), index(DType::I64, {6, small[2], small[3]});
  test::run_step(make_pool, max_desc(p), {&x}, {&y, &index}, 2);
  CHECK(y.memory == want.memory);
  CHECK(index.memory == want_index.memory);

  Buffer other = buffer(DType::F32, small, {1, 3, 2, 0});
  Buffer other_index = buffer(DType::I64, small, {3, 2, 1, 0});
  test::run_step(make_pool, max_desc(p), {&view}, {&other, &other_index}, 2);
  for_each_index(small, [&](const Dims& i) {
    CHECK(other.at<float>(i) == want.at<float>(i));
    CHECK(other_index.at<int64_t>(i) == want_index.at<int64_t>(i));
  });
}

// Inputs of each output along one axis: window [first, last) by steps of `step`, and what an
// average divides by.
struct Taps {
  int64_t first, last, step, size;
};
using AxisOf = std::function<Taps(int axis, int64_t o)>;

// One definition for all poolings of volumes: visits (output, input, index in the volume) by
// window.
template <typename F>
void for_windows(const Dims& out, const Dims& in, const AxisOf& axis, F f) {
  test::each_index(out, [&](const Dims& o) {
    const Taps d = axis(0, o[2]), h = axis(1, o[3]), w = axis(2, o[4]);
    bool first = true;
    for (int64_t z = d.first; z < d.last; z += d.step)
      for (int64_t y = h.first; y < h.last; y += h.step)
        for (int64_t x = w.first; x < w.last; x += w.step) {
          f(o, Dims{o[0], o[1], z, y, x}, (z * in[3] + y) * in[4] + x, d.size * h.size * w.size,
            first);
          first = false;
        }
  });
}

TEST_CASE("volumes are pooled as ATen does, sliding and adaptive, in all orders") {
  const Dims in{3, 18, 7, 6, 9}, kernel{3, 2, 3}, stride{2, 2, 1}, pad{1, 0, 1};
  const std::vector<int> orders[] = {{4, 3, 2, 1, 0}, {1, 4, 3, 2, 0}, {0, 4, 3, 2, 1}};
  for (bool adaptive : {false, true})
    for (const auto& order : orders) {
      CAPTURE(adaptive);
      CAPTURE(order[0]);
      const Dims size = adaptive ? Dims{3, 4, 5} : Dims{4, 3, 9};
      const Dims out{in[0], in[1], size[0], size[1], size[2]};
      const AxisOf axis = [&](int a, int64_t o) -> Taps {
        const int64_t n = in[2 + a];
        if (adaptive) {
          const int64_t begin = o * n / size[a], end = ((o + 1) * n + size[a] - 1) / size[a];
          return {begin, end, 1, end - begin};
        }
        const int64_t start = o * stride[a] - pad[a];
        const int64_t padded = std::min(start + kernel[a], n + pad[a]) - start;
        return {std::max<int64_t>(start, 0), std::min(start + kernel[a], n), 1, padded};
      };
      Buffer x = buffer(DType::F32, in, order).randn(1),
             gy = buffer(DType::F32, out, order).randn(2);
      for (int64_t i = 0; i < x.ref.count(); ++i) {
        float& v = x.data<float>()[i];
        v = i % 53 == 0 ? std::numeric_limits<float>::quiet_NaN() : std::round(v);
      }
      Buffer want = gy, want_index = buffer(DType::I64, out, order);
      for_windows(out, in, axis,
                  [&](const Dims& o, const Dims& i, int64_t flat, int64_t, bool first) {
                    const float v = x.at<float>(i);
                    float& best = want.at<float>(o);
                    if (first || v > best || std::isnan(v))
                      best = v, want_index.at<int64_t>(o) = flat;
                  });
      Buffer want_gx = x, mean = gy, want_mean_gx = x;
      std::fill_n(want_gx.data<float>(), x.ref.count(), 0.0f);
      std::fill_n(want_mean_gx.data<float>(), x.ref.count(), 0.0f);
      std::fill_n(mean.data<float>(), mean.ref.count(), 0.0f);
      Buffer finite = buffer(DType::F32, in, order).randn(5);
      for_windows(out, in, axis,
                  [&](const Dims& o, const Dims& i, int64_t flat, int64_t count, bool) {
                    if (want_index.at<int64_t>(o) == flat) want_gx.at<float>(i) += gy.at<float>(o);
                    mean.at<float>(o) += finite.at<float>(i) / static_cast<float>(count);
                    want_mean_gx.at<float>(i) += gy.at<float>(o) / static_cast<float>(count);
                  });
      std::vector<Arg> max_args, avg_args;
      if (adaptive) {
        max_args = avg_args = {Arg::ints(size)};
      } else {
        max_args = {Arg::ints(kernel), Arg::ints(stride), Arg::ints(pad), Arg::ints({1}),
                    Arg::boolean(false)};
        avg_args = {Arg::ints(kernel),   Arg::ints(stride),  Arg::ints(pad),
                    Arg::boolean(false), Arg::boolean(true), Arg::none()};
      }
      auto with = [](std::vector<Arg> head, const std::vector<Arg>& tail) {
        head.insert(head.end(), tail.begin(), tail.end());
        return head;
      };
      std::vector<Arg> max_grad = with({Arg::operand(0), Arg::operand(1)}, max_args);
      max_grad.push_back(Arg::operand(2));
      for (int threads : {1, 2}) {
        Buffer y = want, index = want_index, gx = x, mean_y = mean, mean_gx = x;
        for (Buffer* b : {&y, &index, &gx, &mean_y, &mean_gx}) spoil(*b);
        test::run_step(
            make_pool,
            desc(adaptive ? Op::AdaptiveMaxPool : Op::MaxPool, with({Arg::operand(0)}, max_args)),
            {&x}, {&y, &index}, threads);
        test::run_step(make_pool,
                       desc(adaptive ? Op::AdaptiveMaxPoolGrad : Op::MaxPoolGrad, max_grad),
                       {&gy, &x, &want_index}, {&gx}, threads);
        test::run_step(
            make_pool,
            desc(adaptive ? Op::AdaptiveAvgPool : Op::AvgPool, with({Arg::operand(0)}, avg_args)),
            {&finite}, {&mean_y}, threads);
        test::run_step(make_pool,
                       desc(adaptive ? Op::AdaptiveAvgPoolGrad : Op::AvgPoolGrad,
                            with({Arg::operand(0), Arg::operand(1)}, avg_args)),
                       {&gy, &x}, {&mean_gx}, threads);
        CHECK(y.memory == want.memory);
        CHECK(index.memory == want_index.memory);
        same(gx, want_gx, 1e-5);
        same(mean_y, mean, 1e-5);
        same(mean_gx, want_mean_gx, 1e-5);
      }
    }
}

TEST_CASE("elements are put back at their indices, the last of several wins") {
  Buffer x(DType::F32, {2, 3, 4, 5}), index(DType::I64, {2, 3, 4, 5});
  x.randn(1);
  std::mt19937 gen(3);
  for (int64_t i = 0; i < index.ref.count(); ++i) index.data<int64_t>()[i] = gen() % 42;
  Buffer put(DType::F32, {2, 3, 6, 7}), sum(DType::F32, {2, 3, 6, 7});
  test::each_index(x.ref.shape, [&](const Dims& i) {
    const int64_t at = index.at<int64_t>(i);
    put.at<float>({i[0], i[1], at / 7, at % 7}) = x.at<float>(i);
    sum.at<float>({i[0], i[1], at / 7, at % 7}) += x.at<float>(i);
  });
  const std::vector<Arg> args{Arg::operand(0), Arg::operand(1), Arg::ints({6, 7})};
  for (int threads : {1, 2}) {
    Buffer y = put, z = sum;
    spoil(y), spoil(z);
    test::run_step(make_pool_index, desc(Op::MaxUnpool, args), {&x, &index}, {&y}, threads);
    test::run_step(make_pool_index, desc(Op::PoolIndexAdd, args), {&x, &index}, {&z}, threads);
    CHECK(y.memory == put.memory);
    same(z, sum, 1e-6);
  }
  CHECK(!test::harness_errors().any());
  index.data<int64_t>()[17] = 42;
  test::run_step(make_pool_index, desc(Op::MaxUnpool, args), {&x, &index}, {&put}, 1);
  const auto error = test::harness_errors().take();
  REQUIRE(error);
  CHECK(error->message.find("invalid max index: 42") != std::string::npos);
}

TEST_CASE("other element types take the plain loops") {
  const Case p{1, 1, 4, 4, 2, 2, 2, 2, 0, 0, 1, 1, false};
  Buffer x(DType::I64, {1, 1, 4, 4}), y(DType::I64, {1, 1, 2, 2}), index(DType::I64, {1, 1, 2, 2});
  for (int i = 0; i < 16; ++i) x.data<int64_t>()[i] = i % 7;
  test::run_step(make_pool, max_desc(p), {&x}, {&y, &index}, 1);
  const int64_t want[] = {5, 6, 6, 4}, where[] = {5, 6, 13, 11};
  for (int i = 0; i < 4; ++i) {
    CHECK(y.data<int64_t>()[i] == want[i]);
    CHECK(index.data<int64_t>()[i] == where[i]);
  }
  Buffer half(DType::F16, {1, 1, 2, 2}), mean(DType::F16, {1, 1, 1, 1});
  const uint16_t bits[] = {0x3c00, 0x4000, 0x4200, 0x4400};  // 1 2 3 4
  std::copy(bits, bits + 4, half.data<uint16_t>());
  test::run_step(make_pool, desc(Op::AdaptiveAvgPool, {Arg::operand(0), Arg::ints({1, 1})}),
                 {&half}, {&mean}, 1);
  CHECK(mean.data<uint16_t>()[0] == 0x4100);  // 2.5
}

}  // namespace
}  // namespace tessera
