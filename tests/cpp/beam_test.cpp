// SPDX-License-Identifier: Apache-2.0
// The beam search against one that tries every label behind every prefix, kept in a map.
#include "kernels/beam.h"

#include <doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <vector>

namespace {

using tessera::kernels::BeamSearch;
using Prefix = std::vector<int32_t>;
constexpr double kNever = -std::numeric_limits<double>::infinity();
constexpr float kNone = -std::numeric_limits<float>::infinity();

double log_add(double a, double b) {
  if (a == kNever || b == kNever) return std::max(a, b);
  return std::max(a, b) + std::log1p(std::exp(-std::abs(a - b)));
}

struct Found {
  Prefix labels;
  double score;
};

std::vector<Found> reference(const BeamSearch& s, const std::vector<float>& logp, int64_t length) {
  struct Ending {
    double blank = kNever, label = kNever;
    double total() const { return log_add(blank, label); }
  };
  std::vector<std::pair<Prefix, Ending>> beams{{{}, {0, kNever}}};
  for (int64_t t = 0; t < length; ++t) {
    std::map<Prefix, Ending> next;
    for (const auto& [prefix, p] : beams)
      for (int64_t c = 0; c < s.classes; ++c) {
        const double q = static_cast<double>(logp[t * s.classes + c]);
        Ending& same = next[prefix];
        if (c == s.blank) {
          same.blank = log_add(same.blank, p.total() + q);
          continue;
        }
        const bool again = !prefix.empty() && prefix.back() == c;
        if (again) same.label = log_add(same.label, p.label + q);
        Prefix longer = prefix;
        longer.push_back(static_cast<int32_t>(c));
        Ending& e = next[longer];
        e.label = log_add(e.label, (again ? p.blank : p.total()) + q);
      }
    beams.clear();
    for (const auto& [prefix, e] : next)
      if (e.total() > kNever) beams.emplace_back(prefix, e);
    std::sort(beams.begin(), beams.end(),
              [](const auto& a, const auto& b) { return a.second.total() > b.second.total(); });
    beams.resize(std::min(beams.size(), static_cast<size_t>(s.width)));
  }
  std::vector<Found> out;
  for (const auto& [prefix, e] : beams) out.push_back({prefix, e.total()});
  return out;
}

struct Result {
  bool sound;
  std::vector<Found> paths;
};

Result search(const BeamSearch& s, const std::vector<float>& logp, int64_t length, int64_t top) {
  // Scratch that is full of something: nothing may be taken for zero.
  std::vector<std::byte> scratch(s.scratch_bytes(), std::byte{0xa5});
  std::vector<float> score(top);
  std::vector<int32_t> sizes(top), labels(top * s.steps);
  Result out{s.run(logp.data(), s.classes, length, top, score.data(), sizes.data(), labels.data(),
                   scratch.data()),
             {}};
  for (int64_t i = 0; i < top; ++i) {
    const int32_t* path = labels.data() + i * s.steps;
    for (int64_t t = sizes[i]; t < s.steps; ++t) CHECK(path[t] == s.blank);
    out.paths.push_back({Prefix(path, path + sizes[i]), static_cast<double>(score[i])});
  }
  return out;
}

}  // namespace

TEST_CASE("beams of all widths keep what trying everything keeps") {
  std::mt19937 generator(3);
  auto any = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(generator);
  };
  for (int round = 0; round < 300; ++round) {
    const BeamSearch s{any(1, 12), any(1, 9), 0, any(1, 30)};
    BeamSearch own = s;
    own.blank = any(0, static_cast<int>(s.classes) - 1);
    std::normal_distribution<float> normal(-2, static_cast<float>(any(1, 4)));
    std::vector<float> logp(s.steps * s.classes);
    for (float& x : logp) x = any(0, 9) == 0 ? kNone : normal(generator);
    const int64_t length = any(0, static_cast<int>(s.steps));
    const std::vector<Found> expected = reference(own, logp, length);
    const Result result = search(own, logp, length, s.width);
    CHECK(result.sound);
    for (size_t i = 0; i < result.paths.size(); ++i) {
      if (i >= expected.size()) {
        CHECK(result.paths[i].score == kNever);
        continue;
      }
      CHECK(result.paths[i].labels == expected[i].labels);
      CHECK(result.paths[i].score == doctest::Approx(expected[i].score).epsilon(1e-5));
    }
  }
}

TEST_CASE("equal probabilities give different sequences") {
  const BeamSearch s{6, 5, 0, 7};
  const Result result = search(s, std::vector<float>(30, std::log(0.2f)), 6, 7);
  for (size_t i = 0; i < 7; ++i)
    for (size_t j = 0; j < i; ++j) CHECK(result.paths[i].labels != result.paths[j].labels);
}

TEST_CASE("numbers that are no probabilities are refused, and so is only what is read") {
  const BeamSearch s{3, 4, 0, 5};
  for (float bad : {std::nanf(""), -kNone}) {
    std::vector<float> logp(12, -1.0f);
    logp[9] = bad;
    CHECK_FALSE(search(s, logp, 3, 2).sound);
    CHECK(search(s, logp, 2, 2).sound);
  }
}
