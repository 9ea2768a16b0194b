// SPDX-License-Identifier: Apache-2.0
// Register tiles of the batch-in-lanes convolution.
#include "kernels/conv_chwn.h"
#include "kernels/simd.h"

namespace tessera::kernels::TESSERA_ISA {

namespace {

#ifdef __AVX512F__
constexpr int kMaxSums = 25;  // of 32 registers
constexpr int kPositions[kMaxTileChannels + 1] = {0, 8, 8, 8, 6, 5, 4};
#else
constexpr int kMaxSums = 6;  // pairs, of 16 registers
constexpr int kPositions[kMaxTileChannels + 1] = {0, 4, 3, 2, 1, 1, 1};
#endif

TESSERA_INLINE f32x16 splat(float x) {
  return f32x16{x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x};
}

template <bool kMasked>
TESSERA_INLINE f32x16 get(const float* p, int lanes) {
  if constexpr (kMasked) return load_n(p, lanes);
  return load(p);
}

// kOut x kPos sums over channels, rows and columns of taps.
template <int kOut, int kPos, bool kMasked>
void tile(const ConvWalk& k, const ConvTile& t, int lanes, const float* x, const float* w,
          const float* bias, float* y) {
  f32x16 sum[kOut][kPos];
#pragma GCC unroll 8
  for (int o = 0; o < kOut; ++o) {
    f32x16 start = bias ? splat(bias[o]) : f32x16{};
#pragma GCC unroll 8
    for (int p = 0; p < kPos; ++p) sum[o][p] = start;
  }
  int64_t at[kPos];
#pragma GCC unroll 8
  for (int p = 0; p < kPos; ++p) at[p] = t.x[p];
  w += t.first_weight;
  const int64_t w_result = k.w_result, x_col = k.x_col, w_col = k.w_col;
  for (int64_t c = 0; c < k.channels; ++c, x += k.x_channel, w += k.w_channel) {
    const float *xr = x, *wr = w;
    for (int r = t.rows; r > 0; --r, xr += k.x_row, wr += k.w_row) {
      const float *xp = xr, *wp = wr;
      for (int s = t.cols; s > 0; --s, xp += x_col, wp += w_col) {
        f32x16 v[kPos];
#pragma GCC unroll 8
        for (int p = 0; p < kPos; ++p) v[p] = get<kMasked>(xp + at[p], lanes);
#pragma GCC unroll 8
        for (int o = 0; o < kOut; ++o) {
          f32x16 f = splat(wp[o * w_result]);
#pragma GCC unroll 8
          for (int p = 0; p < kPos; ++p) sum[o][p] = fma(f, v[p], sum[o][p]);
        }
      }
    }
  }
#pragma GCC unroll 8
  for (int o = 0; o < kOut; ++o)
#pragma GCC unroll 8
    for (int p = 0; p < kPos; ++p) {
      float* to = y + o * k.y_channel + t.y[p];
      if constexpr (kMasked)
        store_n(to, sum[o][p], lanes);
      else
        store(to, sum[o][p]);
    }
}

using TileFn = void (*)(const ConvWalk&, const ConvTile&, int, const float*, const float*,
                        const float*, float*);

template <int kOut, int kPos, bool kMasked>
constexpr TileFn tile_or_null() {
  if constexpr (kOut * kPos <= kMaxSums && kPos <= kPositions[kOut]) {
    return tile<kOut, kPos, kMasked>;
  } else {
    return nullptr;
  }
}

#define BY_POSITION(f, o, ...)                                                                     \
  {                                                                                                \
    f<o, 1 __VA_ARGS__>(), f<o, 2 __VA_ARGS__>(), f<o, 3 __VA_ARGS__>(), f<o, 4 __VA_ARGS__>(),    \
        f<o, 5 __VA_ARGS__>(), f<o, 6 __VA_ARGS__>(), f<o, 7 __VA_ARGS__>(), f<o, 8 __VA_ARGS__>() \
  }
#define COMMA ,
#define BY_CHANNEL(f, ...)                                              \
  {                                                                     \
    BY_POSITION(f, 1, __VA_ARGS__), BY_POSITION(f, 2, __VA_ARGS__),     \
        BY_POSITION(f, 3, __VA_ARGS__), BY_POSITION(f, 4, __VA_ARGS__), \
        BY_POSITION(f, 5, __VA_ARGS__), BY_POSITION(f, 6, __VA_ARGS__)  \
  }

constexpr TileFn kTiles[kMaxTileChannels][kMaxPositions] = BY_CHANNEL(tile_or_null, COMMA false);
constexpr TileFn kMaskedTiles[kMaxTileChannels][kMaxPositions] =
    BY_CHANNEL(tile_or_null, COMMA true);

void tiles(int channels, const ConvWalk& walk, std::span<const ConvTile> list, int lanes,
           const float* x, const float* w, const float* bias, float* y) {
  const auto& row = lanes == kBatchBlock ? kTiles[channels - 1] : kMaskedTiles[channels - 1];
  for (const ConvTile& t : list) row[t.positions - 1](walk, t, lanes, x, w, bias, y);
}

// kOut x kPos weights: one vector sum each over all pixels, lanes added at the end.
template <int kOut, int kPos>
void weight_tile(const ConvTaps& taps, const ConvArea& area, int64_t gy_channel, const float* gy,
                 const float* x, float* gw, int64_t gw_channel) {
  f32x16 sum[kOut][kPos] = {};
  int64_t at[kPos];
#pragma GCC unroll 8
  for (int p = 0; p < kPos; ++p) at[p] = taps.x[p];
  auto add = [&](const float* g, const float* v, auto get_vector) __attribute__((always_inline)) {
    f32x16 xv[kPos];
#pragma GCC unroll 8
    for (int p = 0; p < kPos; ++p) xv[p] = get_vector(v + at[p]);
#pragma GCC unroll 8
    for (int o = 0; o < kOut; ++o) {
      f32x16 gv = get_vector(g + o * gy_channel);
#pragma GCC unroll 8
      for (int p = 0; p < kPos; ++p) sum[o][p] = fma(gv, xv[p], sum[o][p]);
    }
  };
  for (int64_t r = 0; r < area.rows; ++r) {
    const float *gr = gy + r * area.gy_row, *xr = x + r * area.x_row;
    for (int64_t c = 0; c < area.cols; ++c, gr += area.gy_col, xr += area.x_col) {
      const float *g = gr, *v = xr;
      for (int64_t i = area.vectors; i > 0; --i, g += kBatchBlock, v += kBatchBlock)
        add(
            g, v, [](const float* p) __attribute__((always_inline)) { return load(p); });
      if (area.tail > 0)
        add(
            g,
            v, [&](const float* p) __attribute__((always_inline)) { return load_n(p, area.tail); });
    }
  }
#pragma GCC unroll 8
  for (int o = 0; o < kOut; ++o)
#pragma GCC unroll 8
    for (int p = 0; p < kPos; ++p)
      gw[o * gw_channel + taps.first_weight + p] = horizontal_sum(sum[o][p]);
}

using WeightFn = void (*)(const ConvTaps&, const ConvArea&, int64_t, const float*, const float*,
                          float*, int64_t);

template <int kOut, int kPos>
constexpr WeightFn weight_or_null() {
  if constexpr (kOut * kPos <= kMaxSums && kPos <= kPositions[kOut]) {
    return weight_tile<kOut, kPos>;
  } else {
    return nullptr;
  }
}

constexpr WeightFn kWeightTiles[kMaxTileChannels][kMaxPositions] = BY_CHANNEL(weight_or_null, );

void weight_tile_any(int channels, const ConvTaps& taps, const ConvArea& area, int64_t gy_channel,
                     const float* gy, const float* x, float* gw, int64_t gw_channel) {
  kWeightTiles[channels - 1][taps.positions - 1](taps, area, gy_channel, gy, x, gw, gw_channel);
}

}  // namespace

const ConvChwnKernels conv_chwn_table{{kPositions[0], kPositions[1], kPositions[2], kPositions[3],
                                       kPositions[4], kPositions[5], kPositions[6]},
                                      tiles,
                                      weight_tile_any};

}  // namespace tessera::kernels::TESSERA_ISA
