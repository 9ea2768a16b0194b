// SPDX-License-Identifier: Apache-2.0
// Pooling rows, compiled per instruction set.
#include <algorithm>
#include <limits>
#include <type_traits>

#include "kernels/pool.h"
#include "kernels/simd.h"

namespace tessera::kernels::TESSERA_ISA {

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
#ifdef __AVX512F__
  const auto a = _mm512_maskz_cvtepi32_epi64(0xff, reinterpret_cast<__m256i>(low_half(v)));
  const auto b = _mm512_maskz_cvtepi32_epi64(0xff, reinterpret_cast<__m256i>(high_half(v)));
#else
  const i64x8 a = __builtin_convertvector(low_half(v), i64x8);
  const i64x8 b = __builtin_convertvector(high_half(v), i64x8);
#endif
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
  if constexpr (!std::is_same_v<N, int64_t>) {
    store_wide(p, v);
  } else {
#ifdef __AVX512F__
    const uint16_t mask = tail_mask(lanes);
    _mm512_mask_storeu_epi64(
        p, static_cast<uint8_t>(mask),
        _mm512_maskz_cvtepi32_epi64(0xff, reinterpret_cast<__m256i>(low_half(v))));
    _mm512_mask_storeu_epi64(
        p + 8, static_cast<uint8_t>(mask >> 8),
        _mm512_maskz_cvtepi32_epi64(0xff, reinterpret_cast<__m256i>(high_half(v))));
#else
    for (int64_t i = 0; i < lanes; ++i) p[i] = v[i];
#endif
  }
}

// g where the index equals `me`, 0 elsewhere.
template <typename N>
TESSERA_INLINE f32x16 chosen(const int64_t* index, int64_t me, f32x16 g, N lanes) {
#ifdef __AVX512F__
  const uint16_t mask = tail_mask(lanes);
  const __m512i want = _mm512_set1_epi64(me);
  const auto low = static_cast<uint8_t>(mask), high = static_cast<uint8_t>(mask >> 8);
  const __mmask8 a = _mm512_mask_cmpeq_epi64_mask(low, _mm512_maskz_loadu_epi64(low, index), want);
  const __mmask8 b =
      _mm512_mask_cmpeq_epi64_mask(high, _mm512_maskz_loadu_epi64(high, index + 8), want);
  const auto both = static_cast<__mmask16>(a | (static_cast<unsigned>(b) << 8));
  return reinterpret_cast<f32x16>(_mm512_maskz_mov_ps(both, reinterpret_cast<__m512>(g)));
#else
  const auto who = static_cast<int32_t>(me);
  i32x16 v{};
  if constexpr (std::is_same_v<N, int64_t>) {
    for (int64_t i = 0; i < lanes; ++i) v[i] = static_cast<int32_t>(index[i]);
  } else {
    v = load_narrow(index);
  }
  return v == broadcast_i(who) ? g : f32x16{};
#endif
}

// The running maximum and where it was found. Of several NaNs the last one counts, of equal numbers
// the first: as ATen does. Masks in their own registers, which plain vector code does not get.
TESSERA_INLINE void take_if_larger(f32x16 v, i32x16 at, f32x16& best, i32x16& where) {
#ifdef __AVX512F__
  const auto x = reinterpret_cast<__m512>(v), old = reinterpret_cast<__m512>(best);
  const auto take = static_cast<__mmask16>(_mm512_cmp_ps_mask(x, old, _CMP_GT_OQ) |
                                           _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q));
  best = reinterpret_cast<f32x16>(_mm512_mask_mov_ps(old, take, x));
  where = reinterpret_cast<i32x16>(
      _mm512_mask_mov_epi32(reinterpret_cast<__m512i>(where), take, reinterpret_cast<__m512i>(at)));
#else
  const i32x16 take = (v > best) | (v != v);
  best = take ? v : best;
  where = take ? at : where;
#endif
}

// The running maximum alone; a NaN stays.
TESSERA_INLINE void keep_if_larger(f32x16 v, f32x16& best) {
#ifdef __AVX512F__
  const auto x = reinterpret_cast<__m512>(v), old = reinterpret_cast<__m512>(best);
  const auto take = static_cast<__mmask16>(_mm512_cmp_ps_mask(x, old, _CMP_GT_OQ) |
                                           _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q));
  best = reinterpret_cast<f32x16>(_mm512_mask_mov_ps(old, take, x));
#else
  best = (v > best) | (v != v) ? v : best;
#endif
}

// Outputs of one row whose window may be clipped.
void max_clipped(const PoolAxis& w, const int32_t* rows, int64_t row_count, int64_t begin,
                 int64_t end, PoolPlane<const float> x, float* y, int64_t y_col, int64_t* index,
                 int64_t index_col, int64_t inner) {
  for (int64_t ow = begin; ow < end; ++ow) {
    const PoolWindow& c = w.windows[ow];
    const float* from = x.at + c.begin * x.col;
    for_vectors(inner, [&](int64_t i, auto lanes) TESSERA_INLINE_LAMBDA {
      f32x16 best = get(from + rows[0] * x.row + i, lanes);
      i32x16 where = broadcast_i(static_cast<int32_t>(rows[0] * w.in + c.begin));
      for (int64_t a = 0; a < row_count; ++a)
        for (int64_t b = 0; b < c.count; ++b) {
          const f32x16 v = get(from + i + rows[a] * x.row + b * c.step * x.col, lanes);
          const auto at = static_cast<int32_t>(rows[a] * w.in + c.begin + b * c.step);
          take_if_larger(v, broadcast_i(at), best, where);
        }
      put(y + ow * y_col + i, best, lanes);
      if (index) put_index(index + ow * index_col + i, where, lanes);
    });
  }
}

// Addresses and steps of a run of outputs with whole windows; few enough to stay in registers.
struct WholeRun {
  int64_t count, inner;
  const float* x;
  int64_t x_step, x_row, x_col;
  float* y;
  int64_t y_step;
  int64_t* index;
  int64_t index_step;
  int32_t flat, flat_step, flat_row;
};

template <int kRows, int kCols, bool kIndex>
void max_whole(WholeRun k) {
  i32x16 offset[kRows * kCols];
#pragma GCC unroll 9
  for (int t = 0; t < kRows * kCols; ++t)
    offset[t] = broadcast_i(t / kCols * k.flat_row + t % kCols);
  for (; k.count > 0; --k.count) {
    for_vectors(k.inner, [&](int64_t i, auto lanes) TESSERA_INLINE_LAMBDA {
      f32x16 best = get(k.x + i, lanes);
      i32x16 where = offset[0];
#pragma GCC unroll 9
      for (int t = 1; t < kRows * kCols; ++t)
        take_if_larger(get(k.x + i + t / kCols * k.x_row + t % kCols * k.x_col, lanes), offset[t],
                       best, where);
      put(k.y + i, best, lanes);
      if constexpr (kIndex) put_index(k.index + i, where + k.flat, lanes);
    });
    k.x += k.x_step;
    k.y += k.y_step;
    k.flat += k.flat_step;
    if constexpr (kIndex) k.index += k.index_step;
  }
}

void max_row(const PoolRows& h, const PoolAxis& w, int64_t oh, PoolPlane<const float> x,
             PoolPlane<float> y, PoolPlane<int64_t> index, int64_t inner) {
  const PoolRows::Window& r = h.windows[oh];
  const int32_t* rows = h.taps.data() + r.first;
  float* to = y.at + oh * y.row;
  int64_t* to_index = index.at ? index.at + oh * index.row : nullptr;
  const bool two = r.count == 2 && w.kernel == 2, three = r.count == 3 && w.kernel == 3;
  int64_t first = w.whole_first, last = w.whole_last;
  if (!(two || three) || !r.adjacent) first = last = w.out;
  max_clipped(w, rows, r.count, 0, first, x, to, y.col, to_index, index.col, inner);
  if (first < last) {
    const PoolWindow& c = w.windows[first];
    const WholeRun run{.count = last - first,
                       .inner = inner,
                       .x = x.at + rows[0] * x.row + c.begin * x.col,
                       .x_step = w.stride * x.col,
                       .x_row = x.row,
                       .x_col = x.col,
                       .y = to + first * y.col,
                       .y_step = y.col,
                       .index = to_index ? to_index + first * index.col : nullptr,
                       .index_step = index.col,
                       .flat = static_cast<int32_t>(rows[0] * w.in + c.begin),
                       .flat_step = static_cast<int32_t>(w.stride),
                       .flat_row = static_cast<int32_t>(w.in)};
    if (two)
      index.at ? max_whole<2, 2, true>(run) : max_whole<2, 2, false>(run);
    else
      index.at ? max_whole<3, 3, true>(run) : max_whole<3, 3, false>(run);
  }
  max_clipped(w, rows, r.count, last, w.out, x, to, y.col, to_index, index.col, inner);
}

template <int kStep>
TESSERA_INLINE void take_larger(const float* from, int32_t at, int64_t n, int32_t step, float* best,
                                int32_t* where) {
  const int64_t s = kStep > 0 ? kStep : step;
  for (int64_t i = 0; i < n; ++i) {
    const float v = from[i * s];
    const bool take = (v > best[i]) | (v != v);
    best[i] = take ? v : best[i];
    where[i] = take ? at + static_cast<int32_t>(i * s) : where[i];
  }
}

// As take_larger for what columns have found: equal numbers go to the lower index, of NaNs the
// higher counts.
template <int kStep>
TESSERA_INLINE void take_found(const float* from, const int32_t* from_where, int64_t n,
                               int32_t step, float* best, int32_t* where) {
  const int64_t s = kStep > 0 ? kStep : step;
  for (int64_t i = 0; i < n; ++i) {
    const float v = from[i * s], old = best[i];
    const int32_t at = from_where[i * s], old_at = where[i];
    const bool lower = at < old_at;
    const bool take = (v > old) | ((v == old) & lower) | ((v != v) & ((old == old) | !lower));
    best[i] = take ? v : old;
    where[i] = take ? at : old_at;
  }
}

// Input columns [first, last) under a block of outputs.
struct Columns {
  int64_t first, last = 0;
  Columns(const PoolAxis& w, int64_t block) : first(w.in) {
    for (const PoolRun& run : w.runs[block]) {
      first = std::min<int64_t>(first, run.begin);
      last = std::max<int64_t>(last, run.begin + (run.last - run.first - 1) * run.step + 1);
    }
  }
  // Windows of several rows are pooled by columns first: each input is read once or twice, not
  // as often as windows overlap.
  bool worth(int32_t rows) const { return rows > 2 && last - first <= kPoolSpan; }
};

// One block of outputs by columns.
void max_by_columns(const PoolAxis& w, const int32_t* rows, int32_t row_count, Columns columns,
                    int64_t block, PoolPlane<const float> x, float* best, int32_t* where) {
  float column[kPoolSpan];
  int32_t column_where[kPoolSpan];
  const int64_t span = columns.last - columns.first;
  for (int64_t i = 0; i < span; ++i) {
    column[i] = x.at[rows[0] * x.row + columns.first + i];
    column_where[i] = static_cast<int32_t>(rows[0] * w.in + columns.first + i);
  }
  for (int32_t a = 1; a < row_count; ++a)
    take_larger<1>(x.at + rows[a] * x.row + columns.first,
                   static_cast<int32_t>(rows[a] * w.in + columns.first), span, 1, column,
                   column_where);
  const int64_t begin = block * kPoolColumns;
  for (const PoolRun& run : w.runs[block]) {
    const float* from = column + (run.begin - columns.first);
    const int32_t* from_where = column_where + (run.begin - columns.first);
    float* to = best + (run.first - begin);
    int32_t* to_where = where + (run.first - begin);
    const int64_t count = run.last - run.first;
    if (run.step == 1)
      take_found<1>(from, from_where, count, 1, to, to_where);
    else if (run.step == 2)
      take_found<2>(from, from_where, count, 2, to, to_where);
    else
      take_found<0>(from, from_where, count, run.step, to, to_where);
  }
}

// The running maximum alone; a NaN stays.
template <int kStep>
TESSERA_INLINE void keep_larger(const float* from, int64_t n, int32_t step, float* best) {
  const int64_t s = kStep > 0 ? kStep : step;
  for (int64_t i = 0; i < n; ++i) {
    const float v = from[i * s];
    best[i] = (v > best[i]) | (v != v) ? v : best[i];
  }
}

// Windows of two columns side by side, all of them whole: the usual halving of an image.
bool is_halving(const PoolAxis& w) {
  return w.kernel == 2 && w.stride == 2 && w.whole_first == 0 && w.whole_last == w.out &&
         w.out > 0 && w.windows[0].step == 1;
}
void max_halves(const int32_t* rows, int32_t row_count, PoolPlane<const float> x, int64_t n,
                float* y) {
  for_vectors(n, [&](int64_t i, auto lanes) TESSERA_INLINE_LAMBDA {
    f32x16 best = broadcast(kLowest);
    for (int32_t a = 0; a < row_count; ++a) {
      const float* from = x.at + rows[a] * x.row + 2 * i;
      const int64_t n = 2 * lanes;
      const f32x16 low = n >= kLanes ? load(from) : load_n(from, n);
      const f32x16 high = n >= 2 * kLanes ? load(from + kLanes)
                          : n > kLanes    ? load_n(from + kLanes, n - kLanes)
                                          : f32x16{};
      keep_if_larger(__builtin_shufflevector(low, high, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22,
                                             24, 26, 28, 30),
                     best);
      keep_if_larger(__builtin_shufflevector(low, high, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23,
                                             25, 27, 29, 31),
                     best);
    }
    put(y + i, best, lanes);
  });
}

// A row of maxima whose indices nobody asks for.
void max_row_plain(const PoolAxis& w, const int32_t* rows, int32_t row_count,
                   PoolPlane<const float> x, float* y) {
  if (is_halving(w)) return max_halves(rows, row_count, x, w.out, y);
  for (int64_t begin = 0; begin < w.out; begin += kPoolColumns) {
    const int64_t n = std::min(kPoolColumns, w.out - begin);
    float best[kPoolColumns], column[kPoolSpan];
    std::fill(best, best + n, kLowest);
    const Columns columns(w, begin / kPoolColumns);
    const bool by_columns = columns.worth(row_count);
    if (by_columns) {
      const int64_t span = columns.last - columns.first;
      std::copy_n(x.at + rows[0] * x.row + columns.first, span, column);
      for (int32_t a = 1; a < row_count; ++a)
        keep_larger<1>(x.at + rows[a] * x.row + columns.first, span, 1, column);
    }
    for (int32_t a = 0; a < (by_columns ? 1 : row_count); ++a) {
      const float* row = by_columns ? column - columns.first : x.at + rows[a] * x.row;
      for (const PoolRun& run : w.runs[begin / kPoolColumns]) {
        const float* from = row + run.begin;
        float* to = best + (run.first - begin);
        const int64_t count = run.last - run.first;
        if (run.step == 1)
          keep_larger<1>(from, count, 1, to);
        else if (run.step == 2)
          keep_larger<2>(from, count, 2, to);
        else
          keep_larger<0>(from, count, run.step, to);
      }
    }
    std::copy(best, best + n, y + begin);
  }
}

void max_row_flat(const PoolRows& h, const PoolAxis& w, int64_t oh, PoolPlane<const float> x,
                  PoolPlane<float> y, PoolPlane<int64_t> index) {
  const PoolRows::Window& r = h.windows[oh];
  const int32_t* rows = h.taps.data() + r.first;
  if (!index.at) return max_row_plain(w, rows, r.count, x, y.at + oh * y.row);
  float best[kPoolColumns];
  int32_t where[kPoolColumns];
  for (int64_t begin = 0; begin < w.out; begin += kPoolColumns) {
    const int64_t n = std::min(kPoolColumns, w.out - begin);
    for (int64_t o = 0; o < n; ++o) {
      best[o] = kLowest;
      where[o] = static_cast<int32_t>(rows[0] * w.in + w.windows[begin + o].begin);
    }
    const Columns columns(w, begin / kPoolColumns);
    const bool by_columns = columns.worth(r.count);
    if (by_columns) max_by_columns(w, rows, r.count, columns, begin / kPoolColumns, x, best, where);
    for (int32_t a = 0; a < r.count && !by_columns; ++a) {
      const int64_t row = rows[a];
      for (const PoolRun& run : w.runs[begin / kPoolColumns]) {
        const float* from = x.at + row * x.row + run.begin;
        const auto at = static_cast<int32_t>(row * w.in + run.begin);
        float* to = best + (run.first - begin);
        int32_t* to_where = where + (run.first - begin);
        const int64_t count = run.last - run.first;
        if (run.step == 1)
          take_larger<1>(from, at, count, 1, to, to_where);
        else if (run.step == 2)
          take_larger<2>(from, at, count, 2, to, to_where);
        else
          take_larger<0>(from, at, count, run.step, to, to_where);
      }
    }
    std::copy(best, best + n, y.at + oh * y.row + begin);
    std::copy(where, where + n, index.at + oh * index.row + begin);
  }
}

void max_grad_row(const PoolRows& h, const PoolAxis& w, int64_t ih, PoolPlane<const float> gy,
                  PoolPlane<const int64_t> index, PoolPlane<float> gx, int64_t inner) {
  const int32_t *first = h.covers.data() + h.cover_begin[ih],
                *last = h.covers.data() + h.cover_begin[ih + 1];
  float* to = gx.at + ih * gx.row;
  for (int64_t iw = 0; iw < w.in; ++iw, to += gx.col) {
    const PoolCover c = w.covers[iw];
    const int64_t me = ih * w.in + iw;
    for_vectors(inner, [&](int64_t i, auto lanes) TESSERA_INLINE_LAMBDA {
      f32x16 sum{};
      for (const int32_t* oh = first; oh != last; ++oh)
        for (int64_t ow = c.first; ow < c.last; ++ow) {
          const f32x16 g = get(gy.at + *oh * gy.row + ow * gy.col + i, lanes);
          sum += chosen(index.at + *oh * index.row + ow * index.col + i, me, g, lanes);
        }
      put(to + i, sum, lanes);
    });
  }
}

// kRows x kCols inputs under each of `count` outputs; 0 leaves the loops open.
template <int kRows, int kCols>
void scatter_tiles(int64_t count, int64_t rows, int64_t cols, int64_t inner, const float* gy,
                   int64_t gy_step, const int64_t* index, int64_t index_step, float* gx,
                   int64_t gx_row, int64_t gx_col, int64_t flat, int64_t flat_row) {
  if (kRows > 0) rows = kRows, cols = kCols;
  for (; count > 0; --count) {
    for_vectors(inner, [&](int64_t i, auto lanes) TESSERA_INLINE_LAMBDA {
      const f32x16 g = get(gy + i, lanes);
#pragma GCC unroll 2
      for (int64_t a = 0; a < rows; ++a)
#pragma GCC unroll 2
        for (int64_t b = 0; b < cols; ++b)
          put(gx + i + a * gx_row + b * gx_col,
              chosen(index + i, flat + a * flat_row + b, g, lanes), lanes);
    });
    gy += gy_step;
    index += index_step;
    gx += cols * gx_col;
    flat += cols;
  }
}

void max_grad_tiles(const PoolRows& h, const PoolAxis& w, int64_t oh, PoolPlane<const float> gy,
                    PoolPlane<const int64_t> index, PoolPlane<float> gx, int64_t inner) {
  const PoolRows::Window& r = h.windows[oh];
  const int64_t top = h.taps[r.first];
  const auto scatter = r.count == 2 && w.kernel == 2 ? scatter_tiles<2, 2> : scatter_tiles<0, 0>;
  scatter(w.out, r.count, w.kernel, inner, gy.at + oh * gy.row, gy.col, index.at + oh * index.row,
          index.col, gx.at + top * gx.row, gx.row, gx.col, top * w.in, w.in);
  // What no window covers.
  const int64_t end = top + r.count, last_row = oh + 1 == h.out ? h.in : end;
  for (int64_t row = top; row < last_row; ++row)
    for (int64_t iw = row < end ? w.out * w.kernel : 0; iw < w.in; ++iw)
      for_vectors(inner, [&](int64_t i, auto lanes) TESSERA_INLINE_LAMBDA {
        put(gx.at + row * gx.row + iw * gx.col + i, f32x16{}, lanes);
      });
}

void max_grad_flat(const PoolRows& h, const PoolAxis& w, PoolPlane<const float> gy,
                   PoolPlane<const int64_t> index, PoolPlane<float> gx) {
  for (int64_t ih = 0; ih < h.in; ++ih) std::fill_n(gx.at + ih * gx.row, w.in, 0.0f);
  const bool dense = gx.row == w.in;
  const auto size = static_cast<uint64_t>(h.in * w.in);
  for (int64_t oh = 0; oh < h.out; ++oh) {
    const float* g = gy.at + oh * gy.row;
    const int64_t* chosen = index.at + oh * index.row;
    for (int64_t ow = 0; ow < w.out; ++ow) {
      const int64_t to = chosen[ow];
      // Indices need not be those of a pool.
      if (static_cast<uint64_t>(to) >= size) [[unlikely]]
        continue;
      gx.at[dense ? to : to / w.in * gx.row + to % w.in] += g[ow];
    }
  }
}

TESSERA_INLINE float scale_of(const PoolRows::Window& r, const PoolWindow& c, int64_t divisor) {
  return divisor != 0 ? 1.0f / static_cast<float>(divisor) : r.inverse * c.inverse;
}

void avg_row(const PoolRows& h, const PoolAxis& w, int64_t oh, int64_t divisor,
             PoolPlane<const float> x, PoolPlane<float> y, int64_t inner) {
  const PoolRows::Window& r = h.windows[oh];
  const int32_t* rows = h.taps.data() + r.first;
  float* to = y.at + oh * y.row;
  for (int64_t ow = 0; ow < w.out; ++ow, to += y.col) {
    const PoolWindow& c = w.windows[ow];
    const float* from = x.at + c.begin * x.col;
    const f32x16 scale = splat(scale_of(r, c, divisor));
    for_vectors(inner, [&](int64_t i, auto lanes) TESSERA_INLINE_LAMBDA {
      f32x16 sum{};
      for (int a = 0; a < r.count; ++a) {
        const float* p = from + i + rows[a] * x.row;
        for (int b = c.count; b > 0; --b, p += x.col) sum += get(p, lanes);
      }
      put(to + i, sum * scale, lanes);
    });
  }
}

float contiguous_sum(const float* p, int64_t n) {
  f32x16 sum{};
  for_vectors(n, [&](int64_t i, auto lanes) TESSERA_INLINE_LAMBDA { sum += get(p + i, lanes); });
  return horizontal_sum(sum);
}

void avg_row_flat(const PoolRows& h, const PoolAxis& w, int64_t oh, int64_t divisor,
                  PoolPlane<const float> x, PoolPlane<float> y) {
  const PoolRows::Window& r = h.windows[oh];
  const int32_t* rows = h.taps.data() + r.first;
  float* to = y.at + oh * y.row;
  if (w.out == 1 && w.windows[0].count == w.in && x.row == w.in &&
      r.adjacent) {  // whole rows: one run
    to[0] =
        contiguous_sum(x.at + rows[0] * x.row, r.count * w.in) * scale_of(r, w.windows[0], divisor);
    return;
  }
  float sum[kPoolColumns];
  for (int64_t begin = 0; begin < w.out; begin += kPoolColumns) {
    const int64_t n = std::min(kPoolColumns, w.out - begin);
    std::fill(sum, sum + n, 0.0f);
    const Columns columns(w, begin / kPoolColumns);
    const bool by_columns = columns.worth(r.count);
    float column[kPoolSpan];
    if (by_columns) {
      const int64_t span = columns.last - columns.first;
      const float* top = x.at + rows[0] * x.row + columns.first;
      for (int64_t i = 0; i < span; ++i) column[i] = top[i];
      for (int32_t a = 1; a < r.count; ++a) {
        const float* row = x.at + rows[a] * x.row + columns.first;
        for (int64_t i = 0; i < span; ++i) column[i] += row[i];
      }
    }
    for (int32_t a = 0; a < (by_columns ? 1 : r.count); ++a) {
      const float* row = by_columns ? column - columns.first : x.at + rows[a] * x.row;
      for (const PoolRun& run : w.runs[begin / kPoolColumns]) {
        const float* from = row + run.begin;
        float* part = sum + (run.first - begin);
        const int64_t count = run.last - run.first;
        if (run.step == 1)
          for (int64_t i = 0; i < count; ++i) part[i] += from[i];
        else if (run.step == 2)
          for (int64_t i = 0; i < count; ++i) part[i] += from[i * 2];
        else
          for (int64_t i = 0; i < count; ++i) part[i] += from[i * run.step];
      }
    }
    for (int64_t o = 0; o < n; ++o)
      to[begin + o] = sum[o] * scale_of(r, w.windows[begin + o], divisor);
  }
}

void avg_grad_row(const PoolRows& h, const PoolAxis& w, int64_t ih, int64_t divisor,
                  PoolPlane<const float> gy, PoolPlane<float> gx, int64_t inner) {
  const int32_t *first = h.covers.data() + h.cover_begin[ih],
                *last = h.covers.data() + h.cover_begin[ih + 1];
  float* to = gx.at + ih * gx.row;
  const float fixed = divisor != 0 ? 1.0f / static_cast<float>(divisor) : 0.0f;
  for (int64_t iw = 0; iw < w.in; ++iw, to += gx.col) {
    const PoolCover c = w.covers[iw];
    for_vectors(inner, [&](int64_t i, auto lanes) TESSERA_INLINE_LAMBDA {
      f32x16 sum{};
      for (const int32_t* oh = first; oh != last; ++oh)
        for (int64_t ow = c.first; ow < c.last; ++ow) {
          const float scale = divisor != 0 ? fixed : h.windows[*oh].inverse * w.windows[ow].inverse;
          sum = fma(get(gy.at + *oh * gy.row + ow * gy.col + i, lanes), splat(scale), sum);
        }
      put(to + i, sum, lanes);
    });
  }
}

void avg_grad_row_flat(const PoolRows& h, const PoolAxis& w, int64_t ih, int64_t divisor,
                       PoolPlane<const float> gy, PoolPlane<float> gx) {
  float* to = gx.at + ih * gx.row;
  std::fill_n(to, w.in, 0.0f);
  float scaled[kPoolColumns];
  for (int32_t k = h.cover_begin[ih]; k < h.cover_begin[ih + 1]; ++k)
    for (int64_t begin = 0; begin < w.out; begin += kPoolColumns) {
      const int64_t n = std::min(kPoolColumns, w.out - begin);
      const int64_t oh = h.covers[k];
      const float* g = gy.at + oh * gy.row + begin;
      for (int64_t o = 0; o < n; ++o)
        scaled[o] = g[o] * scale_of(h.windows[oh], w.windows[begin + o], divisor);
      for (const PoolRun& run : w.runs[begin / kPoolColumns]) {
        const float* from = scaled + (run.first - begin);
        float* part = to + run.begin;
        for (int64_t i = 0; i < run.last - run.first; ++i) part[i * run.step] += from[i];
      }
    }
}

}  // namespace

const PoolKernels pool_table{max_row, max_row_flat, max_grad_row, max_grad_tiles,   max_grad_flat,
                             avg_row, avg_row_flat, avg_grad_row, avg_grad_row_flat};

}  // namespace tessera::kernels::TESSERA_ISA
