// SPDX-License-Identifier: Apache-2.0
// Loop nests over dims that several tensors share: dims of size 1 dropped, dims that are
// contiguous with each other in every tensor merged, ordered so that the last one is the innermost
// in memory.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "base/tensor.h"

namespace tessera {

// One dim of a nest: its size and the step of each of the K tensors, in elements.
template <size_t K>
struct Loop {
  int64_t size = 1;
  std::array<int64_t, K> step{};
};

template <size_t K>
using Nest = std::vector<Loop<K>>;

template <size_t K>
int64_t count_of(const Nest<K>& nest) {
  int64_t n = 1;
  for (const Loop<K>& l : nest) n *= l.size;
  return n;
}

// Orders by the step of tensor 0 unless `keep_order`, then merges. A nest always has at least one
// loop.
template <size_t K>
Nest<K> collapse(Nest<K> nest, bool keep_order = false) {
  std::erase_if(nest, [](const Loop<K>& l) { return l.size == 1; });
  if (!keep_order)
    std::stable_sort(nest.begin(), nest.end(), [](const Loop<K>& a, const Loop<K>& b) {
      return std::abs(a.step[0]) > std::abs(b.step[0]);
    });
  Nest<K> out;
  for (const Loop<K>& l : nest) {
    bool fits = !out.empty();
    for (size_t k = 0; fits && k < K; ++k) fits = out.back().step[k] == l.step[k] * l.size;
    if (fits) {
      out.back().size *= l.size;
      out.back().step = l.step;
    } else {
      out.push_back(l);
    }
  }
  if (out.empty()) out.push_back({});
  return out;
}

// Visits the flattened positions [begin, end) in runs along the innermost loop: f(offsets, run
// length).
template <size_t K, typename F>
void for_runs(const Nest<K>& nest, int64_t begin, int64_t end, F&& f) {
  if (begin >= end) return;
  constexpr size_t kMaxRank = 64;  // as the parser has it
  std::array<int64_t, kMaxRank> index;
  std::array<int64_t, K> at{};
  const size_t last = nest.size() - 1;
  int64_t rest = begin;
  for (size_t d = nest.size(); d-- > 0;) {
    index[d] = rest % nest[d].size;
    rest /= nest[d].size;
    for (size_t k = 0; k < K; ++k) at[k] += index[d] * nest[d].step[k];
  }
  while (begin < end) {
    const int64_t n = std::min(end - begin, nest[last].size - index[last]);
    f(at, n);
    begin += n;
    if (begin >= end) return;
    // The run ended at the edge of the innermost loop: carry outwards.
    for (size_t k = 0; k < K; ++k) at[k] -= index[last] * nest[last].step[k];
    index[last] = 0;
    for (size_t d = last; d-- > 0;) {
      if (++index[d] < nest[d].size) {
        for (size_t k = 0; k < K; ++k) at[k] += nest[d].step[k];
        break;
      }
      for (size_t k = 0; k < K; ++k) at[k] -= (nest[d].size - 1) * nest[d].step[k];
      index[d] = 0;
    }
  }
}

// Visits every position: f(offsets).
template <size_t K, typename F>
void for_each(const Nest<K>& nest, int64_t begin, int64_t end, F&& f) {
  const auto step = nest.back().step;
  for_runs(nest, begin, end, [&](std::array<int64_t, K> at, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
      f(at);
      for (size_t k = 0; k < K; ++k) at[k] += step[k];
    }
  });
}

// The dims of tensors of equal shape as loops, without those marked in `skip`.
template <size_t K>
Nest<K> shared_loops(const std::array<const TensorRef*, K>& tensors,
                     const std::vector<bool>& skip = {}) {
  Nest<K> nest;
  for (size_t d = 0; d < tensors[0]->shape.size(); ++d) {
    if (d < skip.size() && skip[d]) continue;
    Loop<K> l{tensors[0]->shape[d], {}};
    for (size_t k = 0; k < K; ++k) l.step[k] = tensors[k]->strides[d];
    nest.push_back(l);
  }
  return nest;
}

}  // namespace tessera
