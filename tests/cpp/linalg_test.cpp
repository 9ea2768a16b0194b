// SPDX-License-Identifier: Apache-2.0
// Factorisations are judged by what defines them: the factors have their shape and multiply to the
// matrix. Sizes lie on both sides of a block and of the change from double to float.
#include <doctest/doctest.h>

#include <numeric>

#include "row_test_util.h"

namespace tessera::test {
namespace {

constexpr int64_t kSizes[] = {1, 2, 5, 31, 32, 33, 64, 96, 97, 130};

Arg op(int i) {
  return Arg::operand(i);
}

// [batch, rows, cols], stored by rows or by columns.
Buffer matrices(int64_t batch, int64_t rows, int64_t cols, bool by_column = false) {
  return by_column ? Buffer(DType::F32, {batch, rows, cols}, {rows * cols, 1, rows})
                   : Buffer(DType::F32, {batch, rows, cols});
}

// Largest element of got - sum_k x(i, k) y(k, j) over all matrices.
using At = std::function<double(int64_t b, int64_t i, int64_t j)>;
double product_error(Buffer& got, int64_t inner, const At& x, const At& y) {
  double worst = 0;
  each_index(got.ref.shape, [&](const Dims& at) {
    double sum = 0;
    for (int64_t k = 0; k < inner; ++k) sum += x(at[0], at[1], k) * y(at[0], k, at[2]);
    const double e = std::abs(got.at<float>(at) - sum);
    worst = std::isnan(e) ? INFINITY : std::max(worst, e);
  });
  return worst;
}
At element(Buffer& b) {
  return [&b](int64_t q, int64_t i, int64_t j) { return double(b.at<float>({q, i, j})); };
}
At transposed(Buffer& b) {
  return [&b](int64_t q, int64_t i, int64_t j) { return double(b.at<float>({q, j, i})); };
}

// Symmetric and positive definite, with eigenvalues of about 1.
void make_positive(Buffer& a, unsigned seed) {
  const int64_t batch = a.ref.shape[0], n = a.ref.shape[1];
  Buffer r(DType::F32, {batch, n, n});
  r.randn(seed, 0.3f / std::sqrt(float(n)));
  each_index(a.ref.shape, [&](const Dims& at) {
    a.at<float>(at) = r.at<float>(at) + r.at<float>({at[0], at[2], at[1]}) + (at[1] == at[2]);
  });
}

// Far from singular, and in need of row exchanges.
void make_regular(Buffer& a, unsigned seed) {
  const int64_t n = a.ref.shape[1];
  a.randn(seed, 0.3f / std::sqrt(float(n)));
  each_index(a.ref.shape, [&](const Dims& at) {
    if (at[2] == (at[1] + 1) % n) a.at<float>(at) += 1;
  });
}

std::string failure() {
  auto error = harness_errors().take();
  return error ? error->message : "";
}

TEST_CASE("cholesky: the factor is triangular and its square is the matrix") {
  for (int64_t n : kSizes)
    for (bool upper : {false, true})
      for (bool by_column : {false, true}) {
        CAPTURE(n);
        CAPTURE(upper);
        CAPTURE(by_column);
        Buffer a = matrices(3, n, n, by_column), l = matrices(3, n, n), info(DType::I32, {3});
        make_positive(a, 1);
        run_both(make_linalg, step(Op::Cholesky, {op(0), Arg::boolean(upper), Arg::none()}), {&a},
                 {&l, &info});
        each_index(l.ref.shape, [&](const Dims& at) {
          if (upper ? at[1] > at[2] : at[1] < at[2]) CHECK(l.at<float>(at) == 0);
        });
        const At x = upper ? transposed(l) : element(l), y = upper ? element(l) : transposed(l);
        CHECK(product_error(a, n, x, y) < 1e-5);
        for (int64_t b = 0; b < 3; ++b) CHECK(info.at<int32_t>({b}) == 0);
      }
}

TEST_CASE("cholesky: a matrix that is not positive definite is told, or is an error") {
  for (int64_t n : {4, 40, 120}) {
    Buffer a = matrices(2, n, n), l = matrices(2, n, n), info(DType::I32, {2});
    make_positive(a, 1);
    a.at<float>({1, n - 2, n - 2}) = -1;
    run_both(make_linalg, step(Op::Cholesky, {op(0), Arg::boolean(false), Arg::none()}), {&a},
             {&l, &info});
    CHECK(info.at<int32_t>({0}) == 0);
    CHECK(info.at<int32_t>({1}) == n - 1);
    CHECK(failure().empty());
    run_step(make_linalg,
             step(Op::Cholesky, {op(0), Arg::boolean(false), Arg::string("linalg.cholesky")}), {&a},
             {&l, &info}, 2);
    const std::string text = failure();
    CHECK(text.find("linalg.cholesky: (Batch element 1): ") == 0);
    CHECK(text.find(fmt::format("order {} is not positive-definite", n - 1)) != std::string::npos);
  }
}

TEST_CASE("lu: the factors multiply to the permuted matrix") {
  for (auto [m, n] : {std::pair{1, 1},
                      {5, 5},
                      {33, 33},
                      {64, 20},
                      {20, 64},
                      {40, 45},
                      {130, 97},
                      {97, 130},
                      {128, 128}})
    for (bool pivot : {true, false}) {
      CAPTURE(m);
      CAPTURE(n);
      const int64_t k = std::min(m, n);
      Buffer a = matrices(2, m, n), lu = matrices(2, m, n), pivots(DType::I32, {2, k}),
             info(DType::I32, {2}), order(DType::I64, {2, m});
      a.randn(3);
      if (!pivot)
        for (int64_t b = 0; b < 2; ++b)
          for (int64_t i = 0; i < k; ++i) a.at<float>({b, i, i}) += float(4 * k);
      run_both(make_linalg, step(Op::LuFactor, {op(0), Arg::boolean(pivot), Arg::none()}), {&a},
               {&lu, &pivots, &info});
      run_both(make_linalg, step(Op::LuPermutation, {op(0)}), {&pivots}, {&order});
      const At lower = [&](int64_t b, int64_t i, int64_t j) {
        return i == j ? 1.0 : i > j ? double(lu.at<float>({b, i, j})) : 0.0;
      };
      const At upper = [&](int64_t b, int64_t i, int64_t j) {
        return i <= j ? double(lu.at<float>({b, i, j})) : 0.0;
      };
      Buffer permuted = matrices(2, m, n);
      each_index(a.ref.shape, [&](const Dims& at) {
        const int64_t row = order.at<int64_t>({at[0], at[1]});
        permuted.at<float>(at) = a.at<float>({at[0], row, at[2]});
        if (!pivot) CHECK(row == at[1]);
        if (pivot) CHECK(std::abs(lower(at[0], at[1], at[2])) <= 1.0);
      });
      CHECK(product_error(permuted, k, lower, upper) < (pivot ? 2e-4 : 2e-3));
      CHECK(info.at<int32_t>({1}) == 0);
    }
}

TEST_CASE("lu: of several equal pivots the first is taken, and a zero one is told") {
  Buffer a = matrices(1, 3, 3), lu = matrices(1, 3, 3), pivots(DType::I32, {1, 3}),
         info(DType::I32, {1});
  const float rows[] = {1, 2, 4, -1, -2, 4, 1, 2, 8};
  std::memcpy(a.memory.data(), rows, sizeof rows);
  const StepDesc d = step(Op::LuFactor, {op(0), Arg::boolean(true), Arg::string("linalg.inv")});
  run_step(make_linalg, d, {&a}, {&lu, &pivots, &info}, 1);
  CHECK(pivots.at<int32_t>({0, 0}) == 1);
  CHECK(info.at<int32_t>({0}) == 2);
  CHECK(failure().find("The diagonal element 2 is zero") != std::string::npos);
}

TEST_CASE("triangular solves leave no remainder") {
  for (int64_t n : kSizes)
    for (int64_t cols : {1, 7, 40})
      for (int form = 0; form < 8; ++form) {
        CAPTURE(n);
        CAPTURE(cols);
        CAPTURE(form);
        const bool upper = form & 1, unit = form & 2, by_column = form & 4;
        Buffer a = matrices(2, n, n, by_column), b = matrices(2, n, cols, !by_column),
               x = matrices(2, n, cols);
        a.randn(5, 0.5f / std::sqrt(float(n)));
        b.randn(6);
        for (int64_t q = 0; q < 2; ++q)
          for (int64_t i = 0; i < n; ++i) a.at<float>({q, i, i}) = float(1 + i % 3);
        run_both(make_linalg,
                 step(Op::SolveTriangular, {op(0), op(1), Arg::boolean(upper), Arg::boolean(unit)}),
                 {&a, &b}, {&x});
        const At half = [&](int64_t q, int64_t i, int64_t j) {
          if (i == j) return unit ? 1.0 : double(a.at<float>({q, i, j}));
          return (i < j) == upper ? double(a.at<float>({q, i, j})) : 0.0;
        };
        CHECK(product_error(b, n, half, element(x)) < 1e-4);
      }
}

TEST_CASE("solves with LU factors, plain and adjoint; one matrix for a whole batch") {
  for (int64_t n : kSizes)
    for (bool adjoint : {false, true}) {
      CAPTURE(n);
      CAPTURE(adjoint);
      Buffer a = matrices(1, n, n), lu = matrices(1, n, n), pivots(DType::I32, {1, n}),
             info(DType::I32, {1}), b = matrices(3, n, 4), x = matrices(3, n, 4, true);
      make_regular(a, 7);
      b.randn(8);
      run_both(make_linalg, step(Op::LuFactor, {op(0), Arg::boolean(true), Arg::none()}), {&a},
               {&lu, &pivots, &info});
      for (Buffer* t : {&a, &lu, &pivots}) t->ref.shape[0] = 3, t->ref.strides[0] = 0;
      run_both(make_linalg, step(Op::LuSolve, {op(0), op(1), op(2), Arg::boolean(adjoint)}),
               {&lu, &pivots, &b}, {&x});
      CHECK(product_error(b, n, adjoint ? transposed(a) : element(a), element(x)) < 1e-4);
    }
}

TEST_CASE("qr: orthogonal and triangular factors, signs as LAPACK has them") {
  for (auto [m, n] : {std::pair{1, 1}, {5, 5}, {33, 33}, {50, 20}, {20, 50}, {130, 97}, {100, 130}})
    for (int form = 0; form < 4; ++form) {
      const bool complete = form & 1, low_rank = form & 2;
      CAPTURE(m);
      CAPTURE(n);
      CAPTURE(complete);
      CAPTURE(low_rank);
      const int64_t k = std::min(m, n), columns = complete ? m : k;
      Buffer a = matrices(2, m, n), packed = matrices(2, m, n), tau(DType::F32, {2, k}),
             q = matrices(2, m, columns);
      a.randn(9);
      if (low_rank)  // what is left after the first column is noise of noise
        each_index(a.ref.shape, [&](const Dims& at) {
          a.at<float>(at) = a.at<float>({at[0], at[1], 0}) * float(1 + at[2]);
        });
      run_both(make_linalg, step(Op::Geqrf, {op(0)}), {&a}, {&packed, &tau});
      run_both(make_linalg, step(Op::HouseholderProduct, {op(0), op(1)}), {&packed, &tau}, {&q});
      const At r = [&](int64_t b, int64_t i, int64_t j) {
        return i <= j ? double(packed.at<float>({b, i, j})) : 0.0;
      };
      CHECK(product_error(a, k, element(q), r) < (low_rank ? 1e-2 : 1e-4));
      Buffer unit = matrices(2, columns, columns);
      each_index(unit.ref.shape, [&](const Dims& at) { unit.at<float>(at) = at[1] == at[2]; });
      CHECK(product_error(unit, m, transposed(q), element(q)) < 1e-5);
      // A reflector turns the sign of what it leaves; the last row of a square has none.
      for (int64_t j = 0; j < std::min<int64_t>(k, 1); ++j)
        if (m > 1) CHECK((packed.at<float>({0, j, j}) < 0) == (a.at<float>({0, j, j}) > 0));
    }
}

TEST_CASE("eigenvalues ascend and belong to orthogonal vectors") {
  for (int64_t n : kSizes)
    for (bool upper : {false, true}) {
      CAPTURE(n);
      Buffer a = matrices(2, n, n), values(DType::F32, {2, n}), vectors = matrices(2, n, n),
             alone(DType::F32, {2, n});
      make_positive(a, 11);
      Buffer half = a;  // the other triangle is not looked at
      each_index(a.ref.shape, [&](const Dims& at) {
        if (upper ? at[1] > at[2] : at[1] < at[2]) half.at<float>(at) = 1e9f;
      });
      const StepDesc d = step(Op::Eigh, {op(0), Arg::boolean(upper)});
      run_both(make_linalg, d, {&half}, {&values, &vectors});
      run_both(make_linalg, d, {&half}, {&alone});
      CHECK(std::memcmp(values.memory.data(), alone.memory.data(), size_t(2 * n * 4)) == 0);
      for (int64_t i = 1; i < n; ++i)
        CHECK(values.at<float>({1, i - 1}) <= values.at<float>({1, i}));
      const At scaled = [&](int64_t b, int64_t i, int64_t j) {
        return double(vectors.at<float>({b, i, j})) * double(values.at<float>({b, j}));
      };
      CHECK(product_error(a, n, scaled, transposed(vectors)) < 1e-5);
      Buffer unit = matrices(2, n, n);
      each_index(unit.ref.shape, [&](const Dims& at) { unit.at<float>(at) = at[1] == at[2]; });
      CHECK(product_error(unit, n, transposed(vectors), element(vectors)) < 1e-5);
    }
}

TEST_CASE("singular values descend and their vectors rebuild the matrix") {
  for (auto [m, n] :
       {std::pair{1, 1}, {1, 6}, {6, 1}, {5, 5}, {33, 33}, {50, 20}, {20, 50}, {97, 60}})
    for (bool deficient : {false, true}) {
      CAPTURE(m);
      CAPTURE(n);
      CAPTURE(deficient);
      const int64_t k = std::min(m, n);
      Buffer a = matrices(2, m, n), u = matrices(2, m, k), s(DType::F32, {2, k}),
             vh = matrices(2, k, n), alone(DType::F32, {2, k});
      a.randn(13);
      if (deficient)  // equal rows, a zero column
        each_index(a.ref.shape, [&](const Dims& at) {
          if (at[1] > 0) a.at<float>(at) = a.at<float>({at[0], at[1] / 2, at[2]});
          if (at[2] == 0) a.at<float>(at) = 0;
        });
      const StepDesc d = step(Op::SvdThin, {op(0)});
      run_both(make_linalg, d, {&a}, {&u, &s, &vh});
      run_both(make_linalg, d, {&a}, {&alone});
      CHECK(std::memcmp(s.memory.data(), alone.memory.data(), size_t(2 * k * 4)) == 0);
      for (int64_t i = 1; i < k; ++i) CHECK(s.at<float>({0, i - 1}) >= s.at<float>({0, i}));
      CHECK(s.at<float>({0, k - 1}) >= 0);
      const At scaled = [&](int64_t b, int64_t i, int64_t j) {
        return double(u.at<float>({b, i, j})) * double(s.at<float>({b, j}));
      };
      CHECK(product_error(a, k, scaled, element(vh)) < 2e-5);
      Buffer unit = matrices(2, k, k);
      each_index(unit.ref.shape, [&](const Dims& at) { unit.at<float>(at) = at[1] == at[2]; });
      CHECK(product_error(unit, m, transposed(u), element(u)) < 1e-5);
      CHECK(product_error(unit, n, element(vh), transposed(vh)) < 1e-5);
    }
}

TEST_CASE("spectra of what is not finite are an error") {
  for (Op which : {Op::Eigh, Op::SvdThin}) {
    Buffer a = matrices(1, 3, 3), values(DType::F32, {1, 3});
    a.randn(1);
    a.at<float>({0, 2, 1}) = NAN;
    run_step(make_linalg, step(which, {op(0), Arg::boolean(false)}), {&a}, {&values}, 1);
    CHECK(failure().find("non-finite") != std::string::npos);
  }
}

TEST_CASE("matrix exponential: exp(a) is the limit of (1 + a / 2^p)^(2^p)") {
  for (int64_t n : {1, 3, 40, 100})
    for (float size : {0.1f, 3.0f}) {
      CAPTURE(n);
      CAPTURE(size);
      Buffer a = matrices(2, n, n), e = matrices(2, n, n);
      a.randn(15, size / std::sqrt(float(n)));
      run_both(make_linalg, step(Op::MatrixExp, {op(0)}), {&a}, {&e});
      // By squaring in double, from a step small enough for two terms.
      std::vector<double> x(size_t(n * n)), y(x.size());
      for (int64_t i = 0; i < n; ++i)
        for (int64_t j = 0; j < n; ++j)
          x[size_t(i * n + j)] = std::ldexp(a.at<float>({1, i, j}), -24);
      auto multiply = [&](const std::vector<double>& p, const std::vector<double>& q) {
        std::fill(y.begin(), y.end(), 0.0);
        for (int64_t i = 0; i < n; ++i)
          for (int64_t k = 0; k < n; ++k)
            for (int64_t j = 0; j < n; ++j)
              y[size_t(i * n + j)] += p[size_t(i * n + k)] * q[size_t(k * n + j)];
        return y;
      };
      // exp - 1 doubles as 2 z + z^2, without losing what is small beside 1.
      std::vector<double> z = x;
      const std::vector<double> square = multiply(x, x);
      for (size_t i = 0; i < z.size(); ++i) z[i] += square[i] / 2;
      for (int p = 0; p < 24; ++p) {
        const std::vector<double> s = multiply(z, z);
        for (size_t i = 0; i < z.size(); ++i) z[i] = 2 * z[i] + s[i];
      }
      double worst = 0, largest = 0;
      for (int64_t i = 0; i < n; ++i)
        for (int64_t j = 0; j < n; ++j) {
          const double want = z[size_t(i * n + j)] + (i == j);
          worst = std::max(worst, std::abs(e.at<float>({1, i, j}) - want));
          largest = std::max(largest, std::abs(want));
        }
      CHECK(worst <= 2e-5 * largest);
    }
}

TEST_CASE("linalg: result types and calls that make no sense") {
  const TensorType square{DType::F32, {2, 3, 4, 4}, {}}, tall{DType::F32, {5, 3}, {}};
  const auto lu = infer_call(infer_linalg, Op::LuFactor, {tall}, {op(0), Arg::boolean(true)});
  CHECK(lu[0].shape == Dims{5, 3});
  CHECK(lu[1].shape == Dims{3});
  CHECK(lu[1].dtype == DType::I32);
  CHECK(lu[2].shape == Dims{});
  CHECK(infer_call(infer_linalg, Op::Cholesky, {square}, {op(0)})[1].shape == Dims{2, 3});
  CHECK_THROWS_AS(infer_call(infer_linalg, Op::Cholesky, {tall}, {op(0)}), UserError);
  CHECK_THROWS_AS(infer_call(infer_linalg, Op::Geqrf, {{DType::F32, {3}, {}}}, {op(0)}), UserError);
}

}  // namespace
}  // namespace tessera::test
