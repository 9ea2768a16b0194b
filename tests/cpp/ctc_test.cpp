// SPDX-License-Identifier: Apache-2.0
// CTC against the sum over all paths, and its gradient against differences of that sum.
#include <doctest/doctest.h>

#include "ops/run_error.h"
#include "row_test_util.h"

namespace tessera::test {
namespace {

Arg op(int i) {
  return Arg::operand(i);
}

// Probability that the steps from `t` on spell the labels from `at` on; `last` is the class before.
double spell(const std::vector<std::vector<double>>& p, const std::vector<int>& labels, size_t t,
             size_t at, int last, int blank) {
  if (t == p.size()) return at == labels.size() ? 1 : 0;
  double sum = 0;
  for (int c = 0; c < static_cast<int>(p[t].size()); ++c) {
    size_t next = at;
    if (c != blank && c != last) {
      if (at >= labels.size() || labels[at] != c) continue;
      ++next;
    }
    sum += p[t][c] * spell(p, labels, t + 1, next, c, blank);
  }
  return sum;
}

struct Ctc {
  int64_t steps = 5, classes = 4, blank;
  std::vector<std::vector<int>> labels;
  std::vector<int> lengths;
  Buffer x, targets, in, out;

  Ctc(std::vector<std::vector<int>> all, std::vector<int> input_lengths, int64_t blank_class,
      bool rows, bool batch_major)
      : blank(blank_class),
        labels(std::move(all)),
        lengths(std::move(input_lengths)),
        x(DType::F32, {steps, batch(), classes},
          batch_major ? Dims{classes, steps * classes, 1} : Dims{batch() * classes, classes, 1}),
        targets(DType::I64, rows ? Dims{batch(), longest()} : Dims{total()}),
        in(DType::I32, {batch()}),
        out(DType::I64, {batch()}) {
    x.randn(1);
    for (int64_t t = 0; t < steps; ++t)
      for (int64_t b = 0; b < batch(); ++b) {
        double sum = 0;
        for (int64_t c = 0; c < classes; ++c) sum += std::exp(x.at<float>({t, b, c}));
        for (int64_t c = 0; c < classes; ++c) x.at<float>({t, b, c}) -= float(std::log(sum));
      }
    int64_t n = 0;
    for (int64_t b = 0; b < batch(); ++b) {
      in.data<int32_t>()[b] = lengths[b], out.data<int64_t>()[b] = int64_t(labels[b].size());
      for (size_t i = 0; i < labels[b].size(); ++i)
        targets.data<int64_t>()[rows ? b * longest() + int64_t(i) : n++] = labels[b][i];
    }
  }
  int64_t batch() const { return static_cast<int64_t>(labels.size()); }
  int64_t longest() const {
    size_t n = 0;
    for (const auto& l : labels) n = std::max(n, l.size());
    return static_cast<int64_t>(n);
  }
  int64_t total() const {
    size_t n = 0;
    for (const auto& l : labels) n += l.size();
    return static_cast<int64_t>(n);
  }
  double loss(int64_t b, int64_t bump_t = -1, int64_t bump_c = -1, double by = 0) {
    std::vector<std::vector<double>> p;
    for (int64_t t = 0; t < lengths[b]; ++t) {
      p.emplace_back();
      for (int64_t c = 0; c < classes; ++c)
        p.back().push_back(
            std::exp(x.at<float>({t, b, c}) + (t == bump_t && c == bump_c ? by : 0.0)));
    }
    return -std::log(spell(p, labels[b], 0, 0, -1, int(blank)));
  }
};

void check(Ctc& k, bool zero_infinity) {
  CAPTURE(k.blank);
  const int64_t states = 2 * k.longest() + 1;
  Buffer loss(DType::F32, {k.batch()}), alpha(DType::F32, {k.batch(), k.steps, states});
  run_both(make_ctc,
           step(Op::CtcLoss, {op(0), op(1), op(2), op(3), Arg::integer(k.blank),
                              Arg::boolean(zero_infinity), Arg::integer(k.longest())}),
           {&k.x, &k.targets, &k.in, &k.out}, {&loss, &alpha});
  CHECK(max_error(loss, [&](const Dims& i) { return k.loss(i[0]); }) < 1e-5);

  Buffer g(DType::F32, {k.batch()}), dx(DType::F32, {k.steps, k.batch(), k.classes});
  g.randn(2);
  run_both(make_ctc,
           step(Op::CtcLossGrad, {op(0), op(1), op(2), op(3), op(4), op(5), op(6),
                                  Arg::integer(k.blank), Arg::boolean(zero_infinity)}),
           {&g, &k.x, &k.targets, &k.in, &k.out, &loss, &alpha}, {&dx});
  CHECK(max_error(dx, [&](const Dims& i) {
          const int64_t t = i[0], b = i[1], c = i[2];
          if (t >= k.lengths[b]) return 0.0;
          if (std::isinf(k.loss(b))) return zero_infinity ? 0.0 : std::nan("");
          // The derivative for logits behind a log_softmax, as the gradient is defined.
          const double e = 1e-4, slope = (k.loss(b, t, c, e) - k.loss(b, t, c, -e)) / (2 * e);
          return g.data<float>()[b] * (std::exp(double(k.x.at<float>({t, b, c}))) + slope);
        }) < 2e-5);
}

TEST_CASE("ctc_loss and its gradient match the sum over all paths") {
  const std::vector<std::vector<int>> labels{{1, 2},    {3, 3},    {}, {2},
                                             {1, 1, 1}, {2, 3, 1}, {}, {1}};
  const std::vector<int> lengths{5, 4, 3, 1, 4, 5, 0, 0};
  for (bool rows : {false, true})
    for (bool batch_major : {false, true})
      for (bool zero_infinity : {false, true}) {
        Ctc k(labels, lengths, 0, rows, batch_major);
        check(k, zero_infinity);
      }
  Ctc other({{0, 1}, {2, 2}}, {5, 5}, 3, true, false);
  check(other, false);
}

TEST_CASE("lengths and labels that make no sense are reported, not followed") {
  auto run = [](Ctc& k) {
    Buffer loss(DType::F32, {k.batch()}), alpha(DType::F32, {k.batch(), k.steps, 7});
    CHECK_FALSE(harness_errors().take());
    run_both(make_ctc,
             step(Op::CtcLoss, {op(0), op(1), op(2), op(3), Arg::integer(0), Arg::boolean(false),
                                Arg::integer(3)}),
             {&k.x, &k.targets, &k.in, &k.out}, {&loss, &alpha});
    return harness_errors().take();
  };
  const std::vector<std::vector<int>> labels{{1, 2, 3}, {3}};
  for (int wrong = 0; wrong < 5; ++wrong) {
    CAPTURE(wrong);
    Ctc k(labels, {5, 4}, 0, wrong < 4, false);
    if (wrong == 0) k.targets.data<int64_t>()[1] = 4;
    if (wrong == 1) k.targets.data<int64_t>()[1] = -7;
    if (wrong == 2) k.in.data<int32_t>()[1] = 6;
    if (wrong == 3) k.out.data<int64_t>()[0] = 1000;
    if (wrong == 4) k.out.data<int64_t>()[1] = 3;  // past the end of the line of targets
    auto error = run(k);
    REQUIRE(error);
    CHECK(error->message.find("[ctc_loss]") != std::string::npos);
  }
  Ctc good(labels, {5, 4}, 0, true, false);
  CHECK_FALSE(run(good));
}

TEST_CASE("a beam as wide as there are sequences finds the likeliest ones") {
  Ctc k({{}, {}, {}}, {5, 4, 0}, 0, true, true);
  const int64_t top = 3;
  Buffer score(DType::F32, {3, top}), sizes(DType::I32, {3, top});
  Buffer labels(DType::I32, {3, top, k.steps});
  run_both(make_beam,
           step(Op::CtcBeamSearch,
                {op(0), op(1), Arg::integer(0), Arg::integer(400), Arg::integer(top)}),
           {&k.x, &k.in}, {&score, &sizes, &labels});
  for (int64_t b = 0; b < 3; ++b)
    for (int64_t i = 0; i < top; ++i) {
      const float p = score.at<float>({b, i});
      if (i > 0) CHECK(p <= score.at<float>({b, i - 1}));
      if (k.lengths[b] == 0 && i > 0) {
        CHECK(std::isinf(p));
        continue;
      }
      k.labels[b].clear();
      for (int64_t t = 0; t < sizes.at<int32_t>({b, i}); ++t)
        k.labels[b].push_back(labels.at<int32_t>({b, i, t}));
      CHECK(p == doctest::Approx(-k.loss(b)).epsilon(1e-5));
    }
}

}  // namespace
}  // namespace tessera::test
