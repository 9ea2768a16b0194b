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
  const auto [begin, end] = thread_range(c, count_of(nest), 64);
  const auto step = nest.back().step;
  for_runs(nest, begin, end, [&](const auto& at, int64_t n) {
    kernels::copy_strided(src + at[1] * size, step[1], dst + at[0] * size, step[0], n, size);
  });
}

// Bytes moved below which one thread does it.
constexpr int64_t kCopySmall = 64 * 1024;

}  // namespace tessera
