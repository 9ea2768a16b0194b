// SPDX-License-Identifier: Apache-2.0
// What the kernels of the sort family share: the rows along one dim of an operand and of its two
// results, values and indices.
#pragma once

#include <algorithm>

#include "kernels/gather.h"
#include "kernels/sort.h"
#include "ops/loops.h"
#include "ops/registry.h"
#include "ops/view.h"

namespace tessera {

constexpr int64_t kSortSmall = 4096;   // elements below which one thread does it
constexpr int64_t kSharedRow = 16384;  // length from which few rows are shared by all threads
constexpr int64_t kFewRows = 4;
constexpr int64_t kPacked = 16;  // rows across memory that are copied together

struct OrderRows {
  TensorRef x, values, index;
  Nest<3> kept;  // x, values, index
  int64_t len = 1, count = 0;
  std::array<int64_t, 3> step{1, 1, 1};
  const kernels::SortFns* fns = nullptr;

  // `keeps_dim`: the results have the dim too.
  OrderRows(const StepDesc& d, int64_t dim, bool keeps_dim)
      : x(d.inputs[d.args.operand(0)]), values(d.outputs[0]), index(d.outputs[1]) {
    fns = kernels::sort_fns(x.dtype);
    user_check(fns != nullptr, "no {} kernel for {}", op_text(d.op), name_of(x.dtype));
    const auto rank = x.shape.size();
    dim = wrap_dim(dim, static_cast<int64_t>(rank));
    for (size_t i = 0, o = 0; i < rank; ++i) {
      const bool is_dim = static_cast<int64_t>(i) == dim;
      if (!is_dim) {
        kept.push_back({x.shape[i], {x.strides[i], values.strides[o], index.strides[o]}});
      } else {
        len = x.shape[i];
        step[0] = x.strides[i];
        if (keeps_dim) step[1] = values.strides[o], step[2] = index.strides[o];
      }
      o += !is_dim || keeps_dim;
    }
    kept = collapse(kept);
    count = count_of(kept);
    user_check(len < int64_t(1) << 32, "[{}] a dim of {} elements", op_text(d.op), len);
  }

  bool shared() const { return count < kFewRows && len >= kSharedRow; }

  // Elements [first, first + n) of the row at `at`.
  kernels::SortRow row(const RunCtx& c, const std::array<int64_t, 3>& at, bool descending,
                       int64_t first, int64_t n) const {
    return {c.ptr<const std::byte>(x) + (at[0] + first * step[0]) * size_of(x.dtype), step[0], n,
            first, descending};
  }
  // Calls f(offsets of a row, the row) for rows [begin, end). Rows across memory are copied a few
  // neighbours at a time into `memory`, which has packed_bytes().
  template <typename F>
  void for_packed(const RunCtx& c, int64_t begin, int64_t end, bool descending, std::byte* memory,
                  F f) const {
    const int64_t size = size_of(x.dtype);
    const auto inner = kept.back().step;
    for_runs(kept, begin, end, [&](std::array<int64_t, 3> at, int64_t n) {
      for (int64_t k = 0; k < n; ++k) {
        kernels::SortRow r = row(c, at, descending, 0, len);
        if (step[0] != 1) {
          if (k % kPacked == 0)
            kernels::copy_rows(r.x, inner[0], step[0], memory, len, 1, std::min(kPacked, n - k),
                               len, size);
          r.x = memory + k % kPacked * len * size;
          r.step = 1;
        }
        f(at, r);
        for (size_t t = 0; t < 3; ++t) at[t] += inner[t];
      }
    });
  }
  int64_t packed_bytes() const {
    return step[0] == 1 ? 0 : whole_lines(kPacked * len * size_of(x.dtype));
  }

  // Results i .. i + n of the row at `at` from pairs.
  void store(const RunCtx& c, const std::array<int64_t, 3>& at, bool descending, const void* pairs,
             int64_t i, int64_t n) const {
    store(c, at, row(c, at, descending, 0, len), pairs, i, n);
  }
  void store(const RunCtx& c, const std::array<int64_t, 3>& at, const kernels::SortRow& whole,
             const void* pairs, int64_t i, int64_t n) const {
    fns->store(pairs, n, whole,
               c.ptr<std::byte>(values) + (at[1] + i * step[1]) * size_of(values.dtype), step[1],
               c.ptr<int64_t>(index) + at[2] + i * step[2], step[2]);
  }
};

KernelPtr make_select(const StepDesc& desc);  // sort_select.cpp
KernelPtr make_search(const StepDesc& desc);  // sort_search.cpp

// Whether a topk is better done by sorting the row.
inline bool topk_sorts(int64_t k, int64_t len) {
  return len <= 128 || k * 4 >= len;
}

}  // namespace tessera
