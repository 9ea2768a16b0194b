// SPDX-License-Identifier: Apache-2.0
// Scaled dot-product attention of one head, forward for a block of queries and backward for a whole
// head. Scores live transposed in scratch, [key][query]: queries are the vector lanes, so softmax
// needs no horizontal sums, keys and values are read in place, and nothing but a block of queries
// is ever packed.
//
// Dropout keeps a probability iff uniform(key, stream, index) >= p with index = (head << 32) +
// query * keys + key, head counted over batch and heads (random.h), and scales the kept ones by 1 /
// (1 - p).
#pragma once

#include <cstdint>

#include "kernels/dispatch.h"
#include "kernels/random.h"

namespace tessera::kernels {

// A block of transposed scores and what is added to or dropped from it.
struct ScoreBlock {
  float* s = nullptr;  // [keys][ld]; ld is a multiple of 16, at most kMaxQueries; columns past
                       // `queries` are unused
  int64_t ld = 0;
  int64_t keys = 0;
  int64_t q0 = 0;  // first query, absolute
  bool causal = false;
  const float* key_bias = nullptr;  // [keys], same for all queries
  const float* bias = nullptr;      // [keys][ld]
  bool drop = false;
  RandomKey key{};
  float drop_p = 0;
  int64_t total_keys = 0;
};
constexpr int64_t kMaxQueries = 96;

struct AttentionKernels {
  // Scores become unnormalised probabilities (dropped and scaled ones included); row_max and
  // row_sum have ld entries.
  void (*softmax)(const ScoreBlock&, float* row_max, float* row_sum);
  // Scores become (dropped) probabilities, `dp` becomes scale * dS. lse and delta have ld entries.
  void (*gradient)(const ScoreBlock&, float* dp, const float* lse, const float* delta, float scale);
  void (*scale)(float* x, int64_t n, float factor);
  // out[i] = sum_j a[i * a_stride + j] * b[i * b_stride + j]
  void (*row_dot)(const float* a, int64_t a_stride, const float* b, int64_t b_stride, int64_t rows,
                  int64_t cols, float* out);
};
TESSERA_KERNELS(AttentionKernels, attention)

struct AttentionShape {
  int64_t queries = 0, keys = 0, depth = 0, value_depth = 0;
  bool causal = false;
  float scale = 1;
  bool drop = false;
  float drop_p = 0;
};

// One head in memory; strides per token, unit stride along the depth.
struct AttentionHead {
  const float *q = nullptr, *k = nullptr, *v = nullptr;
  int64_t q_stride = 0, k_stride = 0, v_stride = 0;
  // Additive mask of this head: f32 or bool (false: -inf), any strides.
  const void* mask = nullptr;
  bool mask_is_bool = false;
  int64_t mask_q = 0, mask_k = 0;
  RandomKey key{};  // with the head's number as index_high
};

int64_t attention_query_block(const AttentionShape& shape);
int64_t attention_forward_floats(const AttentionShape& shape);  // scratch of one thread
int64_t attention_backward_floats(const AttentionShape& shape);

// Queries [q0, q1), at most attention_query_block of them. lse is the whole head's vector.
void attention_forward(const AttentionShape& shape, const AttentionHead& head, int64_t q0,
                       int64_t q1, float* out, int64_t out_stride, float* lse, float* scratch);

struct AttentionGrads {
  const float *out = nullptr, *dout = nullptr, *lse = nullptr;
  int64_t out_stride = 0, dout_stride = 0;
  float *dq = nullptr, *dk = nullptr, *dv = nullptr;
  int64_t dq_stride = 0, dk_stride = 0, dv_stride = 0;
};
void attention_backward(const AttentionShape& shape, const AttentionHead& head,
                        const AttentionGrads& grads, float* scratch);

}  // namespace tessera::kernels
