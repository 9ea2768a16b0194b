// SPDX-License-Identifier: Apache-2.0
// Layer norm rows and the moment, affine and gradient loops of group and batch norm. Long sums are
// taken in blocks whose results are added in double (rows) or in a second accumulator (lanes), so
// that error does not grow with size.
#include "kernels/norm.h"
#include "kernels/simd.h"

namespace tessera::kernels::TESSERA_ISA {
namespace {

constexpr int64_t kBlock = 4096;     // elements of one float accumulation along rows
constexpr int64_t kLaneBlock = 256;  // positions of one float accumulation in lanes

TESSERA_INLINE i32x16 first_lanes(int64_t n) {
  return iota_i() < broadcast_i(static_cast<int32_t>(n));
}

// Sum over one row piece of term(i, n): the vector at element i of which n lanes count.
template <typename Term>
TESSERA_INLINE float sum_piece(int64_t begin, int64_t end, Term term) {
  f32x16 s0{}, s1{}, s2{}, s3{};
  int64_t i = begin;
  for (; i + 64 <= end; i += 64) {
    s0 += term(i, 16);
    s1 += term(i + 16, 16);
    s2 += term(i + 32, 16);
    s3 += term(i + 48, 16);
  }
  for (; i + 16 <= end; i += 16) s0 += term(i, 16);
  if (i < end) s1 += select(first_lanes(end - i), term(i, end - i), f32x16{});
  return horizontal_sum((s0 + s1) + (s2 + s3));
}

// Loads that know at compile time of full vectors: the callers pass 16 as a constant there.
TESSERA_INLINE f32x16 load_some(const float* p, int64_t n) {
  return __builtin_constant_p(n) && n == 16 ? load(p) : load_n(p, n);
}

template <typename Term>
TESSERA_INLINE double sum_row(int64_t len, Term term) {
  if (len <= kBlock) return sum_piece(0, len, term);
  double total = 0;
  for (int64_t i = 0; i < len; i += kBlock)
    total += sum_piece(i, i + kBlock < len ? i + kBlock : len, term);
  return total;
}

template <typename F>
TESSERA_INLINE void map_row(int64_t len, float* y, F f) {
  int64_t i = 0;
  for (; i + 32 <= len; i += 32) {
    const f32x16 a = f(i, 16), b = f(i + 16, 16);
    store(y + i, a);
    store(y + i + 16, b);
  }
  for (; i + 16 <= len; i += 16) store(y + i, f(i, 16));
  if (i < len) store_n(y + i, f(i, len - i), len - i);
}

// The next rows are fetched while this one is finished from the first-level cache; memory would be
// idle else.
TESSERA_INLINE void fetch(const float* p) {
  __builtin_prefetch(p, 0, 2);
}

struct Moments {
  float mean, var;
};

// Mean and variance of all rows. The mean of the first pass has lost a few of its last digits.
// Where they matter, because the values lie close together far from zero, they are measured around
// it.
TESSERA_INLINE Moments moments_of(const float* x, int64_t rows, int64_t step, int64_t len) {
  const double count = static_cast<double>(rows) * static_cast<double>(len);
  double sum = 0, square = 0;
  for (int64_t r = 0; r < rows; ++r) {
    const float* p = x + r * step;
    sum += sum_row(len, [=](int64_t i, int64_t n) { return load_some(p + i, n); });
  }
  const auto m = static_cast<float>(sum / count);
  const f32x16 mv = broadcast(m);
  for (int64_t r = 0; r < rows; ++r) {
    const float* p = x + r * step;
    square += sum_row(len, [=](int64_t i, int64_t n) {
      const f32x16 d = load_some(p + i, n) - mv;
      return d * d;
    });
  }
  const double var = square / count;
  if (!(16 * var < static_cast<double>(m) * static_cast<double>(m)))
    return {m, static_cast<float>(var)};
  double around = 0;
  for (int64_t r = 0; r < rows; ++r) {
    const float* p = x + r * step;
    around += sum_row(len, [=](int64_t i, int64_t n) { return load_some(p + i, n) - mv; });
  }
  const double shift = around / count, exact = var - shift * shift;
  return {static_cast<float>(static_cast<double>(m) + shift),
          static_cast<float>(exact > 0 ? exact : 0)};
}

void layer(const float* x, const float* w, const float* b, float* y, float* mean, float* rstd,
           int64_t rows, int64_t len, float eps) {
  for (int64_t r = 0; r < rows; ++r, x += len, y += len) {
    const Moments at = moments_of(x, 1, 0, len);
    // The last term makes NaN of a variance that is too large for its type: zero would hide it.
    const float s = 1.0f / __builtin_sqrtf(at.var + eps) + (at.var - at.var);
    mean[r] = at.mean;
    rstd[r] = s;
    const f32x16 mv = broadcast(at.mean), sv = broadcast(s);
    if (w && b)
      map_row(len, y, [=](int64_t i, int64_t n) {
        fetch(x + len + i);
        return fma((load_some(x + i, n) - mv) * sv, load_some(w + i, n), load_some(b + i, n));
      });
    else if (w)
      map_row(len, y, [=](int64_t i, int64_t n) {
        return (load_some(x + i, n) - mv) * sv * load_some(w + i, n);
      });
    else if (b)
      map_row(len, y, [=](int64_t i, int64_t n) {
        return fma(load_some(x + i, n) - mv, sv, load_some(b + i, n));
      });
    else
      map_row(len, y, [=](int64_t i, int64_t n) {
        fetch(x + len + i);
        return (load_some(x + i, n) - mv) * sv;
      });
  }
}

// R rows together, so that w, dw and db are read and written once for all of them.
template <int R, bool weighted>
TESSERA_INLINE void layer_grad_rows(const float* g, const float* x, const float* mean,
                                    const float* rstd, const float* w, float* dx, float* dw,
                                    float* db, int64_t len) {
  f32x16 m[R], s[R], p[R], q[R];
  for (int r = 0; r < R; ++r) {
    m[r] = broadcast(mean[r]);
    s[r] = broadcast(rstd[r]);
    if (!dx) continue;
    const float *gr = g + r * len, *xr = x + r * len;
    const f32x16 mr = m[r];
    auto weigh = [=](int64_t i, int64_t n) {
      const f32x16 v = load_some(gr + i, n);
      return weighted ? v * load_some(w + i, n) : v;
    };
    double sum_g = 0, sum_gx = 0;
    for (int64_t at = 0; at < len; at += kBlock) {
      const int64_t end = at + kBlock < len ? at + kBlock : len;
      f32x16 a0{}, a1{}, b0{}, b1{};
      int64_t i = at;
      for (; i + 32 <= end; i += 32) {
        const f32x16 u = weigh(i, 16), v = weigh(i + 16, 16);
        a0 += u;
        a1 += v;
        b0 = fma(u, load(xr + i) - mr, b0);
        b1 = fma(v, load(xr + i + 16) - mr, b1);
      }
      for (; i < end; i += 16) {
        const int64_t n = end - i < 16 ? end - i : 16;
        const f32x16 u = weigh(i, n);
        a0 += u;
        b0 = fma(u, load_n(xr + i, n) - mr, b0);  // u is zero past the end
      }
      sum_g += horizontal_sum(a0 + a1);
      sum_gx += horizontal_sum(b0 + b1);
    }
    const double inv = 1.0 / static_cast<double>(len), rs = rstd[r];
    p[r] = broadcast(static_cast<float>(sum_g * inv));
    q[r] = broadcast(static_cast<float>(sum_gx * inv * rs * rs));
  }
  auto columns = [&](int64_t i, int64_t n) __attribute__((always_inline)) {
    f32x16 wv{}, sum_w{}, sum_b{};
    if (weighted) wv = load_some(w + i, n);
    for (int r = 0; r < R; ++r) {
      fetch(g + (R + r) * len + i);
      fetch(x + (R + r) * len + i);
      const f32x16 gv = load_some(g + r * len + i, n), d = load_some(x + r * len + i, n) - m[r];
      sum_b += gv;
      sum_w = fma(gv, d * s[r], sum_w);
      if (dx) {
        const f32x16 u = weighted ? gv * wv : gv;
        const f32x16 v = s[r] * (u - p[r] - d * q[r]);
        if (__builtin_constant_p(n))
          store(dx + r * len + i, v);
        else
          store_n(dx + r * len + i, v, n);
      }
    }
    if (dw) {
      const f32x16 v = load_some(dw + i, n) + sum_w;
      __builtin_constant_p(n) ? store(dw + i, v) : store_n(dw + i, v, n);
    }
    if (db) {
      const f32x16 v = load_some(db + i, n) + sum_b;
      __builtin_constant_p(n) ? store(db + i, v) : store_n(db + i, v, n);
    }
  };
  int64_t i = 0;
  for (; i + 16 <= len; i += 16) columns(i, 16);
  if (i < len) columns(i, len - i);
}

template <bool weighted>
void layer_grad_all(const float* g, const float* x, const float* mean, const float* rstd,
                    const float* w, float* dx, float* dw, float* db, int64_t rows, int64_t len) {
  int64_t r = 0;
  for (; r + 4 <= rows; r += 4)
    layer_grad_rows<4, weighted>(g + r * len, x + r * len, mean + r, rstd + r, w,
                                 dx ? dx + r * len : nullptr, dw, db, len);
  for (; r < rows; ++r)
    layer_grad_rows<1, weighted>(g + r * len, x + r * len, mean + r, rstd + r, w,
                                 dx ? dx + r * len : nullptr, dw, db, len);
}

void layer_grad(const float* g, const float* x, const float* mean, const float* rstd,
                const float* w, float* dx, float* dw, float* db, int64_t rows, int64_t len) {
  if (w)
    layer_grad_all<true>(g, x, mean, rstd, w, dx, dw, db, rows, len);
  else
    layer_grad_all<false>(g, x, mean, rstd, w, dx, dw, db, rows, len);
}

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
    for (int64_t at = 0; at < len; at += kBlock) {
      const int64_t end = at + kBlock < len ? at + kBlock : len;
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
  // The rounding error of the mean is measured in the second pass and taken out again.
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

extern const NormKernels norm_table;
const NormKernels norm_table{layer,    layer_grad,   row_moments, row_affine,     row_grad_sums,
                             row_grad, lane_moments, lane_affine, lane_grad_sums, lane_grad};

}  // namespace tessera::kernels::TESSERA_ISA
