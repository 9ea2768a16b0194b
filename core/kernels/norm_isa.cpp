// SPDX-License-Identifier: Apache-2.0
// The moment, affine and gradient loops of group and batch norm, over rows and over lanes.
#include "kernels/norm.h"
#include "kernels/norm_rows.h"

namespace tessera::kernels::TESSERA_ISA {
namespace {

constexpr int64_t kLaneBlock = 256;  // positions of one float accumulation in lanes

void row_moments(const float* x, int64_t rows, int64_t step, int64_t len, float* mean, float* var) {
  const Moments m = moments_of(x, rows, step, len);
  *mean = m.mean;
  *var = m.var;
}

void row_affine(const float* x, int64_t x_step, float* y, int64_t y_step, int64_t rows, int64_t len,
                float mean, float scale, float shift) {
  const f32x16 m = broadcast(mean), a = broadcast(scale), b = broadcast(shift);
  for (int64_t r = 0; r < rows; ++r, x += x_step, y += y_step) {
    const float* p = x;
    map_row(len, y, [=](int64_t i, int64_t n) { return fma(load_some(p + i, n) - m, a, b); });
  }
}

void row_grad_sums(const float* g, int64_t g_step, const float* x, int64_t x_step, int64_t rows,
                   int64_t len, float mean, float* sum_g, float* sum_gx) {
  const f32x16 m = broadcast(mean);
  double sg = 0, sx = 0;
  for (int64_t r = 0; r < rows; ++r, g += g_step, x += x_step)
    for (int64_t at = 0; at < len; at += kRowBlock) {
      const int64_t end = at + kRowBlock < len ? at + kRowBlock : len;
      f32x16 a0{}, a1{}, b0{}, b1{};
      int64_t i = at;
      for (; i + 32 <= end; i += 32) {
        const f32x16 u = load(g + i), v = load(g + i + 16);
        a0 += u;
        a1 += v;
        b0 = fma(u, load(x + i) - m, b0);
        b1 = fma(v, load(x + i + 16) - m, b1);
      }
      for (; i < end; i += 16) {
        const int64_t n = end - i < 16 ? end - i : 16;
        const f32x16 u = load_n(g + i, n);  // zero past the end
        a0 += u;
        b0 = fma(u, load_n(x + i, n) - m, b0);
      }
      sg += horizontal_sum(a0 + a1);
      sx += horizontal_sum(b0 + b1);
    }
  *sum_g = static_cast<float>(sg);
  *sum_gx = static_cast<float>(sx);
}

void row_grad(const float* g, int64_t g_step, const float* x, int64_t x_step, float* dx,
              int64_t dx_step, int64_t rows, int64_t len, float p, float q, float mean, float r) {
  const f32x16 pv = broadcast(p), qv = broadcast(q), m = broadcast(mean), rv = broadcast(r);
  for (int64_t k = 0; k < rows; ++k, g += g_step, x += x_step, dx += dx_step) {
    const float *a = g, *b = x;
    map_row(len, dx, [=](int64_t i, int64_t n) {
      return fma(load_some(a + i, n), pv, fma(load_some(b + i, n) - m, qv, rv));
    });
  }
}

template <bool full>
TESSERA_INLINE f32x16 load_lanes(const float* p, int lanes) {
  return full ? load(p) : load_n(p, lanes);
}
template <bool full>
TESSERA_INLINE void store_lanes(float* p, f32x16 v, int lanes) {
  if (full)
    store(p, v);
  else
    store_n(p, v, lanes);
}

struct Pair {
  f32x16 a{}, b{};
};

// Two sums over the inner walk at once, in blocks: term(i) adds its values to a pair.
template <typename Term>
TESSERA_INLINE void sum_inner(int64_t inner, Pair& total, Term term) {
  for (int64_t at = 0; at < inner; at += kLaneBlock) {
    const int64_t end = at + kLaneBlock < inner ? at + kLaneBlock : inner;
    Pair s0, s1, s2, s3;
    int64_t i = at;
    for (; i + 4 <= end; i += 4) {
      term(i, s0);
      term(i + 1, s1);
      term(i + 2, s2);
      term(i + 3, s3);
    }
    for (; i < end; ++i) term(i, s0);
    total.a += (s0.a + s1.a) + (s2.a + s3.a);
    total.b += (s0.b + s1.b) + (s2.b + s3.b);
  }
}

template <bool full>
void lane_moments_t(const float* x, Walk walk, WalkStep xs, int lanes, float* mean, float* var) {
  const float inv = 1.0f / (static_cast<float>(walk.outer) * static_cast<float>(walk.inner));
  Pair sum;
  for (int64_t o = 0; o < walk.outer; ++o) {
    const float* p = x + o * xs.outer;
    sum_inner(walk.inner, sum,
              [=](int64_t i, Pair& s) { s.a += load_lanes<full>(p + i * xs.inner, lanes); });
  }
  const f32x16 m = sum.a * inv;
  // The rounding error of the mean is measured in the second pass and subtracted.
  Pair around;
  for (int64_t o = 0; o < walk.outer; ++o) {
    const float* p = x + o * xs.outer;
    sum_inner(walk.inner, around, [=](int64_t i, Pair& s) {
      const f32x16 d = load_lanes<full>(p + i * xs.inner, lanes) - m;
      s.a += d;
      s.b = fma(d, d, s.b);
    });
  }
  const f32x16 shift = around.a * inv;
  store(mean, m + shift);
  // The subtrahend is never infinite, so that a variance that is too large stays infinite.
  const f32x16 most = broadcast(__FLT_MAX__), square = shift * shift;
  store(var, around.b * inv - select(square > most, most, square));
}

void lane_moments(const float* x, Walk walk, WalkStep xs, int lanes, float* mean, float* var) {
  if (lanes == 16)
    lane_moments_t<true>(x, walk, xs, lanes, mean, var);
  else
    lane_moments_t<false>(x, walk, xs, lanes, mean, var);
}

template <bool full>
void lane_affine_t(const float* x, WalkStep xs, float* y, WalkStep ys, Walk walk, int lanes,
                   const float* mean, const float* scale, const float* shift) {
  const f32x16 m = load(mean), a = load(scale), b = load(shift);
  for (int64_t o = 0; o < walk.outer; ++o)
    for (int64_t i = 0; i < walk.inner; ++i)
      store_lanes<full>(y + o * ys.outer + i * ys.inner,
                        fma(load_lanes<full>(x + o * xs.outer + i * xs.inner, lanes) - m, a, b),
                        lanes);
}

void lane_affine(const float* x, WalkStep xs, float* y, WalkStep ys, Walk walk, int lanes,
                 const float* mean, const float* scale, const float* shift) {
  if (lanes == 16)
    lane_affine_t<true>(x, xs, y, ys, walk, lanes, mean, scale, shift);
  else
    lane_affine_t<false>(x, xs, y, ys, walk, lanes, mean, scale, shift);
}

template <bool full>
void lane_grad_sums_t(const float* g, WalkStep gs, const float* x, WalkStep xs, Walk walk,
                      int lanes, const float* mean, float* sum_g, float* sum_gx) {
  const f32x16 m = load(mean);
  Pair total;
  for (int64_t o = 0; o < walk.outer; ++o) {
    const float *p = g + o * gs.outer, *q = x + o * xs.outer;
    sum_inner(walk.inner, total, [=](int64_t i, Pair& s) {
      const f32x16 v = load_lanes<full>(p + i * gs.inner, lanes);
      s.a += v;
      s.b = fma(v, load_lanes<full>(q + i * xs.inner, lanes) - m, s.b);
    });
  }
  store(sum_g, total.a);
  store(sum_gx, total.b);
}

void lane_grad_sums(const float* g, WalkStep gs, const float* x, WalkStep xs, Walk walk, int lanes,
                    const float* mean, float* sum_g, float* sum_gx) {
  if (lanes == 16)
    lane_grad_sums_t<true>(g, gs, x, xs, walk, lanes, mean, sum_g, sum_gx);
  else
    lane_grad_sums_t<false>(g, gs, x, xs, walk, lanes, mean, sum_g, sum_gx);
}

template <bool full>
void lane_grad_t(const float* g, WalkStep gs, const float* x, WalkStep xs, float* dx, WalkStep ds,
                 Walk walk, int lanes, const float* p, const float* q, const float* mean,
                 const float* r) {
  const f32x16 pv = load(p), qv = load(q), m = load(mean), rv = load(r);
  for (int64_t o = 0; o < walk.outer; ++o)
    for (int64_t i = 0; i < walk.inner; ++i) {
      const f32x16 gv = load_lanes<full>(g + o * gs.outer + i * gs.inner, lanes);
      const f32x16 xv = load_lanes<full>(x + o * xs.outer + i * xs.inner, lanes);
      store_lanes<full>(dx + o * ds.outer + i * ds.inner, fma(gv, pv, fma(xv - m, qv, rv)), lanes);
    }
}

void lane_grad(const float* g, WalkStep gs, const float* x, WalkStep xs, float* dx, WalkStep ds,
               Walk walk, int lanes, const float* p, const float* q, const float* mean,
               const float* r) {
  if (lanes == 16)
    lane_grad_t<true>(g, gs, x, xs, dx, ds, walk, lanes, p, q, mean, r);
  else
    lane_grad_t<false>(g, gs, x, xs, dx, ds, walk, lanes, p, q, mean, r);
}

}  // namespace

const NormKernels norm_table{row_moments,  row_affine,  row_grad_sums,  row_grad,
                             lane_moments, lane_affine, lane_grad_sums, lane_grad};

}  // namespace tessera::kernels::TESSERA_ISA
