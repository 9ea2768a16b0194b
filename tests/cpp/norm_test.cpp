// SPDX-License-Identifier: Apache-2.0
// Layer, group and batch norm and their gradients against the textbook formulas in double, in all
// supported orders.
#include "kernels/norm.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>

#include "row_test_util.h"

namespace tessera::test {
namespace {

Arg op(int i) {
  return Arg::operand(i);
}

struct Moments {
  double mean = 0, var = 0;
};
Moments moments(const std::vector<double>& v) {
  Moments m;
  for (double x : v) m.mean += x;
  m.mean /= double(v.size());
  for (double x : v) m.var += (x - m.mean) * (x - m.mean);
  m.var /= double(v.size());
  return m;
}

const std::vector<int> kRowMajor = {3, 2, 1, 0}, kChannelsLast = {1, 3, 2, 0}, kChwn = {0, 3, 2, 1};

struct LayerCase {
  int64_t rows, len;
  bool affine;
};

TEST_CASE("layer norm and its gradient match double loops") {
  for (const LayerCase& k : {LayerCase{3, 7, true},
                             {513, 768, true},
                             {65, 100, false},
                             {1, 20000, true},
                             {37, 16, true},
                             {200, 129, true}}) {
    CAPTURE(k.rows);
    CAPTURE(k.len);
    Buffer x(DType::F32, {k.rows, k.len}), w(DType::F32, {k.len}), b(DType::F32, {k.len});
    Buffer y(DType::F32, {k.rows, k.len}), mean(DType::F32, {k.rows, 1}),
        rstd(DType::F32, {k.rows, 1});
    x.randn(1, 2.0f);
    for (int64_t i = 0; i < k.rows * k.len; ++i) x.data<float>()[i] += 3.0f;
    w.randn(2);
    b.randn(3);
    const double eps = 1e-5;
    StepDesc d = step(Op::LayerNorm, {op(0), Arg::ints({k.len}), k.affine ? op(1) : Arg::none(),
                                      k.affine ? op(2) : Arg::none(), Arg::real(eps)});
    run_both(make_norm, d, {&x, &w, &b}, {&y, &mean, &rstd});
    std::vector<Moments> m(k.rows);
    for (int64_t r = 0; r < k.rows; ++r) {
      std::vector<double> row;
      for (int64_t i = 0; i < k.len; ++i) row.push_back(x.at<float>({r, i}));
      m[r] = moments(row);
    }
    auto weight = [&](int64_t i) { return k.affine ? double(w.at<float>({i})) : 1.0; };
    auto hat = [&](int64_t r, int64_t i) {
      return (x.at<float>({r, i}) - m[r].mean) / std::sqrt(m[r].var + eps);
    };
    CHECK(max_error(mean, [&](const Dims& i) { return m[i[0]].mean; }) < 1e-6);
    CHECK(max_error(rstd, [&](const Dims& i) { return 1 / std::sqrt(m[i[0]].var + eps); }) < 1e-6);
    CHECK(max_error(y, [&](const Dims& i) {
            return hat(i[0], i[1]) * weight(i[1]) + (k.affine ? b.at<float>({i[1]}) : 0.0f);
          }) < 3e-6);

    Buffer g(DType::F32, {k.rows, k.len}), dx(DType::F32, {k.rows, k.len}), dw(DType::F32, {k.len}),
        db(DType::F32, {k.len}), none(DType::F32, {1});
    g.randn(4);
    const Arg mask = Arg::of({Arg::boolean(true), Arg::boolean(k.affine), Arg::boolean(k.affine)});
    StepDesc gd = step(Op::LayerNormGrad,
                       {op(0), op(1), Arg::ints({k.len}), op(2), op(3),
                        k.affine ? op(4) : Arg::none(), k.affine ? op(5) : Arg::none(), mask});
    run_both(make_norm, gd, {&g, &x, &mean, &rstd, &w, &b},
             {&dx, k.affine ? &dw : &none, k.affine ? &db : &none});
    std::vector<double> s1(k.rows), s2(k.rows), sw(k.len), sb(k.len);
    for (int64_t r = 0; r < k.rows; ++r)
      for (int64_t i = 0; i < k.len; ++i) {
        const double gv = g.at<float>({r, i});
        s1[r] += gv * weight(i) / double(k.len);
        s2[r] += gv * weight(i) * hat(r, i) / double(k.len);
        sw[i] += gv * hat(r, i);
        sb[i] += gv;
      }
    CHECK(max_error(dx, [&](const Dims& i) {
            const int64_t r = i[0];
            return (g.at<float>(i) * weight(i[1]) - s1[r] - hat(r, i[1]) * s2[r]) /
                   std::sqrt(m[r].var + eps);
          }) < 3e-6);
    if (k.affine) {
      CHECK(max_error(dw, [&](const Dims& i) { return sw[i[0]]; }) < 2e-5);
      CHECK(max_error(db, [&](const Dims& i) { return sb[i[0]]; }) < 2e-5);
    }
  }
}

TEST_CASE("variance survives a mean far from zero") {
  Buffer x(DType::F32, {2, 1000}), y(DType::F32, {2, 1000}), mean(DType::F32, {2, 1}),
      rstd(DType::F32, {2, 1});
  x.randn(7, 0.5f);
  for (int i = 0; i < 2000; ++i) x.data<float>()[i] += 5000.0f;
  run_both(
      make_norm,
      step(Op::LayerNorm, {op(0), Arg::ints({1000}), Arg::none(), Arg::none(), Arg::real(0.0)}),
      {&x}, {&y, &mean, &rstd});
  for (int64_t r = 0; r < 2; ++r) {
    std::vector<double> row;
    for (int64_t i = 0; i < 1000; ++i) row.push_back(x.at<float>({r, i}));
    CHECK(rstd.at<float>({r, 0}) == doctest::Approx(1 / std::sqrt(moments(row).var)).epsilon(1e-4));
  }
}

struct PlaneCase {
  Dims shape;
  std::vector<int> x_order, g_order, out_order;
  int64_t groups;
};

const std::vector<PlaneCase>& plane_cases() {
  static const std::vector<PlaneCase> all = {
      {{16, 12, 9, 9}, kRowMajor, kRowMajor, kRowMajor, 3},
      {{16, 12, 9, 9}, kChannelsLast, kChannelsLast, kChannelsLast, 3},
      {{16, 12, 9, 9}, kChwn, kChwn, kChwn, 3},
      {{19, 40, 5, 3}, kChwn, kChwn, kChwn, 2},
      {{3, 40, 5, 3}, kChannelsLast, kChannelsLast, kChannelsLast, 2},
      {{3, 40, 5, 3}, kChannelsLast, kChannelsLast, kChannelsLast, 10},
      {{4, 24, 9, 7}, kChannelsLast, kChannelsLast, kChannelsLast, 3},
      {{3, 6, 37, 1}, kRowMajor, kRowMajor, kRowMajor, 6},
      {{5, 8, 4, 4}, kRowMajor, kChannelsLast, kChwn, 4},
      {{5, 8, 1, 1}, kRowMajor, kRowMajor, kRowMajor, 2},
      {{1, 8, 30, 41}, kChwn, kChwn, kChwn, 2},
  };
  return all;
}

TEST_CASE("group norm and its gradient match double loops in every order") {
  for (const PlaneCase& k : plane_cases()) {
    CAPTURE(k.shape);
    CAPTURE(k.groups);
    const int64_t N = k.shape[0], C = k.shape[1], S = k.shape[2] * k.shape[3], depth = C / k.groups;
    Buffer x(DType::F32, k.shape, strides_of_order(k.shape, k.x_order)), w(DType::F32, {C}),
        b(DType::F32, {C});
    Buffer y(DType::F32, k.shape, strides_of_order(k.shape, k.out_order)),
        mean(DType::F32, {N, k.groups}), rstd(DType::F32, {N, k.groups});
    x.randn(1, 3.0f);
    w.randn(2);
    b.randn(3);
    const double eps = 1e-5;
    const Arg sizes[] = {Arg::integer(N), Arg::integer(C), Arg::integer(S), Arg::integer(k.groups)};
    run_both(make_norm,
             step(Op::GroupNorm,
                  {op(0), op(1), op(2), sizes[0], sizes[1], sizes[2], sizes[3], Arg::real(eps)}),
             {&x, &w, &b}, {&y, &mean, &rstd});
    std::vector<Moments> m(N * k.groups);
    for (int64_t n = 0; n < N; ++n)
      for (int64_t q = 0; q < k.groups; ++q) {
        std::vector<double> v;
        each_index({depth, k.shape[2], k.shape[3]}, [&](const Dims& i) {
          v.push_back(x.at<float>({n, q * depth + i[0], i[1], i[2]}));
        });
        m[n * k.groups + q] = moments(v);
      }
    auto at = [&](const Dims& i) -> const Moments& { return m[i[0] * k.groups + i[1] / depth]; };
    auto hat = [&](const Dims& i) {
      return (x.at<float>(i) - at(i).mean) / std::sqrt(at(i).var + eps);
    };
    CHECK(max_error(mean, [&](const Dims& i) { return m[i[0] * k.groups + i[1]].mean; }) < 1e-6);
    CHECK(max_error(rstd, [&](const Dims& i) {
            return 1 / std::sqrt(m[i[0] * k.groups + i[1]].var + eps);
          }) < 1e-6);
    CHECK(max_error(y, [&](const Dims& i) {
            return hat(i) * w.at<float>({i[1]}) + b.at<float>({i[1]});
          }) < 4e-6);

    Buffer g(DType::F32, k.shape, strides_of_order(k.shape, k.g_order)), dw(DType::F32, {C}),
        db(DType::F32, {C});
    Buffer dx(DType::F32, k.shape, strides_of_order(k.shape, k.out_order));
    g.randn(4);
    const Arg mask = Arg::of({Arg::boolean(true), Arg::boolean(true), Arg::boolean(true)});
    run_both(make_norm,
             step(Op::GroupNormGrad, {op(0), op(1), op(2), op(3), op(4), sizes[0], sizes[1],
                                      sizes[2], sizes[3], mask}),
             {&g, &x, &mean, &rstd, &w}, {&dx, &dw, &db});
    std::vector<double> s1(N * k.groups), s2(N * k.groups), sw(C), sb(C);
    const double count = double(depth * S);
    each_index(k.shape, [&](const Dims& i) {
      const double gv = g.at<float>(i), gw = gv * w.at<float>({i[1]});
      s1[i[0] * k.groups + i[1] / depth] += gw / count;
      s2[i[0] * k.groups + i[1] / depth] += gw * hat(i) / count;
      sw[i[1]] += gv * hat(i);
      sb[i[1]] += gv;
    });
    CHECK(max_error(dx, [&](const Dims& i) {
            const int64_t u = i[0] * k.groups + i[1] / depth;
            return (g.at<float>(i) * w.at<float>({i[1]}) - s1[u] - hat(i) * s2[u]) /
                   std::sqrt(at(i).var + eps);
          }) < 4e-6);
    CHECK(max_error(dw, [&](const Dims& i) { return sw[i[0]]; }) < 1e-5);
    CHECK(max_error(db, [&](const Dims& i) { return sb[i[0]]; }) < 1e-5);
  }
}

TEST_CASE("batch norm follows ATen: biased variance inside, unbiased in the running one") {
  for (const PlaneCase& k : plane_cases()) {
    CAPTURE(k.shape);
    const int64_t N = k.shape[0], C = k.shape[1];
    const double count = double(N * k.shape[2] * k.shape[3]), eps = 1e-3, momentum = 0.3;
    Buffer x(DType::F32, k.shape, strides_of_order(k.shape, k.x_order)), w(DType::F32, {C}),
        b(DType::F32, {C});
    Buffer rm(DType::F32, {C}), rv(DType::F32, {C});
    Buffer y(DType::F32, k.shape, strides_of_order(k.shape, k.out_order));
    Buffer sm(DType::F32, {C}), sr(DType::F32, {C}), nm(DType::F32, {C}), nv(DType::F32, {C}),
        none(DType::F32, {0});
    x.randn(1, 3.0f);
    w.randn(2);
    b.randn(3);
    rm.randn(4);
    rv.randn(5);
    for (int64_t i = 0; i < C; ++i) rv.data<float>()[i] = std::abs(rv.data<float>()[i]) + 0.1f;
    std::vector<Moments> m(C);
    for (int64_t c = 0; c < C; ++c) {
      std::vector<double> v;
      each_index({N, k.shape[2], k.shape[3]}, [&](const Dims& i) {
        v.push_back(x.at<float>({i[0], c, i[1], i[2]}));
      });
      m[c] = moments(v);
    }
    for (bool training : {true, false}) {
      run_both(make_norm,
               step(Op::BatchNorm, {op(0), op(1), op(2), op(3), op(4), Arg::boolean(training),
                                    Arg::real(momentum), Arg::real(eps)}),
               {&x, &w, &b, &rm, &rv},
               {&y, training ? &sm : &none, training ? &sr : &none, &nm, &nv});
      auto mean = [&](int64_t c) { return training ? m[c].mean : double(rm.at<float>({c})); };
      auto var = [&](int64_t c) { return training ? m[c].var : double(rv.at<float>({c})); };
      auto hat = [&](const Dims& i) {
        return (x.at<float>(i) - mean(i[1])) / std::sqrt(var(i[1]) + eps);
      };
      CHECK(max_error(y, [&](const Dims& i) {
              return hat(i) * w.at<float>({i[1]}) + b.at<float>({i[1]});
            }) < 5e-6);
      const double f = training ? momentum : 0;
      CHECK(max_error(nm, [&](const Dims& i) {
              return (1 - f) * rm.at<float>(i) + f * m[i[0]].mean;
            }) < 1e-6);
      CHECK(max_error(nv, [&](const Dims& i) {
              return (1 - f) * rv.at<float>(i) + f * m[i[0]].var * count / (count - 1);
            }) < 1e-6);
      if (training) {
        CHECK(max_error(sm, [&](const Dims& i) { return m[i[0]].mean; }) < 1e-6);
        CHECK(max_error(sr, [&](const Dims& i) { return 1 / std::sqrt(m[i[0]].var + eps); }) <
              1e-6);
      }
      if (!training) {
        Buffer y2(DType::F32, k.shape, strides_of_order(k.shape, k.out_order));
        run_both(make_norm,
                 step(Op::BatchNormEval,
                      {op(0), op(1), op(2), op(3), op(4), Arg::real(momentum), Arg::real(eps)}),
                 {&x, &w, &b, &rm, &rv}, {&y2, &none, &none});
        CHECK(y2.memory == y.memory);
      }
      Buffer g(DType::F32, k.shape, strides_of_order(k.shape, k.g_order)), dw(DType::F32, {C}),
          db(DType::F32, {C});
      Buffer dx(DType::F32, k.shape, strides_of_order(k.shape, k.out_order));
      g.randn(6);
      const Arg mask = Arg::of({Arg::boolean(true), Arg::boolean(true), Arg::boolean(true)});
      run_both(make_norm,
               step(Op::BatchNormGrad, {op(0), op(1), op(2), op(3), op(4), op(5), op(6),
                                        Arg::boolean(training), Arg::real(eps), mask}),
               {&g, &x, &w, &rm, &rv, &sm, &sr}, {&dx, &dw, &db});
      std::vector<double> sw(C), sb(C);
      each_index(k.shape, [&](const Dims& i) {
        sw[i[1]] += g.at<float>(i) * hat(i);
        sb[i[1]] += g.at<float>(i);
      });
      CHECK(max_error(dw, [&](const Dims& i) { return sw[i[0]]; }) < 1e-5);
      CHECK(max_error(db, [&](const Dims& i) { return sb[i[0]]; }) < 1e-5);
      CHECK(max_error(dx, [&](const Dims& i) {
              const double back = training ? (sb[i[1]] + hat(i) * sw[i[1]]) / count : 0;
              return w.at<float>({i[1]}) * (g.at<float>(i) - back) / std::sqrt(var(i[1]) + eps);
            }) < 1e-5);
    }
  }
}

TEST_CASE("gradients that are not asked for stay untouched") {
  Buffer x(DType::F32, {4, 8}), g(DType::F32, {4, 8}), mean(DType::F32, {4, 1}),
      rstd(DType::F32, {4, 1}), w(DType::F32, {8});
  Buffer dx(DType::F32, {4, 8}), dw(DType::F32, {8}), db(DType::F32, {8});
  x.randn(1), g.randn(2), mean.randn(3), rstd.randn(4), w.randn(5);
  const Arg mask = Arg::of({Arg::boolean(false), Arg::boolean(true), Arg::boolean(false)});
  poison(dx), poison(db);
  const auto before = dx.memory, before_db = db.memory;
  run_both(make_norm,
           step(Op::LayerNormGrad,
                {op(0), op(1), Arg::ints({8}), op(2), op(3), op(4), Arg::none(), mask}),
           {&g, &x, &mean, &rstd, &w}, {&dx, &dw, &db});
  CHECK(dx.memory == before);
  CHECK(db.memory == before_db);
  const auto t =
      infer_call(infer_norm, Op::LayerNormGrad,
                 {{DType::F32, {4, 8}, {}},
                  {DType::F32, {4, 8}, {}},
                  {DType::F32, {4, 1}, {}},
                  {DType::F32, {4, 1}, {}}},
                 {op(0), op(1), Arg::ints({8}), op(2), op(3), Arg::none(), Arg::none(), mask});
  CHECK(t[0].shape == Dims{0});
  CHECK(t[1].shape == Dims{8});
}

TEST_CASE("norm accepts the three activation orders and refuses others") {
  const Dims s = {4, 6, 5, 5};
  auto ref = [&](const std::vector<int>& order) {
    return TensorRef{DType::F32, s, strides_of_order(s, order), 0, 0};
  };
  for (const auto& order : {kRowMajor, kChannelsLast, kChwn})
    CHECK(accepts_norm(Op::GroupNorm, 0, ref(order)));
  CHECK_FALSE(accepts_norm(Op::GroupNorm, 0, ref({2, 3, 1, 0})));
  CHECK_FALSE(accepts_norm(Op::LayerNorm, 0, ref(kChannelsLast)));
}

TEST_CASE("layer norm of a row depends neither on its neighbours nor on its distance from zero") {
  for (const int64_t len : {1, 5, 32, 100, 512, 513}) {
    for (const float far : {0.0f, 1000.0f, 3e30f, 1e-30f}) {
      CAPTURE(len);
      CAPTURE(far);
      constexpr int64_t kRows = 7;
      std::vector<float> x(kRows * len), y(x.size()), alone(len);
      for (size_t i = 0; i < x.size(); ++i)
        x[i] = far > 1e4f || (far > 0 && far < 1) ? far : far + std::sin(static_cast<float>(i));
      float mean[kRows], rstd[kRows], own_mean, own_rstd;
      const auto forward = kernels::layer_norm_kernels().forward;
      forward(x.data(), nullptr, nullptr, y.data(), mean, rstd, kRows, len, 1e-5f);
      for (int64_t r = 0; r < kRows; ++r) {
        const float* row = x.data() + r * len;
        forward(row, nullptr, nullptr, alone.data(), &own_mean, &own_rstd, 1, len, 1e-5f);
        CHECK(own_mean == mean[r]);
        CHECK(std::memcmp(&own_rstd, &rstd[r], sizeof(float)) == 0);
        CHECK(std::memcmp(alone.data(), y.data() + r * len, len * sizeof(float)) == 0);
        const auto [m, var] = moments({row, row + len});
        const double s = 1 / std::sqrt(var + 1e-5);
        if (far > 1e4f) continue;  // the mean of equal values may be one unit off
        CHECK(rstd[r] == doctest::Approx(s).epsilon(2e-6));
        for (int64_t i = 0; i < len; ++i)
          CHECK(std::abs(y[r * len + i] - (row[i] - m) * s) < 2e-6 * (1 + far * s * 0.06));
      }
    }
  }
}

}  // namespace
}  // namespace tessera::test
