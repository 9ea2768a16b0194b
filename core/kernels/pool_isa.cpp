// SPDX-License-Identifier: Apache-2.0
// Pooling rows, compiled per instruction set.
#include <algorithm>
#include <limits>
#include <type_traits>

#include "kernels/pool.h"
#include "kernels/simd.h"

namespace tessera::kernels::TESSERA_ISA {

extern const PoolKernels pool_table;

namespace {

typedef int32_t i32x8 __attribute__((vector_size(32)));
typedef int64_t i64x8 __attribute__((vector_size(64)));

#define TESSERA_INLINE_LAMBDA __attribute__((always_inline))

constexpr float kLowest = -std::numeric_limits<float>::infinity();

TESSERA_INLINE f32x16 splat(float x) {
  return f32x16{x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x};
}

TESSERA_INLINE i32x8 low_half(i32x16 v) {
  return __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7);
}
TESSERA_INLINE i32x8 high_half(i32x16 v) {
  return __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15);
}

TESSERA_INLINE void store_wide(int64_t* p, i32x16 v) {
  const i64x8 a = __builtin_convertvector(low_half(v), i64x8);
  const i64x8 b = __builtin_convertvector(high_half(v), i64x8);
  std::memcpy(p, &a, sizeof a);
  std::memcpy(p + 8, &b, sizeof b);
}
TESSERA_INLINE i32x16 load_narrow(const int64_t* p) {
  i64x8 a, b;
  std::memcpy(&a, p, sizeof a);
  std::memcpy(&b, p + 8, sizeof b);
  return __builtin_shufflevector(__builtin_convertvector(a, i32x8),
                                 __builtin_convertvector(b, i32x8), 0, 1, 2, 3, 4, 5, 6, 7, 8, 9,
                                 10, 11, 12, 13, 14, 15);
}

// Runs f(offset, lanes) along `inner`; lanes is the constant 16 but for the tail.
template <typename F>
TESSERA_INLINE void for_vectors(int64_t inner, F f) {
  int64_t i = 0;
  for (; i + kLanes <= inner; i += kLanes) f(i, std::integral_constant<int64_t, kLanes>());
  if (i < inner) f(i, inner - i);
}

template <typename N>
TESSERA_INLINE f32x16 get(const float* p, N lanes) {
  if constexpr (std::is_same_v<N, int64_t>) return load_n(p, lanes);
  return load(p);
}
template <typename N>
TESSERA_INLINE void put(float* p, f32x16 v, N lanes) {
  if constexpr (std::is_same_v<N, int64_t>)
    store_n(p, v, lanes);
  else
    store(p, v);
}
template <typename N>
TESSERA_INLINE void put_index(int64_t* p, i32x16 v, N lanes) {
  if constexpr (std::is_same_v<N, int64_t>)
    for (int64_t i = 0; i < lanes; ++i) p[i] = v[i];
  else
    store_wide(p, v);
}
template <typename N>
TESSERA_INLINE i32x16 get_index(const int64_t* p, N lanes) {
  if constexpr (std::is_same_v<N, int64_t>) {
    i32x16 v{};
    for (int64_t i = 0; i < lanes; ++i) v[i] = static_cast<int32_t>(p[i]);
    return v;
  } else {
    return load_narrow(p);
  }
}

void max_row(const PoolAxis& h, const PoolAxis& w, int64_t oh, PoolPlane<const float> x,
             PoolPlane<float> y, PoolPlane<int64_t> index, int64_t inner) {
  const PoolWindow r = h.windows[oh];
  const int64_t row_step = r.step * x.row;
  const auto flat_step = static_cast<int32_t>(r.step * w.in);
  float* to = y.at + oh * y.row;
  int64_t* to_index = index.at ? index.at + oh * index.row : nullptr;
  for (int64_t ow = 0; ow < w.out; ++ow, to += y.col) {
    const PoolWindow c = w.windows[ow];
    const float* from = x.at + r.begin * x.row + c.begin * x.col;
    const int64_t col_step = c.step * x.col;
    const auto flat = static_cast<int32_t>(r.begin * w.in + c.begin);
    for_vectors(inner, [&](int64_t i, auto lanes) TESSERA_INLINE_LAMBDA {
      f32x16 best = splat(kLowest);
      if (!to_index) {
        for (int a = 0; a < r.count; ++a)
          for (int b = 0; b < c.count; ++b)
            best = max_nan(get(from + i + a * row_step + b * col_step, lanes), best);
        put(to + i, best, lanes);
        return;
      }
      i32x16 where = broadcast_i(flat);
      for (int a = 0; a < r.count; ++a)
        for (int b = 0; b < c.count; ++b) {
          const f32x16 v = get(from + i + a * row_step + b * col_step, lanes);
          // Of several NaNs the last one counts, of equal numbers the first: as ATen does.
          const i32x16 take = (v > best) | (v != v);
          best = take ? v : best;
          where = take ? broadcast_i(flat + a * flat_step + b * c.step) : where;
        }
      put(to + i, best, lanes);
      put_index(to_index + i, where, lanes);
    });
    if (to_index) to_index += index.col;
  }
}

// Columns of a row-major row that are pooled together; their state stays in the first-level cache.
constexpr int64_t kColumns = 128;

// Calls f(tap column b, first output, last output) so that every output of [begin, end) has an input
// at tap b; outputs of one call are neighbours.
template <typename F>
TESSERA_INLINE void for_taps(const PoolAxis& w, int64_t begin, int64_t end, F f) {
  int32_t most = 0;
  for (int64_t o = begin; o < end; ++o) most = std::max(most, w.windows[o].count);
  for (int32_t b = 0; b < most; ++b) {
    int64_t o = begin;
    while (o < end) {
      if (w.windows[o].count <= b) {
        ++o;
        continue;
      }
      // A run of outputs whose inputs are equally far apart.
      const int64_t first = o++;
      const int32_t step =
          o < end ? w.windows[o].begin - w.windows[first].begin : 1;
      while (o < end && w.windows[o].count > b &&
             w.windows[o].begin - w.windows[o - 1].begin == step)
        ++o;
      f(b, first, o, step);
    }
  }
}

template <int kStep>
TESSERA_INLINE void take_larger(const float* from, int32_t at, int64_t n, int32_t step,
                                float* best, int32_t* where) {
  const int64_t s = kStep > 0 ? kStep : step;
  for (int64_t i = 0; i < n; ++i) {
    const float v = from[i * s];
    const bool take = (v > best[i]) | (v != v);
    best[i] = take ? v : best[i];
    where[i] = take ? at + static_cast<int32_t>(i * s) : where[i];
  }
}

void max_row_flat(const PoolAxis& h, const PoolAxis& w, int64_t oh, PoolPlane<const float> x,
                  PoolPlane<float> y, PoolPlane<int64_t> index) {
  const PoolWindow r = h.windows[oh];
  float best[kColumns];
  int32_t where[kColumns];
  for (int64_t begin = 0; begin < w.out; begin += kColumns) {
    const int64_t end = std::min(begin + kColumns, w.out);
    for (int64_t o = begin; o < end; ++o) {
      best[o - begin] = kLowest;
      where[o - begin] = static_cast<int32_t>(r.begin * w.in + w.windows[o].begin);
    }
    for (int32_t a = 0; a < r.count; ++a) {
      const int64_t row = r.begin + a * r.step;
      for_taps(w, begin, end, [&](int32_t b, int64_t first, int64_t last, int32_t step) {
        const int64_t col = w.windows[first].begin + b * w.windows[first].step;
        const float* from = x.at + row * x.row + col;
        const auto at = static_cast<int32_t>(row * w.in + col);
        float* to = best + (first - begin);
        int32_t* to_where = where + (first - begin);
        if (step == 1)
          take_larger<1>(from, at, last - first, step, to, to_where);
        else if (step == 2)
          take_larger<2>(from, at, last - first, step, to, to_where);
        else
          take_larger<0>(from, at, last - first, step, to, to_where);
      });
    }
    std::copy(best, best + (end - begin), y.at + oh * y.row + begin);
    if (index.at)
      std::copy(where, where + (end - begin), index.at + oh * index.row + begin);
  }
}

void max_grad_row(const PoolAxis& h, const PoolAxis& w, int64_t ih, PoolPlane<const float> gy,
                  PoolPlane<const int64_t> index, PoolPlane<float> gx, int64_t inner) {
  const PoolCover r = h.covers[ih];
  float* to = gx.at + ih * gx.row;
  for (int64_t iw = 0; iw < w.in; ++iw, to += gx.col) {
    const PoolCover c = w.covers[iw];
    const i32x16 me = broadcast_i(static_cast<int32_t>(ih * w.in + iw));
    for_vectors(inner, [&](int64_t i, auto lanes) TESSERA_INLINE_LAMBDA {
      f32x16 sum{};
      for (int64_t oh = r.first; oh < r.last; ++oh)
        for (int64_t ow = c.first; ow < c.last; ++ow) {
          const i32x16 chosen = get_index(index.at + oh * index.row + ow * index.col + i, lanes);
          const f32x16 g = get(gy.at + oh * gy.row + ow * gy.col + i, lanes);
          sum += chosen == me ? g : f32x16{};
        }
      put(to + i, sum, lanes);
    });
  }
}

void max_grad_tiles(const PoolAxis& h, const PoolAxis& w, int64_t oh, PoolPlane<const float> gy,
                    PoolPlane<const int64_t> index, PoolPlane<float> gx, int64_t inner) {
  const PoolWindow r = h.windows[oh];
  const int64_t last_row = oh + 1 == h.out ? h.in : r.begin + r.count;
  const int64_t covered = w.windows[w.out - 1].begin + w.windows[w.out - 1].count;
  for (int64_t ow = 0; ow < w.out; ++ow) {
    const PoolWindow c = w.windows[ow];
    const float* g_at = gy.at + oh * gy.row + ow * gy.col;
    const int64_t* index_at = index.at + oh * index.row + ow * index.col;
    float* to = gx.at + r.begin * gx.row + c.begin * gx.col;
    for_vectors(inner, [&](int64_t i, auto lanes) TESSERA_INLINE_LAMBDA {
      const f32x16 g = get(g_at + i, lanes);
      const i32x16 chosen = get_index(index_at + i, lanes);
      for (int a = 0; a < r.count; ++a)
        for (int b = 0; b < c.count; ++b) {
          const i32x16 me =
              broadcast_i(static_cast<int32_t>((r.begin + a) * w.in + c.begin + b));
          put(to + a * gx.row + b * gx.col + i, chosen == me ? g : f32x16{}, lanes);
        }
    });
  }
  for (int64_t row = r.begin; row < last_row; ++row)
    for (int64_t iw = row < r.begin + r.count ? covered : 0; iw < w.in; ++iw)
      for_vectors(inner, [&](int64_t i, auto lanes) TESSERA_INLINE_LAMBDA {
        put(gx.at + row * gx.row + iw * gx.col + i, f32x16{}, lanes);
      });
}

void max_grad_flat(const PoolAxis& h, const PoolAxis& w, PoolPlane<const float> gy,
                   PoolPlane<const int64_t> index, PoolPlane<float> gx) {
  for (int64_t ih = 0; ih < h.in; ++ih)
    std::fill_n(gx.at + ih * gx.row, w.in, 0.0f);
  const bool dense = gx.row == w.in;
  for (int64_t oh = 0; oh < h.out; ++oh) {
    const float* g = gy.at + oh * gy.row;
    const int64_t* chosen = index.at + oh * index.row;
    for (int64_t ow = 0; ow < w.out; ++ow) {
      const int64_t to = chosen[ow];
      gx.at[dense ? to : to / w.in * gx.row + to % w.in] += g[ow];
    }
  }
}

TESSERA_INLINE float scale_of(const PoolWindow& r, const PoolWindow& c, int64_t divisor) {
  return 1.0f / static_cast<float>(divisor != 0 ? divisor : int64_t{r.size} * c.size);
}

void avg_row(const PoolAxis& h, const PoolAxis& w, int64_t oh, int64_t divisor,
             PoolPlane<const float> x, PoolPlane<float> y, int64_t inner) {
  const PoolWindow r = h.windows[oh];
  float* to = y.at + oh * y.row;
  for (int64_t ow = 0; ow < w.out; ++ow, to += y.col) {
    const PoolWindow c = w.windows[ow];
    const float* from = x.at + r.begin * x.row + c.begin * x.col;
    const f32x16 scale = splat(scale_of(r, c, divisor));
    for_vectors(inner, [&](int64_t i, auto lanes) TESSERA_INLINE_LAMBDA {
      f32x16 sum{};
      for (int a = 0; a < r.count; ++a)
        for (int b = 0; b < c.count; ++b) sum += get(from + i + a * x.row + b * x.col, lanes);
      put(to + i, sum * scale, lanes);
    });
  }
}

void avg_row_flat(const PoolAxis& h, const PoolAxis& w, int64_t oh, int64_t divisor,
                  PoolPlane<const float> x, PoolPlane<float> y) {
  const PoolWindow r = h.windows[oh];
  float sum[kColumns];
  // Wide windows: along the row; narrow ones: across neighbouring outputs.
  const bool wide = w.windows[0].count >= kLanes || w.out == 1;
  for (int64_t begin = 0; begin < w.out; begin += kColumns) {
    const int64_t end = std::min(begin + kColumns, w.out);
    std::fill(sum, sum + (end - begin), 0.0f);
    for (int32_t a = 0; a < r.count; ++a) {
      const float* row = x.at + (r.begin + a) * x.row;
      if (wide) {
        for (int64_t o = begin; o < end; ++o) {
          const PoolWindow c = w.windows[o];
          f32x16 part{};
          for_vectors(c.count, [&](int64_t i, auto lanes) TESSERA_INLINE_LAMBDA {
            part += get(row + c.begin + i, lanes);
          });
          sum[o - begin] += horizontal_sum(part);
        }
        continue;
      }
      for_taps(w, begin, end, [&](int32_t b, int64_t first, int64_t last, int32_t step) {
        const float* from = row + w.windows[first].begin + b;
        float* to = sum + (first - begin);
        if (step == 1)
          for (int64_t i = 0; i < last - first; ++i) to[i] += from[i];
        else if (step == 2)
          for (int64_t i = 0; i < last - first; ++i) to[i] += from[i * 2];
        else
          for (int64_t i = 0; i < last - first; ++i) to[i] += from[i * step];
      });
    }
    for (int64_t o = begin; o < end; ++o)
      y.at[oh * y.row + o] = sum[o - begin] * scale_of(r, w.windows[o], divisor);
  }
}

void avg_grad_row(const PoolAxis& h, const PoolAxis& w, int64_t ih, int64_t divisor,
                  PoolPlane<const float> gy, PoolPlane<float> gx, int64_t inner) {
  const PoolCover r = h.covers[ih];
  float* to = gx.at + ih * gx.row;
  for (int64_t iw = 0; iw < w.in; ++iw, to += gx.col) {
    const PoolCover c = w.covers[iw];
    auto gather = [&](auto load_at, auto zero, auto wide) TESSERA_INLINE_LAMBDA {
      auto sum = zero;
      for (int64_t oh = r.first; oh < r.last; ++oh)
        for (int64_t ow = c.first; ow < c.last; ++ow)
          sum += load_at(gy.at + oh * gy.row + ow * gy.col) *
                 wide(scale_of(h.windows[oh], w.windows[ow], divisor));
      return sum;
    };
    if (inner == 1) {
      *to = gather([](const float* p) { return *p; }, 0.0f, [](float s) { return s; });
      continue;
    }
    for_vectors(inner, [&](int64_t i, auto lanes) TESSERA_INLINE_LAMBDA {
      put(to + i,
          gather([&](const float* p) TESSERA_INLINE_LAMBDA { return get(p + i, lanes); }, f32x16{},
                 [](float s) TESSERA_INLINE_LAMBDA { return splat(s); }),
          lanes);
    });
  }
}

}  // namespace

const PoolKernels pool_table{max_row,       max_row_flat, max_grad_row, max_grad_tiles,
                             max_grad_flat, avg_row,      avg_row_flat, avg_grad_row};

}  // namespace tessera::kernels::TESSERA_ISA
