// SPDX-License-Identifier: Apache-2.0
// Copies of strided blocks shared by a team of threads; what gather and join are made of.
#pragma once

#include "kernels/gather.h"
#include "ops/kernel.h"
#include "ops/loops.h"

namespace tessera {

// This thread's share of copying src to dst; steps of the nest are {dst, src} in elements.
inline void copy_share(const RunCtx& c, const Nest<2>& nest, const std::byte* src, std::byte* dst,
                       int64_t size) {
  const Loop<2>& inner = nest.back();
  if (nest.size() > 1 && inner.size * 16 < count_of(nest)) {
    // Many rows: cut between them and hand whole blocks of rows to the kernel.
    const Nest<2> outer(nest.begin(), nest.end() - 1);
    const auto [begin, end] = thread_range(c, count_of(outer));
    const auto row = outer.back().step;
    for_runs(outer, begin, end, [&](const auto& at, int64_t rows) {
      kernels::copy_rows(src + at[1] * size, row[1], inner.step[1], dst + at[0] * size, row[0],
                         inner.step[0], rows, inner.size, size);
    });
    return;
  }
  const auto [begin, end] = thread_range(c, count_of(nest), 64);
  for_runs(nest, begin, end, [&](const auto& at, int64_t n) {
    kernels::copy_strided(src + at[1] * size, inner.step[1], dst + at[0] * size, inner.step[0], n,
                          size);
  });
}

// Bytes moved below which one thread does it.
constexpr int64_t kCopySmall = 64 * 1024;

}  // namespace tessera
