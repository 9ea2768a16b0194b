// SPDX-License-Identifier: Apache-2.0
// Attention of one head: blocks of queries, three matrix products forward and five backward around
// the vector loops.
#include "kernels/attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/gemm.h"

namespace tessera::kernels {

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

int64_t round_up(int64_t n, int64_t unit) {
  return (n + unit - 1) / unit * unit;
}

// Scratch is cut in one place so that sizes and uses cannot differ.
struct Cutter {
  float* base;
  int64_t used = 0;
  float* take(int64_t n) {
    float* p = base == nullptr ? nullptr : base + used;
    used += round_up(n, 16);
    return p;
  }
};

struct Work {
  float *scores, *dp, *bias, *queries, *douts, *stats, *keys, *values;
};

// Panels of a packed block of queries.
int64_t panel_floats(int64_t queries, int64_t depth) {
  return round_up(queries, gemm_kernels().tile_cols) * depth;
}

Work cut(const AttentionShape& s, bool backward, Cutter& c) {
  const int64_t block = attention_query_block(s);
  Work w{};
  w.scores = c.take(block * s.keys);
  w.bias = c.take(block * s.keys);
  w.queries = c.take(panel_floats(block, s.depth));
  w.stats = c.take(4 * kMaxQueries);
  w.keys = c.take(s.keys * s.depth);
  w.values = c.take(s.keys * s.value_depth);
  if (backward) {
    w.dp = c.take(block * s.keys);
    w.douts = c.take(panel_floats(block, s.value_depth));
  }
  return w;
}

// Rows whose distance is a large power of two fight for the same cache sets; such a head is copied
// together.
const float* gather_rows(const float* src, int64_t& stride, int64_t rows, int64_t depth,
                         float* dst) {
  if (stride * 4 % 2048 != 0) return src;
  for (int64_t i = 0; i < rows; ++i)
    std::memcpy(dst + i * depth, src + i * stride, depth * sizeof(float));
  stride = depth;
  return dst;
}

void load_mask(const AttentionHead& h, int64_t q0, int64_t queries, ScoreBlock& b, float* memory) {
  if (h.mask == nullptr) return;
  auto value = [&](int64_t q, int64_t t) {
    const int64_t at = q * h.mask_q + t * h.mask_k;
    if (h.mask_is_bool) return static_cast<const uint8_t*>(h.mask)[at] != 0 ? 0.0f : -kInf;
    return static_cast<const float*>(h.mask)[at];
  };
  if (h.mask_q == 0) {
    for (int64_t t = 0; t < b.keys; ++t) memory[t] = value(0, t);
    b.key_bias = memory;
    return;
  }
  if (!h.mask_is_bool && h.mask_k == 1) {
    const float* m = static_cast<const float*>(h.mask) + q0 * h.mask_q;
    pack_kernels().transpose(m, h.mask_q, memory, b.ld, queries, b.keys);
  } else {
    for (int64_t t = 0; t < b.keys; ++t)
      for (int64_t q = 0; q < queries; ++q) memory[t * b.ld + q] = value(q0 + q, t);
  }
  for (int64_t t = 0; t < b.keys; ++t)
    for (int64_t q = queries; q < b.ld; ++q) memory[t * b.ld + q] = 0;
  b.bias = memory;
}

ScoreBlock score_block(const AttentionShape& s, const AttentionHead& h, int64_t q0, int64_t q1,
                       const Work& w) {
  ScoreBlock b;
  b.s = w.scores;
  b.ld = round_up(q1 - q0, 16);
  b.keys = s.causal ? std::min(s.keys, q1) : s.keys;
  b.q0 = q0;
  b.causal = s.causal;
  b.drop = s.drop;
  b.key = h.key;
  b.drop_p = s.drop ? s.drop_p : 0;
  b.total_keys = s.keys;
  load_mask(h, q0, q1 - q0, b, w.bias);
  return b;
}

int rows_for(int64_t cols) {
  return cols <= gemm_kernels().vector ? gemm_kernels().tall_rows : gemm_kernels().tile_rows;
}

// c[key][query] = sum over depth of rows[key][.] * packed[.][query]
void score_product(const float* rows, int64_t stride, const float* packed, int64_t depth,
                   const ScoreBlock& b, float* c) {
  GemmBlock g;
  g.r = rows, g.r_stride = stride, g.rk_stride = 1;
  g.v = packed, g.v_panel = depth * gemm_kernels().tile_cols;
  g.c = c, g.ldc = b.ld;
  g.rows = b.keys, g.cols = b.ld, g.k = depth;
  g.tile_rows = rows_for(g.cols);
  gemm_kernels().block(g);
}

// c[query][.] = sum over keys of p[key][query] * values[key][.]
void query_product(const float* p, const ScoreBlock& b, const float* values, int64_t stride,
                   int64_t queries, int64_t depth, float* c, int64_t ldc) {
  GemmBlock g;
  g.r = p, g.r_stride = 1, g.rk_stride = b.ld;
  g.v = values, g.vk_stride = stride;
  g.c = c, g.ldc = ldc;
  g.rows = queries, g.cols = depth, g.k = b.keys;
  g.tile_rows = rows_for(depth);
  gemm_kernels().block(g);
}

// c[key][.] (+)= sum over queries of p[key][query] * values[query][.]
void key_product(const float* p, const ScoreBlock& b, const float* values, int64_t stride,
                 int64_t queries, int64_t depth, float* c, int64_t ldc, bool accumulate) {
  GemmBlock g;
  g.r = p, g.r_stride = b.ld, g.rk_stride = 1;
  g.v = values, g.vk_stride = stride;
  g.c = c, g.ldc = ldc;
  g.rows = b.keys, g.cols = depth, g.k = queries;
  g.accumulate = accumulate;
  g.tile_rows = rows_for(depth);
  gemm_kernels().block(g);
}

void pack_queries(const float* src, int64_t stride, int64_t queries, int64_t depth, float factor,
                  float* dst) {
  pack_kernels().from[0].cols(src, stride, 1, queries, depth, dst,
                              depth * gemm_kernels().tile_cols);
  if (factor != 1) attention_kernels().scale(dst, panel_floats(queries, depth), factor);
}

}  // namespace

int64_t attention_query_block(const AttentionShape& s) {
  // About 200 KB of scores: they stay in the second-level cache beside keys and values.
  const int64_t fit = 49152 / std::max<int64_t>(s.keys, 1) / 16 * 16;
  const int64_t most = std::clamp<int64_t>(fit, 16, kMaxQueries);
  const int64_t blocks = (s.queries + most - 1) / most;
  return std::min(most, round_up((s.queries + blocks - 1) / std::max<int64_t>(blocks, 1), 16));
}

int64_t attention_forward_floats(const AttentionShape& s) {
  Cutter c{nullptr};
  cut(s, false, c);
  return c.used;
}

int64_t attention_backward_floats(const AttentionShape& s) {
  Cutter c{nullptr};
  cut(s, true, c);
  return c.used;
}

void attention_forward(const AttentionShape& s, const AttentionHead& h, int64_t q0, int64_t q1,
                       float* out, int64_t out_stride, float* lse, float* scratch) {
  Cutter c{scratch};
  const Work w = cut(s, false, c);
  const int64_t queries = q1 - q0;
  int64_t k_stride = h.k_stride, v_stride = h.v_stride;
  const ScoreBlock b = score_block(s, h, q0, q1, w);
  const float* k = gather_rows(h.k, k_stride, b.keys, s.depth, w.keys);
  const float* v = gather_rows(h.v, v_stride, b.keys, s.value_depth, w.values);
  pack_queries(h.q + q0 * h.q_stride, h.q_stride, queries, s.depth, s.scale, w.queries);
  score_product(k, k_stride, w.queries, s.depth, b, w.scores);
  float *row_max = w.stats, *row_sum = w.stats + kMaxQueries;
  attention_kernels().softmax(b, row_max, row_sum);
  query_product(w.scores, b, v, v_stride, queries, s.value_depth, out + q0 * out_stride,
                out_stride);
  for (int64_t i = 0; i < queries; ++i) {
    const float sum = row_sum[i];
    attention_kernels().scale(out + (q0 + i) * out_stride, s.value_depth,
                              sum == 0 ? 0.0f : 1.0f / sum);
    lse[q0 + i] = sum == 0 ? -kInf : row_max[i] + std::log(sum);
  }
}

void attention_backward(const AttentionShape& s, const AttentionHead& h, const AttentionGrads& g,
                        float* scratch) {
  Cutter c{scratch};
  const Work w = cut(s, true, c);
  int64_t k_stride = h.k_stride, v_stride = h.v_stride;
  const float* k = gather_rows(h.k, k_stride, s.keys, s.depth, w.keys);
  const float* v = gather_rows(h.v, v_stride, s.keys, s.value_depth, w.values);
  const int64_t block = attention_query_block(s);
  int64_t done = 0;  // keys whose gradients have been written once
  for (int64_t q0 = 0; q0 < s.queries; q0 += block) {
    const int64_t q1 = std::min(q0 + block, s.queries), queries = q1 - q0;
    const ScoreBlock b = score_block(s, h, q0, q1, w);
    const float *q = h.q + q0 * h.q_stride, *dout = g.dout + q0 * g.dout_stride;
    float *lse = w.stats, *delta = w.stats + kMaxQueries;
    attention_kernels().row_dot(dout, g.dout_stride, g.out + q0 * g.out_stride, g.out_stride,
                                queries, s.value_depth, delta);
    for (int64_t i = 0; i < b.ld; ++i) {
      // A fully masked query: every probability exp(s - inf) is zero.
      lse[i] = i >= queries ? 0 : g.lse[q0 + i] == -kInf ? kInf : g.lse[q0 + i];
      if (i >= queries) delta[i] = 0;
    }
    pack_queries(q, h.q_stride, queries, s.depth, s.scale, w.queries);
    pack_queries(dout, g.dout_stride, queries, s.value_depth, 1, w.douts);
    score_product(k, k_stride, w.queries, s.depth, b, w.scores);
    score_product(v, v_stride, w.douts, s.value_depth, b, w.dp);
    attention_kernels().gradient(b, w.dp, lse, delta, s.scale);
    query_product(w.dp, b, k, k_stride, queries, s.depth, g.dq + q0 * g.dq_stride, g.dq_stride);
    // With a causal mask the number of keys grows from block to block; the new ones are written,
    // not added to.
    auto key_gradient = [&](const float* p, const float* x, int64_t stride, int64_t depth,
                            float* to, int64_t ld) {
      ScoreBlock old = b, fresh = b;
      old.keys = std::min(done, b.keys), fresh.keys = b.keys - old.keys;
      if (old.keys > 0) key_product(p, old, x, stride, queries, depth, to, ld, true);
      if (fresh.keys > 0)
        key_product(p + done * b.ld, fresh, x, stride, queries, depth, to + done * ld, ld, false);
    };
    key_gradient(w.scores, dout, g.dout_stride, s.value_depth, g.dv, g.dv_stride);
    key_gradient(w.dp, q, h.q_stride, s.depth, g.dk, g.dk_stride);
    done = std::max(done, b.keys);
  }
  // Keys no query may see.
  for (int64_t t = done; t < s.keys; ++t) {
    std::fill_n(g.dk + t * g.dk_stride, s.depth, 0.0f);
    std::fill_n(g.dv + t * g.dv_stride, s.value_depth, 0.0f);
  }
}

}  // namespace tessera::kernels
