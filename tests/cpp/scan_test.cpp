// SPDX-License-Identifier: Apache-2.0
// Running results against a loop per row: all kinds and types, any dim, any strides, both
// directions, cut and uncut rows, one and two threads with equal bits.
#include <doctest/doctest.h>

#include "row_test_util.h"

namespace tessera::test {
namespace {

struct Case {
  Dims shape;
  std::vector<int> order;  // minor to major
  int64_t dim;
};

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {{5, 7}, {1, 0}, 1},         {{5, 7}, {1, 0}, 0},         {{5, 7}, {0, 1}, 1},
      {{100003}, {0}, 0},          {{3, 40000}, {1, 0}, -1},    {{3, 40000}, {0, 1}, 1},
      {{20000, 3}, {1, 0}, 0},     {{300, 333}, {1, 0}, 0},     {{40, 50, 60}, {2, 1, 0}, 1},
      {{4, 30, 20}, {1, 2, 0}, 1}, {{4, 30, 20}, {0, 2, 1}, 2}, {{}, {}, 0},
      {{0, 4}, {1, 0}, 1},         {{4, 0}, {1, 0}, 1},         {{1, 9}, {1, 0}, 0},
  };
  return all;
}

// f(positions of one row in order) for every row along the dim.
void each_row(const Dims& shape, int64_t dim, const std::function<void(std::vector<Dims>&)>& f) {
  const auto rank = static_cast<int64_t>(shape.size());
  if (rank == 0) {
    std::vector<Dims> one{{}};
    f(one);
    return;
  }
  dim = dim < 0 ? dim + rank : dim;
  Dims heads = shape;
  if (heads[dim] == 0) return;
  heads[dim] = 1;
  each_index(heads, [&](Dims i) {
    std::vector<Dims> row;
    for (int64_t k = 0; k < shape[dim]; ++k) {
      i[dim] = k;
      row.push_back(i);
    }
    f(row);
  });
}

void fill_uniform(Buffer& x, unsigned seed, float low, float high) {
  std::mt19937 gen(seed);
  std::uniform_real_distribution<float> u(low, high);
  each_index(x.ref.shape, [&](const Dims& i) { x.at<float>(i) = u(gen); });
}

template <typename T>
void fill_ints(Buffer& x, unsigned seed, int low, int high) {
  std::mt19937 gen(seed);
  each_index(x.ref.shape, [&](const Dims& i) {
    x.at<T>(i) = static_cast<T>(low + static_cast<int>(gen() % (high - low + 1)));
  });
}

std::vector<Arg> call(const Case& k, bool backwards) {
  return {Arg::operand(0), Arg::integer(k.dim), Arg::boolean(backwards)};
}

TEST_CASE("running sums, products and sums of exponentials match a loop in double") {
  for (const Case& k : cases())
    for (Op op : {Op::Cumsum, Op::Cumprod, Op::Logcumsumexp})
      for (bool backwards : {false, true}) {
        CAPTURE(k.shape);
        CAPTURE(op_text(op));
        Buffer x(DType::F32, k.shape, strides_of_order(k.shape, k.order)), y(DType::F32, k.shape);
        op == Op::Cumprod ? fill_uniform(x, 1, 0.99f, 1.01f) : fill_uniform(x, 1, -3, 3);
        run_both(make_scan, step(op, call(k, backwards)), {&x}, {&y});
        double worst = 0;
        each_row(k.shape, k.dim, [&](std::vector<Dims>& row) {
          if (backwards) std::reverse(row.begin(), row.end());
          double acc = op == Op::Cumprod ? 1 : 0, size = 1;
          for (const Dims& i : row) {
            const double v = x.at<float>(i);
            acc = op == Op::Cumsum ? acc + v : op == Op::Cumprod ? acc * v : acc + std::exp(v);
            size = op == Op::Cumsum ? size + std::abs(v) : 1;
            const double want = op == Op::Logcumsumexp ? std::log(acc) : acc;
            worst = std::max(worst, std::abs(y.at<float>(i) - want) /
                                        std::max({1.0, std::abs(want), size * 1e-3}));
          }
        });
        CHECK(worst < 3e-7);
      }
}

TEST_CASE("infinities and NaN go through a running sum of exponentials as in a loop") {
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<std::vector<float>> rows = {
      {-inf, -inf, 1, 2, -inf, 3, 4, 5, 6, 7, 8, 9},
      {-1000, 1000, -1000, 0, 0, 0, 0, 0, 0, 999},
      {1, 2, 3, inf, 4, -inf, 5, inf, 1, 1, 1},
      {1, 2, 3, NAN, 4, 5, 6, 7, 8, 9, 10},
      {700, -700, 700, -700, 1, 2, 3, 4, 700.5f, 1},
      {-inf, -inf, -inf, -inf, -inf, -inf, -inf, -inf},
      {inf, -inf, inf, 1, 2, 3, 4, 5, 6, 7, 8, NAN},
  };
  for (const auto& row : rows) {
    const auto n = static_cast<int64_t>(row.size());
    for (int64_t width : {1, 11}) {  // along a row, and across columns
      Buffer x(DType::F32, {n, width}), y(DType::F32, {n, width});
      for (int64_t i = 0; i < n; ++i)
        for (int64_t w = 0; w < width; ++w) x.at<float>({i, w}) = row[i];
      run_both(make_scan, step(Op::Logcumsumexp, {Arg::operand(0), Arg::integer(0)}), {&x}, {&y});
      double acc = -inf;
      for (int64_t i = 0; i < n; ++i) {
        const double v = row[i], high = std::max(acc, v), low = std::min(acc, v);
        if (std::isnan(acc) || std::isnan(v))
          acc = NAN;
        else if (!std::isinf(high))
          acc = high + std::log1p(std::exp(low - high));
        else
          acc = high;
        for (int64_t w = 0; w < width; ++w) {
          const double got = y.at<float>({i, w});
          CHECK((got == acc || (std::isnan(got) && std::isnan(acc)) ||
                 std::abs(got - acc) < 1e-6 * std::max(1.0, std::abs(acc))));
        }
      }
    }
  }
}

TEST_CASE("a zero stays a zero in a long running product") {
  Buffer x(DType::F32, {200000}), y(DType::F32, {200000});
  for (int i = 0; i < 200000; ++i) x.data<float>()[i] = i == 100 ? 0.0f : 3.0f;
  run_both(make_scan, step(Op::Cumprod, {Arg::operand(0), Arg::integer(0)}), {&x}, {&y});
  CHECK(y.data<float>()[99] == std::numeric_limits<float>::infinity());
  CHECK(std::isnan(y.data<float>()[100]) == false);
  Buffer z(DType::F32, {200000});
  x.data<float>()[0] = 0.0f;
  run_both(make_scan, step(Op::Cumprod, {Arg::operand(0), Arg::integer(0)}), {&x}, {&z});
  for (int i = 0; i < 200000; ++i) REQUIRE(z.data<float>()[i] == 0.0f);
}

template <typename T>
void check_integers(DType dtype) {
  for (const Case& k : cases())
    for (Op op : {Op::Cumsum, Op::Cumprod}) {
      CAPTURE(k.shape);
      Buffer x(dtype, k.shape, strides_of_order(k.shape, k.order)), y(dtype, k.shape);
      fill_ints<T>(x, 2, 1, 3);
      run_both(make_scan, step(op, call(k, false)), {&x}, {&y});
      each_row(k.shape, k.dim, [&](std::vector<Dims>& row) {
        uint64_t acc = op == Op::Cumsum ? 0 : 1;
        for (const Dims& i : row) {
          const auto v = static_cast<uint64_t>(x.at<T>(i));
          acc = op == Op::Cumsum ? acc + v : acc * v;
          REQUIRE(y.at<T>(i) == static_cast<T>(acc));
        }
      });
    }
}

TEST_CASE("running sums and products of integers wrap") {
  check_integers<int64_t>(DType::I64);
  check_integers<int32_t>(DType::I32);
  check_integers<int8_t>(DType::I8);
  check_integers<uint8_t>(DType::U8);
}

template <typename T>
void check_extremes(DType dtype, bool nan) {
  for (const Case& k : cases())
    for (Op op : {Op::Cummax, Op::Cummin}) {
      CAPTURE(k.shape);
      Buffer x(dtype, k.shape, strides_of_order(k.shape, k.order));
      Buffer y(dtype, k.shape), index(DType::I64, k.shape);
      fill_ints<T>(x, 3, 0, 100);
      if (nan && x.ref.count() > 3) {
        int64_t n = 0;
        each_index(k.shape, [&](const Dims& i) {
          if (++n % 97 == 0) x.at<T>(i) = static_cast<T>(NAN);
        });
      }
      run_both(make_scan, step(op, {Arg::operand(0), Arg::integer(k.dim)}), {&x}, {&y, &index});
      each_row(k.shape, k.dim, [&](std::vector<Dims>& row) {
        T best = x.at<T>(row[0]);
        int64_t at = 0;
        for (size_t i = 0; i < row.size(); ++i) {
          const T v = x.at<T>(row[i]);
          // the last of equals, and the last NaN
          if (v != v || (best == best && (op == Op::Cummax ? v >= best : v <= best))) {
            best = v;
            at = static_cast<int64_t>(i);
          }
          const T got = y.at<T>(row[i]);
          REQUIRE((got == best || (got != got && best != best)));
          REQUIRE(index.at<int64_t>(row[i]) == at);
        }
      });
    }
}

TEST_CASE("running extremes name the last of equals and the last NaN") {
  check_extremes<float>(DType::F32, false);
  check_extremes<float>(DType::F32, true);
  check_extremes<int64_t>(DType::I64, false);
  check_extremes<uint8_t>(DType::U8, false);
  check_extremes<int16_t>(DType::I16, false);
}

TEST_CASE("a scan keeps the type and refuses a dim that is not there") {
  const auto types = infer_call(infer_scan, Op::Cummax, {{DType::F32, {3, 4}, {}}},
                                {Arg::operand(0), Arg::integer(-1)});
  REQUIRE(types.size() == 2);
  CHECK(types[0].dtype == DType::F32);
  CHECK(types[1].dtype == DType::I64);
  CHECK(types[1].shape == Dims{3, 4});
  CHECK_THROWS_AS(infer_call(infer_scan, Op::Cumsum, {{DType::F32, {3, 4}, {}}},
                             {Arg::operand(0), Arg::integer(2)}),
                  UserError);
}

}  // namespace
}  // namespace tessera::test
