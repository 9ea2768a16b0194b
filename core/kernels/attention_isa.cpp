// SPDX-License-Identifier: Apache-2.0
// The vector loops of attention between its matrix products, compiled per instruction set.
#include "kernels/attention.h"
#include "kernels/simd.h"

namespace tessera::kernels::TESSERA_ISA {

namespace {

TESSERA_INLINE u32x16 random_bits_v(RandomKey key, u32x16 index) {
  u32x16 x = index ^ key.a;
  x ^= x >> 17;
  x *= 0xed5ad4bbu;
  x ^= x >> 11;
  x += key.b;
  x *= 0xac4c1b51u;
  x ^= x >> 15;
  x *= 0x31848babu;
  x ^= x >> 14;
  return x;
}

// Lanes to keep for key t; `query_index` is query * total_keys of each lane.
TESSERA_INLINE i32x16 kept(const ScoreBlock& b, u32x16 query_index, int64_t t) {
  u32x16 bits = random_bits_v(b.key, query_index + static_cast<uint32_t>(t));
  f32x16 u = to_float(reinterpret_cast<i32x16>(bits >> 8)) * 0x1p-24f;
  return u >= broadcast(b.drop_p);
}

// Score of key t in vector v with bias and causal mask.
TESSERA_INLINE f32x16 score(const ScoreBlock& b, int64_t t, int v) {
  f32x16 x = load(b.s + t * b.ld + v * 16);
  if (b.key_bias != nullptr) x += b.key_bias[t];
  if (b.bias != nullptr) x += load(b.bias + t * b.ld + v * 16);
  if (b.causal && t > b.q0) {
    i32x16 query = iota_i() + static_cast<int32_t>(b.q0 + v * 16);
    x = broadcast_i(static_cast<int32_t>(t)) > query ? broadcast(-__builtin_inff()) : x;
  }
  return x;
}

TESSERA_INLINE u32x16 query_index(const ScoreBlock& b, int v) {
  u32x16 q = reinterpret_cast<u32x16>(iota_i()) + static_cast<uint32_t>(b.q0 + v * 16);
  return q * static_cast<uint32_t>(b.total_keys);
}

template <int Vecs>
void softmax_block(const ScoreBlock& b, float* row_max, float* row_sum) {
  const bool changed = b.key_bias != nullptr || b.bias != nullptr || b.causal;
  const f32x16 low = broadcast(-__builtin_inff());
  f32x16 top[Vecs], sum[Vecs];
  u32x16 index[Vecs];
#pragma GCC unroll 6
  for (int v = 0; v < Vecs; ++v) {
    top[v] = low;
    sum[v] = f32x16{};
    index[v] = query_index(b, v);
  }
  for (int64_t t = 0; t < b.keys; ++t)
#pragma GCC unroll 6
    for (int v = 0; v < Vecs; ++v) {
      f32x16 x = score(b, t, v);
      if (changed) store(b.s + t * b.ld + v * 16, x);
      top[v] = max_nan(x, top[v]);
    }
    // A row with every key masked out has no maximum; its probabilities are zero.
#pragma GCC unroll 6
  for (int v = 0; v < Vecs; ++v) {
    store(row_max + v * 16, top[v]);
    top[v] = top[v] == low ? f32x16{} : top[v];
  }
  const f32x16 keep_scale = broadcast(1.0f / (1.0f - b.drop_p));
  for (int64_t t = 0; t < b.keys; ++t)
#pragma GCC unroll 6
    for (int v = 0; v < Vecs; ++v) {
      float* at = b.s + t * b.ld + v * 16;
      f32x16 p = exp(load(at) - top[v]);
      sum[v] += p;
      if (b.drop) p = kept(b, index[v], t) ? p * keep_scale : f32x16{};
      store(at, p);
    }
#pragma GCC unroll 6
  for (int v = 0; v < Vecs; ++v) store(row_sum + v * 16, sum[v]);
}

template <int Vecs>
void gradient_block(const ScoreBlock& b, float* dp, const float* lse, const float* delta,
                    float scale) {
  const f32x16 keep_scale = broadcast(1.0f / (1.0f - b.drop_p));
  u32x16 index[Vecs];
#pragma GCC unroll 6
  for (int v = 0; v < Vecs; ++v) index[v] = query_index(b, v);
  for (int64_t t = 0; t < b.keys; ++t)
#pragma GCC unroll 6
    for (int v = 0; v < Vecs; ++v) {
      const int64_t at = t * b.ld + v * 16;
      f32x16 p = exp(score(b, t, v) - load(lse + v * 16));
      f32x16 g = load(dp + at), dropped = p;
      if (b.drop) {
        i32x16 keep = kept(b, index[v], t);
        dropped = keep ? p * keep_scale : f32x16{};
        g = keep ? g * keep_scale : f32x16{};
      }
      store(b.s + at, dropped);
      store(dp + at, p * (g - load(delta + v * 16)) * scale);
    }
}

void softmax(const ScoreBlock& b, float* row_max, float* row_sum) {
  switch (b.ld / 16) {
    case 1:
      return softmax_block<1>(b, row_max, row_sum);
    case 2:
      return softmax_block<2>(b, row_max, row_sum);
    case 3:
      return softmax_block<3>(b, row_max, row_sum);
    case 4:
      return softmax_block<4>(b, row_max, row_sum);
    case 5:
      return softmax_block<5>(b, row_max, row_sum);
    default:
      return softmax_block<6>(b, row_max, row_sum);
  }
}

void gradient(const ScoreBlock& b, float* dp, const float* lse, const float* delta, float scale) {
  switch (b.ld / 16) {
    case 1:
      return gradient_block<1>(b, dp, lse, delta, scale);
    case 2:
      return gradient_block<2>(b, dp, lse, delta, scale);
    case 3:
      return gradient_block<3>(b, dp, lse, delta, scale);
    case 4:
      return gradient_block<4>(b, dp, lse, delta, scale);
    case 5:
      return gradient_block<5>(b, dp, lse, delta, scale);
    default:
      return gradient_block<6>(b, dp, lse, delta, scale);
  }
}

void scale(float* x, int64_t n, float factor) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) store(x + i, load(x + i) * factor);
  for (; i < n; ++i) x[i] *= factor;
}

void row_dot(const float* a, int64_t a_stride, const float* b, int64_t b_stride, int64_t rows,
             int64_t cols, float* out) {
  for (int64_t i = 0; i < rows; ++i) {
    const float *x = a + i * a_stride, *y = b + i * b_stride;
    f32x16 sum{};
    int64_t j = 0;
    for (; j + 16 <= cols; j += 16) sum = fma(load(x + j), load(y + j), sum);
    if (j < cols) sum = fma(load_n(x + j, cols - j), load_n(y + j, cols - j), sum);
    out[i] = horizontal_sum(sum);
  }
}

}  // namespace

const AttentionKernels attention_table{softmax, gradient, scale, row_dot};

}  // namespace tessera::kernels::TESSERA_ISA
