// SPDX-License-Identifier: Apache-2.0
// Softmax, log-softmax and gradients against double loops, over every dim, several memory orders
// and odd sizes.
#include <doctest/doctest.h>

#include "ops/widened.h"
#include "row_test_util.h"

namespace tessera::test {
namespace {

struct Case {
  Dims shape;
  std::vector<int> in_order, out_order;  // minor to major
  int dim;
};

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {{7, 33}, {1, 0}, {1, 0}, 1},           {{7, 33}, {1, 0}, {1, 0}, 0},
      {{300, 131}, {1, 0}, {1, 0}, 1},        {{16, 10}, {1, 0}, {1, 0}, 0},
      {{5, 40, 77}, {2, 1, 0}, {2, 1, 0}, 1}, {{5, 40, 77}, {0, 2, 1}, {0, 2, 1}, 1},
      {{5, 40, 77}, {0, 2, 1}, {2, 1, 0}, 2}, {{5, 40, 77}, {2, 0, 1}, {2, 1, 0}, 2},
      {{64, 1}, {1, 0}, {1, 0}, 1},           {{1}, {0}, {0}, 0},
      {{2, 5000}, {1, 0}, {1, 0}, -1},
  };
  return all;
}

double naive_log_softmax(Buffer& x, Dims i, size_t dim) {
  const double own = x.at<float>(i);
  double top = -INFINITY, sum = 0;
  for (i[dim] = 0; i[dim] < x.ref.shape[dim]; ++i[dim]) top = std::max<double>(top, x.at<float>(i));
  for (i[dim] = 0; i[dim] < x.ref.shape[dim]; ++i[dim]) sum += std::exp(x.at<float>(i) - top);
  return own - top - std::log(sum);
}

TEST_CASE("softmax and log_softmax match double loops") {
  for (const Case& k : cases()) {
    CAPTURE(k.shape);
    CAPTURE(k.dim);
    const size_t dim = k.dim < 0 ? k.dim + k.shape.size() : k.dim;
    Buffer x(DType::F32, k.shape, strides_of_order(k.shape, k.in_order));
    Buffer y(DType::F32, k.shape, strides_of_order(k.shape, k.out_order));
    x.randn(1, 5.0f);
    for (Op op : {Op::Softmax, Op::LogSoftmax}) {
      run_both(make_softmax, step(op, {Arg::operand(0), Arg::integer(k.dim), Arg::boolean(false)}),
               {&x}, {&y});
      CHECK(max_error(y, [&](const Dims& i) {
              const double l = naive_log_softmax(x, i, dim);
              return op == Op::Softmax ? std::exp(l) : l;
            }) < 2e-6);
    }
  }
}

TEST_CASE("softmax gradients match double loops") {
  for (const Case& k : cases()) {
    CAPTURE(k.shape);
    CAPTURE(k.dim);
    const size_t dim = k.dim < 0 ? k.dim + k.shape.size() : k.dim;
    Buffer x(DType::F32, k.shape, strides_of_order(k.shape, k.in_order));
    Buffer y(DType::F32, k.shape, strides_of_order(k.shape, k.out_order));
    Buffer g(DType::F32, k.shape, strides_of_order(k.shape, k.in_order));
    Buffer dx(DType::F32, k.shape, strides_of_order(k.shape, k.out_order));
    x.randn(1, 2.0f);
    g.randn(2);
    for (bool log : {false, true}) {
      run_both(make_softmax,
               step(log ? Op::LogSoftmax : Op::Softmax,
                    {Arg::operand(0), Arg::integer(k.dim), Arg::boolean(false)}),
               {&x}, {&y});
      run_both(
          make_softmax,
          step(log ? Op::LogSoftmaxGrad : Op::SoftmaxGrad,
               {Arg::operand(0), Arg::operand(1), Arg::integer(k.dim), Arg::dtype(DType::F32)}),
          {&g, &y}, {&dx});
      CHECK(max_error(dx, [&](const Dims& at) {
              double sum = 0;
              Dims i = at;
              for (i[dim] = 0; i[dim] < k.shape[dim]; ++i[dim])
                sum += log ? double(g.at<float>(i)) : double(g.at<float>(i)) * y.at<float>(i);
              return log ? g.at<float>(at) - std::exp(double(y.at<float>(at))) * sum
                         : (g.at<float>(at) - sum) * y.at<float>(at);
            }) < 1e-5);
    }
  }
}

TEST_CASE("half precision is the f32 result rounded once") {
  for (const Case& k : cases())
    for (DType half : {DType::F16, DType::BF16})
      for (Op op : {Op::Softmax, Op::LogSoftmax, Op::SoftmaxGrad, Op::LogSoftmaxGrad}) {
        CAPTURE(k.shape);
        CAPTURE(k.dim);
        CAPTURE(op_text(op));
        const bool grad = op == Op::SoftmaxGrad || op == Op::LogSoftmaxGrad;
        const Dims in = strides_of_order(k.shape, k.in_order),
                   out = strides_of_order(k.shape, k.out_order);
        Buffer a(DType::F32, k.shape, in), b(DType::F32, k.shape, out), y(DType::F32, k.shape, out);
        Buffer ha(half, k.shape, in), hb(half, k.shape, out), hy(half, k.shape, out);
        a.randn(1, 2.0f);
        b.randn(2);
        const int64_t n = product(k.shape);
        auto round = [&](Buffer& x, Buffer& h) {  // both to the same values
          narrow_row(x.data<float>(), h.memory.data(), half, 1, n);
          widen_row(h.memory.data(), half, 1, x.data<float>(), n);
        };
        round(a, ha);
        round(b, hb);
        StepDesc d = grad ? step(op, {Arg::operand(0), Arg::operand(1), Arg::integer(k.dim),
                                      Arg::dtype(half)})
                          : step(op, {Arg::operand(0), Arg::integer(k.dim), Arg::boolean(false)});
        run_both(make_softmax, d, {&a, &b}, {&y});
        run_both(make_softmax, d, {&ha, &hb}, {&hy});
        Buffer want(half, k.shape, out);
        narrow_row(y.data<float>(), want.memory.data(), half, 1, n);
        CHECK(std::memcmp(want.memory.data(), hy.memory.data(), static_cast<size_t>(n) * 2) == 0);
      }
}

TEST_CASE("infinities and NaN behave as in torch") {
  Buffer x(DType::F32, {4, 20}), y(DType::F32, {4, 20});
  x.randn(3);
  x.at<float>({0, 3}) = -INFINITY;
  for (int i = 0; i < 20; ++i) x.at<float>({1, i}) = -INFINITY;
  x.at<float>({2, 17}) = NAN;
  x.at<float>({3, 0}) = 1e30f;
  run_both(make_softmax, step(Op::Softmax, {Arg::operand(0), Arg::integer(1), Arg::boolean(false)}),
           {&x}, {&y});
  CHECK(y.at<float>({0, 3}) == 0.0f);
  CHECK(std::isnan(y.at<float>({1, 5})));
  CHECK(std::isnan(y.at<float>({2, 0})));
  CHECK(y.at<float>({3, 0}) == 1.0f);
  CHECK(y.at<float>({3, 19}) == 0.0f);
  Buffer s(DType::F32, {}), t(DType::F32, {});
  s.data<float>()[0] = 3.0f;
  run_both(make_softmax, step(Op::Softmax, {Arg::operand(0), Arg::integer(0), Arg::boolean(false)}),
           {&s}, {&t});
  CHECK(t.data<float>()[0] == 1.0f);
}

TEST_CASE("softmax refuses what makes no sense") {
  const TensorType f{DType::F32, {2, 3}, {}}, i{DType::I64, {2, 3}, {}};
  auto call = [](TensorType t, int64_t dim) {
    return infer_call(infer_softmax, Op::Softmax, {t},
                      {Arg::operand(0), Arg::integer(dim), Arg::boolean(false)});
  };
  CHECK(call(f, -2)[0].shape == Dims{2, 3});
  CHECK_THROWS_AS(call(f, 2), UserError);
  CHECK_THROWS_AS(call(i, 0), UserError);
}

}  // namespace
}  // namespace tessera::test
