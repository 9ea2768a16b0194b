// SPDX-License-Identifier: Apache-2.0
// Windows of pooling, and the choice of its instruction set.
#include "kernels/pool.h"

#include <algorithm>

#include "kernels/isa.h"

namespace tessera::kernels {

namespace v3 {
extern const PoolKernels pool_table;
}
namespace v4 {
extern const PoolKernels pool_table;
}

const PoolKernels& pool_kernels() {
  static const PoolKernels& t = cpu_has_avx512() ? v4::pool_table : v3::pool_table;
  return t;
}

const PoolKernels& pool_kernels_v3() {
  return v3::pool_table;
}

namespace {

// The outputs that read each input form a run, because windows move only forward.
void fill_covers(PoolAxis& a) {
  a.covers.assign(a.in, {0, 0});
  for (int32_t o = 0; o < a.out; ++o) {
    const PoolWindow& win = a.windows[o];
    for (int32_t i = 0; i < win.count; ++i) {
      PoolCover& c = a.covers[win.begin + i * win.step];
      if (c.first == c.last) c.first = o;
      c.last = o + 1;
    }
  }
}

}  // namespace

PoolAxis sliding_axis(int64_t in, int64_t out, int64_t kernel, int64_t stride, int64_t pad,
                      int64_t dilation, bool include_pad) {
  PoolAxis a{in, out, {}, {}};
  for (int64_t o = 0; o < out; ++o) {
    const int64_t start = o * stride - pad;
    PoolWindow w;
    w.step = static_cast<int32_t>(dilation);
    for (int64_t t = 0; t < kernel; ++t) {
      const int64_t at = start + t * dilation;
      if (at < 0 || at >= in) continue;
      if (w.count++ == 0) w.begin = static_cast<int32_t>(at);
    }
    const int64_t padded = std::min(start + kernel, in + pad) - start;
    w.size = include_pad ? static_cast<int32_t>(padded) : w.count;
    a.windows.push_back(w);
  }
  fill_covers(a);
  return a;
}

PoolAxis adaptive_axis(int64_t in, int64_t out) {
  PoolAxis a{in, out, {}, {}};
  for (int64_t o = 0; o < out; ++o) {
    const int64_t begin = o * in / out, end = ((o + 1) * in + out - 1) / out;
    const auto count = static_cast<int32_t>(end - begin);
    a.windows.push_back({static_cast<int32_t>(begin), count, 1, count});
  }
  fill_covers(a);
  return a;
}

}  // namespace tessera::kernels
