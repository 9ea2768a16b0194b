// SPDX-License-Identifier: Apache-2.0
// Layer norm: whole rows, forward and backward.
#include "kernels/norm.h"
#include "kernels/norm_rows.h"

namespace tessera::kernels::TESSERA_ISA {
namespace {

// Rows up to this length are normalised four together: their statistics are one short vector.
constexpr int64_t kShortRow = 512;

// y = (x - mean) * rstd * w + b
TESSERA_INLINE void normalise(const float* x, const float* w, const float* b, float* y, int64_t len,
                              float mean, float rstd) {
  const f32x16 m = broadcast(mean), s = broadcast(rstd);
  if (w && b)
    map_row(len, y, [=](int64_t i, int64_t n) {
      fetch(x + len + i);
      return fma((load_some(x + i, n) - m) * s, load_some(w + i, n), load_some(b + i, n));
    });
  else if (w)
    map_row(len, y, [=](int64_t i, int64_t n) {
      return (load_some(x + i, n) - m) * s * load_some(w + i, n);
    });
  else if (b)
    map_row(len, y, [=](int64_t i, int64_t n) {
      return fma(load_some(x + i, n) - m, s, load_some(b + i, n));
    });
  else
    map_row(len, y, [=](int64_t i, int64_t n) {
      fetch(x + len + i);
      return (load_some(x + i, n) - m) * s;
    });
}

TESSERA_INLINE f32x4 root(f32x4 v) {
  return reinterpret_cast<f32x4>(_mm_sqrt_ps(reinterpret_cast<__m128>(v)));
}

// The sum of each of four vectors, in the order of horizontal_sum.
TESSERA_INLINE f32x4 horizontal_sums(const f32x16 (&v)[4]) {
  f32x4 q[4];
  for (int r = 0; r < 4; ++r) {
    const f32x8 a = __builtin_shufflevector(v[r], v[r], 0, 1, 2, 3, 4, 5, 6, 7) +
                    __builtin_shufflevector(v[r], v[r], 8, 9, 10, 11, 12, 13, 14, 15);
    q[r] = __builtin_shufflevector(a, a, 0, 1, 2, 3) + __builtin_shufflevector(a, a, 4, 5, 6, 7);
  }
  const f32x4 u = __builtin_shufflevector(q[0], q[1], 0, 4, 1, 5) +
                  __builtin_shufflevector(q[0], q[1], 2, 6, 3, 7);
  const f32x4 w = __builtin_shufflevector(q[2], q[3], 0, 4, 1, 5) +
                  __builtin_shufflevector(q[2], q[3], 2, 6, 3, 7);
  return __builtin_shufflevector(u, w, 0, 1, 4, 5) + __builtin_shufflevector(u, w, 2, 3, 6, 7);
}

// Sums of term(row, vector) over four rows.
template <typename Term>
TESSERA_INLINE f32x4 sum_four(const float* const (&x)[4], int64_t len, Term term) {
  f32x16 s[4] = {};
  int64_t i = 0;
  for (; i + 16 <= len; i += 16)
    for (int r = 0; r < 4; ++r) s[r] += term(r, load(x[r] + i));
  if (i < len) {
    const i32x16 inside = first_lanes(len - i);
    for (int r = 0; r < 4; ++r)
      s[r] += select(inside, term(r, load_n(x[r] + i, len - i)), f32x16{});
  }
  return horizontal_sums(s);
}

// `rows` (1 to 4) short rows. The last one stands in for missing ones, so that the result of a row
// does not depend on its neighbours. The moments are those of moments_of, in float.
void short_rows(const float* x, const float* w, const float* b, float* y, float* mean, float* rstd,
                int64_t rows, int64_t len, float eps) {
  const float* p[4];
  for (int r = 0; r < 4; ++r) p[r] = x + (r < rows ? r : rows - 1) * len;
  const float inv = 1.0f / static_cast<float>(len);
  f32x4 m = sum_four(p, len, [](int, f32x16 v) { return v; }) * inv;
  f32x16 mv[4];
  for (int r = 0; r < 4; ++r) mv[r] = broadcast(m[r]);
  f32x4 var = sum_four(p, len, [&](int r, f32x16 v) { return (v - mv[r]) * (v - mv[r]); }) * inv;
  const auto close = 4 * root(var) < (m < 0 ? -m : m);
  if (close[0] | close[1] | close[2] | close[3]) {
    const f32x4 shift = sum_four(p, len, [&](int r, f32x16 v) { return v - mv[r]; }) * inv;
    const f32x4 exact = var - shift * shift;
    m = close ? m + shift : m;
    var = close ? (exact > 0 ? exact : f32x4{}) : var;
  }
  const f32x4 s = 1.0f / root(var + eps) + (var - var);
  for (int r = 0; r < rows; ++r) {
    mean[r] = m[r];
    rstd[r] = s[r];
    normalise(x + r * len, w, b, y + r * len, len, m[r], s[r]);
  }
}

void layer(const float* x, const float* w, const float* b, float* y, float* mean, float* rstd,
           int64_t rows, int64_t len, float eps) {
  if (len <= kShortRow) {
    for (int64_t r = 0; r < rows; r += 4)
      short_rows(x + r * len, w, b, y + r * len, mean + r, rstd + r, rows - r < 4 ? rows - r : 4,
                 len, eps);
    return;
  }
  for (int64_t r = 0; r < rows; ++r, x += len, y += len) {
    const Moments at = moments_of(x, 1, 0, len);
    // The last term makes NaN of a variance that is too large for its type: zero would hide it.
    rstd[r] = 1.0f / __builtin_sqrtf(at.var + eps) + (at.var - at.var);
    mean[r] = at.mean;
    normalise(x, w, b, y, len, at.mean, rstd[r]);
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
    for (int64_t at = 0; at < len; at += kRowBlock) {
      const int64_t end = at + kRowBlock < len ? at + kRowBlock : len;
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

}  // namespace

const LayerNormKernels layer_norm_table{layer, layer_grad};

}  // namespace tessera::kernels::TESSERA_ISA
