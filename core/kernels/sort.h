// SPDX-License-Identifier: Apache-2.0
// Ordering of rows by keys: an element becomes an unsigned number of the same order, paired with
// its index. Equal elements stay in order, NaN is the largest, -0 equals 0. Pairs are distinct, so
// the result of any method is the same.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"

namespace tessera::kernels {

constexpr int kSortBins = 256;  // per digit of a key

// One row of elements: x[i * step], i < n, the first of which has index `first` in the whole row.
struct SortRow {
  const std::byte* x;
  int64_t step, n, first;
  bool descending;
};

struct SortFns {
  int64_t pair;  // bytes of a pair
  int digits;    // of a key
  void (*load)(const SortRow& row, void* pairs);
  // Sorts n pairs that are in the order of their indices, with the help of as much other memory;
  // returns which of both has the result.
  void* (*sort)(void* pairs, void* other, int64_t n);
  // The parts of one pass over a digit (0 is the lowest), for threads that share a row.
  void (*count)(const void* pairs, int64_t n, int digit, int64_t* bins);
  void (*spread)(const void* pairs, int64_t n, int digit, int64_t* starts, void* other);
  // Moves the k smallest pairs to the front, the k-th to its sorted position, all in order if
  // asked. k <= n.
  void (*front)(void* pairs, int64_t n, int64_t k, bool ordered);
  // Leaves the min(k, n) smallest pairs of a row in `pairs`, which has room for best_room(k);
  // returns their number.
  int64_t (*best)(const SortRow& row, int64_t k, void* pairs);
  // Coarse ranks for selection: adds to bins[kSelectBins] by the top bits of the keys.
  void (*coarse)(const SortRow& row, int64_t* bins);
  // Appends the pairs of the row that are in one coarse bin; returns their number.
  int64_t (*of_bin)(const SortRow& row, int64_t bin, void* pairs);
  int64_t (*nans)(const SortRow& row);
  // Index of a pair, and how many pairs from the first on have elements that compare equal.
  int64_t (*index_of)(const void* pairs, int64_t i);
  int64_t (*run)(const void* pairs, int64_t n);
  // y[i * y_step] = element of pair i, index[i * index_step] = its index. `row` is the whole row.
  void (*store)(const void* pairs, int64_t n, const SortRow& row, std::byte* y, int64_t y_step,
                int64_t* index, int64_t index_step);
};

constexpr int64_t kSelectBins = 2048;
constexpr int64_t best_room(int64_t k) {
  return k < 16 ? 32 : 2 * k;
}

// Null for complex numbers.
const SortFns* sort_fns(DType dtype);

// out[i] = number of sorted[0 .. n) before values[i]: less than it, or with
// `right` not greater.
struct SearchRow {
  const std::byte* sorted;
  int64_t n;
  const std::byte* values;
  int64_t count;
  bool right;
};
// The number as i64 or i32, or (not with `right`) whether the value is there.
enum class SearchResult : uint8_t { kI64, kI32, kFound };
using SearchFn = void (*)(const SearchRow& row, std::byte* out, SearchResult what);
SearchFn search_fn(DType dtype);

}  // namespace tessera::kernels
