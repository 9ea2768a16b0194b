// SPDX-License-Identifier: Apache-2.0
// Negative log likelihood: reductions, weights, ignored and impossible targets.
#include <doctest/doctest.h>

#include "ops/run_error.h"
#include "row_test_util.h"

namespace tessera::test {
namespace {

Arg op(int i) {
  return Arg::operand(i);
}

struct Nll {
  int64_t n, c;
  bool batched, weighted, lanes;
  Buffer x, t, w;

  Nll(int64_t samples, int64_t classes, bool has_batch, bool has_weight, bool batch_in_lanes)
      : n(samples),
        c(classes),
        batched(has_batch),
        weighted(has_weight),
        lanes(batch_in_lanes),
        x(DType::F32, shape(), strides()),
        t(DType::I64, has_batch ? Dims{n} : Dims{}),
        w(DType::F32, {c}) {
    x.randn(1);
    w.randn(2);
    std::mt19937 gen(3);
    for (int64_t i = 0; i < n; ++i)
      t.data<int64_t>()[i] = i % 7 == 3 ? -100 : int64_t(gen() % unsigned(c));
    for (int64_t i = 0; i < c; ++i) w.data<float>()[i] = std::abs(w.data<float>()[i]) + 0.1f;
  }
  Dims shape() const { return batched ? Dims{n, c} : Dims{c}; }
  Dims strides() const { return lanes ? Dims{1, n} : dense_strides(shape()); }
  float value(int64_t i, int64_t k) { return batched ? x.at<float>({i, k}) : x.at<float>({k}); }
  double weight(int64_t k) { return weighted ? w.data<float>()[k] : 1.0; }
  Arg weight_arg() const { return weighted ? op(2) : Arg::none(); }
};

TEST_CASE("nll_loss and its gradient match the definition") {
  for (bool batched : {true, false})
    for (bool weighted : {true, false})
      for (bool lanes : {false, true})
        for (int64_t reduction : {0, 1, 2}) {
          if (!batched && lanes) continue;
          CAPTURE(batched);
          CAPTURE(weighted);
          CAPTURE(reduction);
          Nll k(batched ? 301 : 1, 97, batched, weighted, lanes);
          const bool each = reduction == 0 && batched;
          Buffer loss(DType::F32, each ? Dims{k.n} : Dims{}), total(DType::F32, {});
          run_both(make_loss,
                   step(Op::NllLoss, {op(0), op(1), k.weight_arg(), Arg::integer(reduction),
                                      Arg::integer(-100)}),
                   {&k.x, &k.t, &k.w}, {&loss, &total});
          double sum = 0, weights = 0;
          std::vector<double> terms;
          for (int64_t i = 0; i < k.n; ++i) {
            const int64_t t = k.t.data<int64_t>()[i];
            terms.push_back(t == -100 ? 0.0 : -k.weight(t) * k.value(i, t));
            sum += terms.back();
            weights += t == -100 ? 0.0 : k.weight(t);
          }
          if (each)
            CHECK(max_error(loss, [&](const Dims& i) { return terms[i[0]]; }) < 1e-6);
          else
            CHECK(loss.data<float>()[0] ==
                  doctest::Approx(reduction == 1 ? sum / weights : sum).epsilon(1e-5));
          if (reduction != 0)
            CHECK(total.data<float>()[0] == doctest::Approx(weights).epsilon(1e-5));

          Buffer g(DType::F32, each ? Dims{k.n} : Dims{}), dx(DType::F32, k.shape(), k.strides());
          g.randn(5);
          run_both(make_loss,
                   step(Op::NllLossGrad, {op(0), op(1), op(2), k.weighted ? op(3) : Arg::none(),
                                          Arg::integer(reduction), Arg::integer(-100), op(4)}),
                   {&g, &k.x, &k.t, &k.w, &total}, {&dx});
          CHECK(max_error(dx, [&](const Dims& i) {
                  const int64_t s = batched ? i[0] : 0, t = k.t.data<int64_t>()[s];
                  if (t != i.back()) return 0.0;
                  const double grad = g.data<float>()[each ? s : 0];
                  return -k.weight(t) * grad / (reduction == 1 ? weights : 1.0);
                }) < 1e-6);
        }
}

TEST_CASE("nll_loss over positions matches the definition in either order") {
  const int64_t n = 3, c = 5, s = 4001;  // more samples than one thread adds up
  for (bool channels_last : {false, true})
    for (int64_t reduction : {0, 1, 2}) {
      CAPTURE(channels_last);
      CAPTURE(reduction);
      const Dims shape{n, c, s}, order = channels_last ? Dims{c * s, 1, c} : dense_strides(shape);
      Buffer x(DType::F32, shape, order), t(DType::I64, {n, s}), w(DType::F32, {c});
      x.randn(1);
      for (int64_t i = 0; i < n * s; ++i) t.data<int64_t>()[i] = i % 7 == 3 ? -100 : i * 31 % c;
      for (int64_t i = 0; i < c; ++i) w.data<float>()[i] = 0.5f + static_cast<float>(i);
      Buffer loss(DType::F32, reduction == 0 ? Dims{n, s} : Dims{}), total(DType::F32, {});
      run_both(
          make_loss,
          step(Op::NllLoss, {op(0), op(1), op(2), Arg::integer(reduction), Arg::integer(-100)}),
          {&x, &t, &w}, {&loss, &total});
      auto term = [&](int64_t b, int64_t p) {
        const int64_t k = t.at<int64_t>({b, p});
        return k < 0 ? 0.0 : -double(w.data<float>()[k]) * x.at<float>({b, k, p});
      };
      double sum = 0, weights = 0;
      for (int64_t b = 0; b < n; ++b)
        for (int64_t p = 0; p < s; ++p) {
          sum += term(b, p);
          const int64_t k = t.at<int64_t>({b, p});
          weights += k < 0 ? 0 : w.data<float>()[k];
        }
      if (reduction == 0)
        CHECK(max_error(loss, [&](const Dims& i) { return term(i[0], i[1]); }) < 1e-6);
      else
        CHECK(loss.data<float>()[0] ==
              doctest::Approx(reduction == 1 ? sum / weights : sum).epsilon(1e-5));
      Buffer g(DType::F32, reduction == 0 ? Dims{n, s} : Dims{}), dx(DType::F32, shape, order);
      g.randn(5);
      run_both(make_loss,
               step(Op::NllLossGrad, {op(0), op(1), op(2), op(3), Arg::integer(reduction),
                                      Arg::integer(-100), op(4)}),
               {&g, &x, &t, &w, &total}, {&dx});
      CHECK(max_error(dx, [&](const Dims& i) {
              if (t.at<int64_t>({i[0], i[2]}) != i[1]) return 0.0;
              const double grad = reduction == 0 ? g.at<float>({i[0], i[2]}) : g.data<float>()[0];
              return -w.data<float>()[i[1]] * grad / (reduction == 1 ? weights : 1.0);
            }) < 1e-6);
    }
}

TEST_CASE("a target out of range is reported, not read") {
  for (int64_t bad : {97, -1, 1 << 30}) {
    Nll k(301, 97, true, false, false);
    k.t.data<int64_t>()[200] = bad;
    Buffer loss(DType::F32, {}), total(DType::F32, {}), g(DType::F32, {}),
        dx(DType::F32, {301, 97});
    g.randn(1);
    CHECK_FALSE(harness_errors().take());
    run_both(make_loss,
             step(Op::NllLoss, {op(0), op(1), Arg::none(), Arg::integer(1), Arg::integer(-100)}),
             {&k.x, &k.t}, {&loss, &total});
    auto error = harness_errors().take();
    REQUIRE(error);
    CHECK(error->message.find(fmt::format("target {} is out of bounds", bad)) != std::string::npos);
    CHECK(error->where == "somewhere");
    CHECK_FALSE(harness_errors().take());
    run_both(make_loss,
             step(Op::NllLossGrad,
                  {op(0), op(1), op(2), Arg::none(), Arg::integer(1), Arg::integer(-100), op(3)}),
             {&g, &k.x, &k.t, &total}, {&dx});
    CHECK(harness_errors().take());
  }
}

TEST_CASE("nll_loss checks shapes and types") {
  auto call = [](TensorType x, TensorType t) {
    return infer_call(infer_loss, Op::NllLoss, {x, t},
                      {op(0), op(1), Arg::none(), Arg::integer(0), Arg::integer(-100)});
  };
  CHECK(call({DType::F32, {4, 3}, {}}, {DType::I64, {4}, {}})[0].shape == Dims{4});
  CHECK(call({DType::F32, {3}, {}}, {DType::I64, {}, {}})[0].shape == Dims{});
  CHECK_THROWS_AS(call({DType::F32, {4, 3}, {}}, {DType::I64, {5}, {}}), UserError);
  CHECK_THROWS_AS(call({DType::F32, {4, 3}, {}}, {DType::F32, {4}, {}}), UserError);
  CHECK_THROWS_AS(call({DType::F32, {4, 3, 2}, {}}, {DType::I64, {4}, {}}), UserError);
}

}  // namespace
}  // namespace tessera::test
