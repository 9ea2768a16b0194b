// SPDX-License-Identifier: Apache-2.0
// Permutations and multinomial draws: what they must always be, how often they must be what, and
// that only key and stream decide.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>

#include "row_test_util.h"

namespace tessera::test {
namespace {

Arg op(int i) {
  return Arg::operand(i);
}

Buffer key(int64_t seed, int64_t call) {
  Buffer k(DType::I64, {2});
  k.data<int64_t>()[0] = seed;
  k.data<int64_t>()[1] = call;
  return k;
}

std::vector<int64_t> permutation(int64_t n, int64_t seed, int64_t call, int64_t stream) {
  Buffer k = key(seed, call), out(DType::I64, {n});
  run_both(make_random, step(Op::RandPerm, {op(0), Arg::integer(stream)}), {&k}, {&out});
  return {out.data<int64_t>(), out.data<int64_t>() + n};
}

TEST_CASE("randperm: every number once, another order for another key, call or stream") {
  for (int64_t n : {0, 1, 2, 1000}) {
    std::vector<int64_t> p = permutation(n, 1, 2, 3);
    std::sort(p.begin(), p.end());
    for (int64_t i = 0; i < n; ++i) CHECK(p[size_t(i)] == i);
  }
  const auto first = permutation(1000, 1, 2, 3);
  CHECK(first == permutation(1000, 1, 2, 3));
  CHECK(first != permutation(1000, 2, 2, 3));
  CHECK(first != permutation(1000, 1, 3, 3));
  CHECK(first != permutation(1000, 1, 2, 4));
}

TEST_CASE("randperm: all orders are equally likely") {
  std::map<std::vector<int64_t>, int> seen;
  const int draws = 12000;
  for (int call = 0; call < draws; ++call) ++seen[permutation(4, 9, call, 1)];
  CHECK(seen.size() == 24);
  double chi = 0;
  for (const auto& [order, n] : seen)
    chi += (n - draws / 24.0) * (n - draws / 24.0) / (draws / 24.0);
  CHECK(chi < 60);  // 23 degrees of freedom: once in 30000 seeds
}

Buffer draw(Buffer& weights, int64_t samples, bool replacement, int64_t call = 0) {
  Buffer k = key(5, call), out(DType::I64, {weights.ref.shape[0], samples});
  run_both(make_random,
           step(Op::Multinomial,
                {op(0), Arg::integer(2), op(1), Arg::integer(samples), Arg::boolean(replacement)}),
           {&k, &weights}, {&out});
  return out;
}

TEST_CASE("multinomial with replacement follows the weights, row by row") {
  const int64_t classes = 5, samples = 20000;
  Buffer w(DType::F32, {3, classes});
  const float table[] = {1, 0, 3, 4, 2, 0, 0, 7, 0, 0, 0.1f, 0.1f, 0.1f, 0.1f, 0.1f};
  std::memcpy(w.memory.data(), table, sizeof table);
  Buffer out = draw(w, samples, true);
  for (int64_t r = 0; r < 3; ++r) {
    double sum = 0;
    std::vector<double> seen(classes, 0);
    for (int64_t i = 0; i < classes; ++i) sum += w.at<float>({r, i});
    for (int64_t i = 0; i < samples; ++i) ++seen[size_t(out.at<int64_t>({r, i}))];
    for (int64_t i = 0; i < classes; ++i) {
      const double p = w.at<float>({r, i}) / sum;
      if (p == 0) CHECK(seen[size_t(i)] == 0);
      CHECK(std::abs(seen[size_t(i)] - samples * p) <= 5 * std::sqrt(samples * p * (1 - p)));
    }
  }
}

TEST_CASE("multinomial without replacement: no class twice, the first as the weights say") {
  const int64_t classes = 6;
  Buffer w(DType::F32, {4, classes});
  for (int64_t r = 0; r < 4; ++r)
    for (int64_t i = 0; i < classes; ++i) w.at<float>({r, i}) = i == 3 ? 0.0f : float(i + 1);
  const int draws = 3000;
  std::vector<double> first(classes, 0);
  for (int call = 0; call < draws; ++call) {
    Buffer out = draw(w, classes, false, call);
    for (int64_t r = 0; r < 4; ++r) {
      std::vector<int64_t> row(out.data<int64_t>() + r * classes,
                               out.data<int64_t>() + (r + 1) * classes);
      ++first[size_t(row[0])];
      CHECK(row.back() == 3);  // a class of weight zero comes last
      std::sort(row.begin(), row.end());
      for (int64_t i = 0; i < classes; ++i) CHECK(row[size_t(i)] == i);
    }
  }
  const double n = 4.0 * draws, sum = 1 + 2 + 3 + 5 + 6;
  for (int64_t i = 0; i < classes; ++i) {
    const double p = w.at<float>({0, i}) / sum;
    CHECK(std::abs(first[size_t(i)] - n * p) <= 5 * std::sqrt(n * p * (1 - p)));
  }
}

TEST_CASE("multinomial: weights that are no distribution are an error") {
  for (float bad : {-1.0f, NAN, INFINITY, 0.0f}) {
    Buffer w(DType::F32, {1, 2});
    w.at<float>({0, 0}) = bad;
    draw(w, 1, true);
    const auto error = harness_errors().take();
    REQUIRE(error);
    CHECK(error->message.find(bad == 0 ? "sum of probabilities" : "element < 0") !=
          std::string::npos);
  }
  const TensorType k{DType::I64, {2}, {}}, w{DType::F32, {3}, {}};
  CHECK_THROWS_AS(infer_call(infer_random, Op::Multinomial, {k, w},
                             {op(0), Arg::integer(1), op(1), Arg::integer(4), Arg::boolean(false)}),
                  UserError);
}

}  // namespace
}  // namespace tessera::test
