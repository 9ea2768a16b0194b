// SPDX-License-Identifier: Apache-2.0
// Grid sampling, compiled per instruction set.
#include "kernels/grid.h"
#include "kernels/simd.h"

namespace tessera::kernels::TESSERA_ISA {

namespace {

constexpr int kMaxTaps = 16;  // 4 x 4 of a cubic image, 2 x 2 x 2 of a linear volume

TESSERA_INLINE f32x16 floor(f32x16 x) {
  const f32x16 r = rint(x);
  return r > x ? r - 1.0f : r;
}

// A position on one axis and its derivative by the grid's number.
struct Position {
  f32x16 at, slope;
};

TESSERA_INLINE Position clipped(Position p, float last) {
  // Comparisons are such that a NaN becomes zero.
  const i32x16 low = ~(p.at > f32x16{}), high = p.at >= broadcast(last);
  p.slope = low | high ? f32x16{} : p.slope;
  p.at = low ? f32x16{} : p.at;
  p.at = p.at > broadcast(last) ? broadcast(last) : p.at;
  return p;
}

// Mirrored at low and high until it lies between them.
TESSERA_INLINE Position reflected(Position p, float low, float high) {
  const float span = high - low;
  if (span <= 0) return {f32x16{}, f32x16{}};
  const f32x16 from = p.at - low;
  const f32x16 distance = abs(from);
  const f32x16 flips = floor(distance / span);
  const f32x16 extra = distance - flips * span;
  const f32x16 half = flips * 0.5f;
  const i32x16 even = half == floor(half);
  const f32x16 slope = from < f32x16{} ? -p.slope : p.slope;
  return {even ? extra + low : span - extra + low, even ? slope : -slope};
}

TESSERA_INLINE Position padded(const GridShape& s, Position p, int64_t size) {
  if (s.padding == GridPadding::kZeros) return p;
  const auto n = static_cast<float>(size);
  if (s.padding == GridPadding::kReflect)
    p = s.align_corners ? reflected(p, 0.0f, n - 1) : reflected(p, -0.5f, n - 0.5f);
  return clipped(p, n - 1);
}

TESSERA_INLINE Position source(const GridShape& s, f32x16 g, int64_t size) {
  const auto n = static_cast<float>(size);
  if (s.align_corners) return {(g + 1.0f) / 2.0f * (n - 1), broadcast((n - 1) / 2)};
  return {((g + 1.0f) * n - 1.0f) / 2.0f, broadcast(n / 2)};
}

// Whole numbers as indices; what lies outside of the axis becomes -1.
TESSERA_INLINE i32x16 index_of(f32x16 at, int64_t size) {
  const i32x16 inside = (at >= f32x16{}) & (at < broadcast(static_cast<float>(size)));
  return inside ? to_int(inside ? at : f32x16{}) : broadcast_i(-1);
}

// Keys' cubic with a = -0.75 and its derivative; x >= 0.
TESSERA_INLINE f32x16 cubic_near(f32x16 x) {
  return (1.25f * x - 2.25f) * x * x + 1.0f;
}
TESSERA_INLINE f32x16 cubic_far(f32x16 x) {
  return ((-0.75f * x + 3.75f) * x - 6.0f) * x + 3.0f;
}
TESSERA_INLINE f32x16 cubic_near_slope(f32x16 x) {
  return (3.75f * x - 4.5f) * x;
}
TESSERA_INLINE f32x16 cubic_far_slope(f32x16 x) {
  return (-2.25f * x + 7.5f) * x - 6.0f;
}

// The taps of 16 points on one axis.
struct AxisTaps {
  int count = 0;
  i32x16 index[4];
  f32x16 weight[4], slope[4];
};

TESSERA_INLINE void axis_taps(const GridShape& s, f32x16 g, int64_t size, AxisTaps& a) {
  const Position raw = source(s, g, size);
  if (s.mode == GridMode::kCubic) {
    a.count = 4;
    const f32x16 first = floor(raw.at), t = raw.at - first;
    a.weight[0] = cubic_far(t + 1.0f), a.slope[0] = cubic_far_slope(t + 1.0f) * raw.slope;
    a.weight[1] = cubic_near(t), a.slope[1] = cubic_near_slope(t) * raw.slope;
    a.weight[2] = cubic_near(1.0f - t), a.slope[2] = -cubic_near_slope(1.0f - t) * raw.slope;
    a.weight[3] = cubic_far(2.0f - t), a.slope[3] = -cubic_far_slope(2.0f - t) * raw.slope;
    for (int k = 0; k < 4; ++k) {
      // Padding moves each tap by itself.
      const Position tap = padded(s, {first + static_cast<float>(k - 1), f32x16{}}, size);
      a.index[k] = index_of(tap.at, size);
    }
    return;
  }
  const Position p = padded(s, raw, size);
  if (s.mode == GridMode::kNearest) {
    a.count = 1;
    a.index[0] = index_of(rint(p.at), size);
    a.weight[0] = broadcast(1.0f);
    a.slope[0] = f32x16{};
    return;
  }
  a.count = 2;
  const f32x16 first = floor(p.at), high = p.at - first;
  a.index[0] = index_of(first, size);
  a.index[1] = index_of(first + 1.0f, size);
  a.weight[0] = 1.0f - high;
  a.weight[1] = high;
  a.slope[0] = -p.slope;
  a.slope[1] = p.slope;
}

struct Taps {
  int count = 0;
  i32x16 offset[kMaxTaps];  // -1: outside
  f32x16 weight[kMaxTaps];
  f32x16 slope[3][kMaxTaps];  // by the grid's numbers, width first
};

// Points [0, n) of the grid; lanes past them have no taps.
template <bool kSlopes>
void find_taps(const GridShape& s, const float* grid, int64_t n, Taps& out) {
  f32x16 number[3] = {};
  for (int64_t l = 0; l < n; ++l)
    for (int a = 0; a < s.axes; ++a) number[a][l] = grid[l * s.axes + a];
  AxisTaps axis[3];
  for (int a = 0; a < s.axes; ++a) axis_taps(s, number[a], s.in[2 - a], axis[a]);
  if (s.axes == 2) {
    axis[2].count = 1;
    axis[2].index[0] = i32x16{};
    axis[2].weight[0] = broadcast(1.0f);
    axis[2].slope[0] = f32x16{};
  }
  const i32x16 used = iota_i() < broadcast_i(static_cast<int32_t>(n));
  const auto height = static_cast<int32_t>(s.in[1]), width = static_cast<int32_t>(s.in[2]);
  out.count = 0;
  for (int z = 0; z < axis[2].count; ++z)
    for (int y = 0; y < axis[1].count; ++y)
      for (int x = 0; x < axis[0].count; ++x) {
        const i32x16 iz = axis[2].index[z], iy = axis[1].index[y], ix = axis[0].index[x];
        const i32x16 inside = used & (iz >= 0) & (iy >= 0) & (ix >= 0);
        const int t = out.count++;
        out.offset[t] = inside ? (iz * height + iy) * width + ix : broadcast_i(-1);
        const f32x16 wz = axis[2].weight[z], wy = axis[1].weight[y], wx = axis[0].weight[x];
        out.weight[t] = wz * wy * wx;
        if constexpr (kSlopes) {
          out.slope[0][t] = axis[0].slope[x] * wy * wz;
          out.slope[1][t] = wx * axis[1].slope[y] * wz;
          out.slope[2][t] = wx * wy * axis[2].slope[z];
        }
      }
}

// Elements at the offsets; zero where there is none.
TESSERA_INLINE f32x16 gather(const float* x, i32x16 offset) {
#ifdef __AVX512F__
  const auto at = reinterpret_cast<__m512i>(offset);
  const __mmask16 inside = _mm512_cmpge_epi32_mask(at, _mm512_setzero_si512());
  return reinterpret_cast<f32x16>(_mm512_mask_i32gather_ps(_mm512_setzero_ps(), inside, at, x, 4));
#else
  f32x16 v{};
  for (int l = 0; l < kLanes; ++l)
    if (offset[l] >= 0) v[l] = x[offset[l]];
  return v;
#endif
}

template <typename F>
TESSERA_INLINE void for_blocks(int64_t begin, int64_t end, F f) {
  for (int64_t p = begin; p < end; p += kLanes) f(p, end - p < kLanes ? end - p : kLanes);
}

void forward(const GridShape& s, const float* x, const float* grid, int64_t channels, int64_t begin,
             int64_t end, float* y) {
  const int64_t area = s.area();
  Taps taps;
  for_blocks(begin, end, [&](int64_t p, int64_t n) {
    find_taps<false>(s, grid + p * s.axes, n, taps);
    for (int64_t c = 0; c < channels; ++c) {
      f32x16 sum{};
      for (int t = 0; t < taps.count; ++t)
        sum = fma(gather(x + c * area, taps.offset[t]), taps.weight[t], sum);
      store_n(y + c * s.points + p, sum, n);
    }
  });
}

void grid_grad(const GridShape& s, const float* gy, const float* x, const float* grid,
               int64_t channels, int64_t begin, int64_t end, float* ggrid) {
  const int64_t area = s.area();
  Taps taps;
  for_blocks(begin, end, [&](int64_t p, int64_t n) {
    f32x16 sum[3] = {};
    if (s.mode != GridMode::kNearest) {
      find_taps<true>(s, grid + p * s.axes, n, taps);
      for (int64_t c = 0; c < channels; ++c) {
        const f32x16 g = load_n(gy + c * s.points + p, n);
        for (int t = 0; t < taps.count; ++t) {
          const f32x16 v = gather(x + c * area, taps.offset[t]) * g;
          sum[0] = fma(v, taps.slope[0][t], sum[0]);
          sum[1] = fma(v, taps.slope[1][t], sum[1]);
          if (s.axes == 3) sum[2] = fma(v, taps.slope[2][t], sum[2]);
        }
      }
    }
    for (int64_t l = 0; l < n; ++l)
      for (int a = 0; a < s.axes; ++a) ggrid[(p + l) * s.axes + a] = sum[a][l];
  });
}

void input_grad(const GridShape& s, const float* gy, const float* grid, int64_t channels,
                int64_t begin, int64_t end, float* gx) {
  const int64_t area = s.area();
  Taps taps;
  for_blocks(begin, end, [&](int64_t p, int64_t n) {
    find_taps<false>(s, grid + p * s.axes, n, taps);
    for (int64_t c = 0; c < channels; ++c) {
      const f32x16 g = load_n(gy + c * s.points + p, n);
      float* to = gx + c * area;
      for (int t = 0; t < taps.count; ++t) {
        alignas(64) float part[kLanes];
        alignas(64) int32_t at[kLanes];
        store(part, g * taps.weight[t]);
        store_i(at, taps.offset[t]);
        for (int64_t l = 0; l < n; ++l)
          if (at[l] >= 0) to[at[l]] += part[l];
      }
    }
  });
}

}  // namespace

const GridKernels grid_table{forward, grid_grad, input_grad};

}  // namespace tessera::kernels::TESSERA_ISA
