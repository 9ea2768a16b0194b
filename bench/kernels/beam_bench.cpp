// SPDX-License-Identifier: Apache-2.0
// Our CTC beam search beside the search of the textbook: prefixes in a map, every label tried
// behind every prefix. Milliseconds for a whole batch, interleaved, best of many rounds; it stops
// if the two find other sequences. Usage: beam_bench [time batch classes width rounds]
#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <map>
#include <random>
#include <unordered_map>
#include <vector>

#include "kernels/beam.h"

namespace {

constexpr double kNever = -std::numeric_limits<double>::infinity();
using Prefix = std::vector<int>;

struct PrefixHash {
  size_t operator()(const Prefix& p) const {
    size_t h = p.size();
    for (int label : p) h = h * 1000003 + static_cast<size_t>(label);
    return h;
  }
};

struct Ending {
  double blank = kNever, label = kNever;
};

double log_add(double a, double b) {
  if (a == kNever) return b;
  if (b == kNever) return a;
  return std::max(a, b) + std::log1p(std::exp(-std::abs(a - b)));
}

template <typename Map>
std::pair<double, Prefix> textbook(const float* logp, int64_t steps, int64_t step, int64_t classes,
                                   int64_t blank, size_t width) {
  std::vector<std::pair<Prefix, Ending>> beams{{{}, {0, kNever}}};
  for (int64_t t = 0; t < steps; ++t, logp += step) {
    Map next;
    for (const auto& [prefix, p] : beams) {
      const double total = log_add(p.blank, p.label);
      for (int64_t c = 0; c < classes; ++c) {
        const double q = static_cast<double>(logp[c]);
        if (c == blank) {
          Ending& e = next[prefix];
          e.blank = log_add(e.blank, total + q);
          continue;
        }
        const bool again = !prefix.empty() && prefix.back() == c;
        if (again) {
          Ending& e = next[prefix];
          e.label = log_add(e.label, p.label + q);
        }
        Prefix longer = prefix;
        longer.push_back(static_cast<int>(c));
        Ending& e = next[longer];
        e.label = log_add(e.label, (again ? p.blank : total) + q);
      }
    }
    beams.assign(next.begin(), next.end());
    const size_t kept = std::min(width, beams.size());
    std::partial_sort(beams.begin(), beams.begin() + static_cast<int64_t>(kept), beams.end(),
                      [](const auto& a, const auto& b) {
                        return log_add(a.second.blank, a.second.label) >
                               log_add(b.second.blank, b.second.label);
                      });
    beams.resize(kept);
  }
  return {log_add(beams[0].second.blank, beams[0].second.label), beams[0].first};
}

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

template <typename F>
void sample(double& best, F f) {
  const double start = now();
  f();
  best = std::min(best, now() - start);
}

}  // namespace

int main(int argc, char** argv) {
  auto number = [&](int i, int64_t value) { return i < argc ? std::atol(argv[i]) : value; };
  const int64_t time = number(1, 200), batch = number(2, 16), classes = number(3, 100),
                width = number(4, 100), rounds = number(5, 2);
  // Logits as a trained model gives them (a few likely classes), and flat ones.
  for (float spread : {4.0f, 1.0f}) {
    std::mt19937 generator(1);
    std::normal_distribution<float> normal(0, spread);
    std::vector<float> logp(time * batch * classes);
    for (int64_t row = 0; row < time * batch; ++row) {
      float* at = logp.data() + row * classes;
      double sum = 0;
      for (int64_t c = 0; c < classes; ++c) sum += std::exp(at[c] = normal(generator));
      for (int64_t c = 0; c < classes; ++c) at[c] -= static_cast<float>(std::log(sum));
    }
    const tessera::kernels::BeamSearch search{time, classes, 0, width};
    std::vector<std::byte> scratch(2 * search.scratch_bytes());
    std::vector<float> score(batch);
    std::vector<int32_t> sizes(batch), labels(batch * time);
    auto ours = [&](int64_t b, int thread) {
      search.run(logp.data() + b * classes, batch * classes, time, 1, &score[b], &sizes[b],
                 &labels[b * time], scratch.data() + thread * search.scratch_bytes());
    };
    std::vector<std::pair<double, Prefix>> found(batch);
    double one = 1e9, two = 1e9, map = 1e9, unordered = 1e9;
    for (int64_t r = 0; r < rounds; ++r) {
      for (int again = 0; again < 10; ++again) {
        sample(one, [&] {
          for (int64_t b = 0; b < batch; ++b) ours(b, 0);
        });
        sample(two, [&] {
#pragma omp parallel for num_threads(2)
          for (int64_t b = 0; b < batch; ++b) ours(b, omp_get_thread_num());
        });
      }
      auto reference = [&]<typename Map>() {
        for (int64_t b = 0; b < batch; ++b)
          found[b] = textbook<Map>(logp.data() + b * classes, time, batch * classes, classes, 0,
                                   static_cast<size_t>(width));
      };
      sample(map, [&] { reference.template operator()<std::map<Prefix, Ending>>(); });
      sample(unordered, [&] {
        reference.template operator()<std::unordered_map<Prefix, Ending, PrefixHash>>();
      });
      for (int64_t b = 0; b < batch; ++b) {
        const Prefix path(&labels[b * time], &labels[b * time] + sizes[b]);
        if (path == found[b].second && std::abs(score[b] - found[b].first) < 1e-3) continue;
        std::printf("sample %ld: %g of ours, %g of the reference\n", b, score[b], found[b].first);
        return 1;
      }
    }
    std::printf(
        "spread %g: ours %.2f ms, 2 threads %.2f ms; map %.0f ms (%.0f x), unordered_map %.0f ms "
        "(%.0f x)\n",
        spread, one * 1e3, two * 1e3, map * 1e3, map / one, unordered * 1e3, unordered / one);
  }
}
