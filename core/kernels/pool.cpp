// SPDX-License-Identifier: Apache-2.0
// Windows of pooling.
#include "kernels/pool.h"

#include <algorithm>

namespace tessera::kernels {

namespace {

// What follows from the windows. The outputs that read one input form a run, because windows move
// only forward.
void complete(PoolAxis& a) {
  a.covers.assign(a.in, {0, 0});
  for (int32_t o = 0; o < a.out; ++o) {
    PoolWindow& win = a.windows[o];
    win.inverse = 1.0f / static_cast<float>(win.size);
    for (int32_t i = 0; i < win.count; ++i) {
      PoolCover& c = a.covers[win.begin + i * win.step];
      if (c.first == c.last) c.first = o;
      c.last = o + 1;
    }
  }
  for (int64_t block = 0; block < a.out; block += kPoolColumns) {
    const auto end = static_cast<int32_t>(std::min(block + kPoolColumns, a.out));
    std::vector<PoolRun> runs;
    for (int32_t tap = 0;; ++tap) {
      const size_t before = runs.size();
      for (auto o = static_cast<int32_t>(block); o < end; ++o) {
        const PoolWindow& win = a.windows[o];
        if (tap >= win.count) continue;
        const int32_t at = win.begin + tap * win.step;
        const bool any = runs.size() > before && runs.back().last == o;
        PoolRun* run = any ? &runs.back() : nullptr;
        // Padding cuts taps off a dilated window, so its neighbour's may begin further left.
        if (run && run->last - run->first == 1 && at > run->begin) run->step = at - run->begin;
        if (run && at == run->begin + (o - run->first) * run->step)
          run->last = o + 1;
        else
          runs.push_back({o, o + 1, at, 1});
      }
      if (runs.size() == before) break;
    }
    a.runs.push_back(std::move(runs));
  }
}

}  // namespace

PoolAxis sliding_axis(int64_t in, int64_t out, int64_t kernel, int64_t stride, int64_t pad,
                      int64_t dilation, bool include_pad) {
  PoolAxis a;
  a.in = in, a.out = out, a.kernel = kernel, a.stride = stride;
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
  complete(a);
  if (dilation == 1) {
    a.whole_first = std::min((pad + stride - 1) / stride, out);
    a.whole_last = a.whole_first;
    while (a.whole_last < out && a.windows[a.whole_last].count == kernel) ++a.whole_last;
  }
  return a;
}

PoolAxis adaptive_axis(int64_t in, int64_t out) {
  PoolAxis a;
  a.in = in, a.out = out;
  for (int64_t o = 0; o < out; ++o) {
    const int64_t begin = o * in / out, end = ((o + 1) * in + out - 1) / out;
    const auto count = static_cast<int32_t>(end - begin);
    a.windows.push_back({static_cast<int32_t>(begin), count, 1, count, 1.0f});
  }
  complete(a);
  return a;
}

PoolRows pool_rows(std::span<const PoolAxis> outer) {
  PoolRows rows;
  rows.windows.push_back({0, 1, 1, 1.0f, true});
  rows.taps.push_back(0);
  for (const PoolAxis& axis : outer) {
    PoolRows next;
    next.in = rows.in * axis.in, next.out = rows.out * axis.out;
    for (const PoolRows::Window& a : rows.windows)
      for (const PoolWindow& b : axis.windows) {
        PoolRows::Window w;
        w.first = static_cast<int32_t>(next.taps.size());
        w.count = a.count * b.count;
        w.size = a.size * b.size;
        w.inverse = 1.0f / static_cast<float>(w.size);
        for (int32_t row : rows.rows_of(a))
          for (int32_t t = 0; t < b.count; ++t)
            next.taps.push_back(static_cast<int32_t>(row * axis.in + b.begin + t * b.step));
        w.adjacent = true;
        for (int32_t t = 1; t < w.count; ++t)
          w.adjacent &= next.taps[w.first + t] == next.taps[w.first + t - 1] + 1;
        next.windows.push_back(w);
      }
    rows = std::move(next);
  }
  rows.cover_begin.assign(rows.in + 1, 0);
  for (int32_t row : rows.taps) ++rows.cover_begin[row + 1];
  for (int64_t i = 0; i < rows.in; ++i) rows.cover_begin[i + 1] += rows.cover_begin[i];
  rows.covers.resize(rows.taps.size());
  std::vector<int32_t> at(rows.cover_begin.begin(), rows.cover_begin.end() - 1);
  for (int64_t o = 0; o < rows.out; ++o)
    for (int32_t row : rows.rows_of(rows.windows[o]))
      rows.covers[at[row]++] = static_cast<int32_t>(o);
  rows.as_before.assign(rows.in, 0);
  for (int64_t i = 1; i < rows.in; ++i) {
    const auto a = rows.readers_of(i - 1), b = rows.readers_of(i);
    rows.as_before[i] = std::equal(a.begin(), a.end(), b.begin(), b.end());
  }
  return rows;
}

}  // namespace tessera::kernels
