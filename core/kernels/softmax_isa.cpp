// SPDX-License-Identifier: Apache-2.0
// Row softmax keeps the row in the first-level cache over three passes: maximum, exponentials and
// their sum, scaling. A strided softmax does the same for sixteen neighbours at once.
#include "kernels/simd.h"
#include "kernels/softmax.h"

namespace tessera::kernels::TESSERA_ISA {
namespace {

TESSERA_INLINE f32x16 low_bound() {
  return broadcast(-__builtin_inff());
}

// First n lanes of p, `fill` in the others.
TESSERA_INLINE f32x16 load_fill(const float* p, int64_t n, f32x16 fill) {
  const i32x16 in = iota_i() < broadcast_i(static_cast<int32_t>(n));
  return select(in, load_n(p, n), fill);
}

TESSERA_INLINE float row_max(const float* x, int64_t len) {
  f32x16 m0 = low_bound(), m1 = m0, m2 = m0, m3 = m0;
  int64_t i = 0;
  for (; i + 64 <= len; i += 64) {
    m0 = max(load(x + i), m0);
    m1 = max(load(x + i + 16), m1);
    m2 = max(load(x + i + 32), m2);
    m3 = max(load(x + i + 48), m3);
  }
  for (; i + 16 <= len; i += 16) m0 = max(load(x + i), m0);
  if (i < len) m1 = max(load_fill(x + i, len - i, low_bound()), m1);
  return horizontal_max(max(max(m0, m1), max(m2, m3)));
}

// Sum of exp(x - top); the exponentials are kept in y if asked for.
template <bool keep>
TESSERA_INLINE float exp_row(const float* x, float* y, int64_t len, float top) {
  const f32x16 t = broadcast(top);
  f32x16 s0{}, s1{}, s2{}, s3{};
  int64_t i = 0;
  for (; i + 64 <= len; i += 64) {
    const f32x16 e0 = exp(load(x + i) - t), e1 = exp(load(x + i + 16) - t);
    const f32x16 e2 = exp(load(x + i + 32) - t), e3 = exp(load(x + i + 48) - t);
    if (keep) {
      store(y + i, e0);
      store(y + i + 16, e1);
      store(y + i + 32, e2);
      store(y + i + 48, e3);
    }
    s0 += e0;
    s1 += e1;
    s2 += e2;
    s3 += e3;
  }
  for (; i + 16 <= len; i += 16) {
    const f32x16 e = exp(load(x + i) - t);
    if (keep) store(y + i, e);
    s0 += e;
  }
  if (i < len) {
    const f32x16 e = exp(load_n(x + i, len - i) - t);
    if (keep) store_n(y + i, e, len - i);
    const i32x16 in = iota_i() < broadcast_i(static_cast<int32_t>(len - i));
    s1 += select(in, e, f32x16{});
  }
  return horizontal_sum((s0 + s1) + (s2 + s3));
}

// y = f(x) over one row.
template <typename F>
TESSERA_INLINE void map_row(const float* x, float* y, int64_t len, F f) {
  int64_t i = 0;
  for (; i + 32 <= len; i += 32) {
    const f32x16 a = f(load(x + i)), b = f(load(x + i + 16));
    store(y + i, a);
    store(y + i + 16, b);
  }
  for (; i + 16 <= len; i += 16) store(y + i, f(load(x + i)));
  if (i < len) store_n(y + i, f(load_n(x + i, len - i)), len - i);
}

void softmax_rows(const float* x, float* y, int64_t rows, int64_t x_step, int64_t y_step,
                  int64_t len, bool log) {
  for (int64_t r = 0; r < rows; ++r, x += x_step, y += y_step) {
    const float top = row_max(x, len);
    if (log) {
      const float sum = exp_row<false>(x, y, len, top);
      const f32x16 t = broadcast(top), l = TESSERA_ISA::log(broadcast(sum));
      map_row(x, y, len, [=](f32x16 v) { return v - t - l; });
    } else {
      const f32x16 scale = broadcast(1.0f / exp_row<true>(x, y, len, top));
      map_row(y, y, len, [=](f32x16 v) { return v * scale; });
    }
  }
}

// Sum over a row of f(g, y); lanes past the end count as zero in both.
template <typename F>
TESSERA_INLINE float sum_row(const float* g, const float* y, int64_t len, F f) {
  f32x16 s0{}, s1{}, s2{}, s3{};
  int64_t i = 0;
  for (; i + 64 <= len; i += 64) {
    s0 = f(load(g + i), load(y + i), s0);
    s1 = f(load(g + i + 16), load(y + i + 16), s1);
    s2 = f(load(g + i + 32), load(y + i + 32), s2);
    s3 = f(load(g + i + 48), load(y + i + 48), s3);
  }
  for (; i + 16 <= len; i += 16) s0 = f(load(g + i), load(y + i), s0);
  if (i < len) s1 = f(load_n(g + i, len - i), load_n(y + i, len - i), s1);
  return horizontal_sum((s0 + s1) + (s2 + s3));
}

template <typename F>
TESSERA_INLINE void map_row2(const float* a, const float* b, float* y, int64_t len, F f) {
  int64_t i = 0;
  for (; i + 16 <= len; i += 16) store(y + i, f(load(a + i), load(b + i)));
  if (i < len) store_n(y + i, f(load_n(a + i, len - i), load_n(b + i, len - i)), len - i);
}

void softmax_rows_grad(const float* g, const float* y, float* dx, int64_t rows, int64_t g_step,
                       int64_t y_step, int64_t dx_step, int64_t len, bool log) {
  for (int64_t r = 0; r < rows; ++r, g += g_step, y += y_step, dx += dx_step) {
    if (log) {
      const f32x16 s =
          broadcast(sum_row(g, y, len, [](f32x16 a, f32x16, f32x16 acc) { return acc + a; }));
      map_row2(g, y, dx, len, [=](f32x16 a, f32x16 b) { return a - exp(b) * s; });
    } else {
      const f32x16 s = broadcast(
          sum_row(g, y, len, [](f32x16 a, f32x16 b, f32x16 acc) { return fma(a, b, acc); }));
      map_row2(g, y, dx, len, [=](f32x16 a, f32x16 b) { return (a - s) * b; });
    }
  }
}

template <bool full>
TESSERA_INLINE f32x16 load_lanes(const float* p, int64_t n) {
  return full ? load(p) : load_n(p, n);
}
template <bool full>
TESSERA_INLINE void store_lanes(float* p, f32x16 v, int64_t n) {
  if (full)
    store(p, v);
  else
    store_n(p, v, n);
}

template <bool full>
void softmax_block(const float* x, float* y, int64_t len, int64_t x_step, int64_t y_step, int64_t n,
                   bool log) {
  f32x16 top = low_bound();
  for (int64_t i = 0; i < len; ++i) top = max(load_lanes<full>(x + i * x_step, n), top);
  f32x16 sum{};
  if (log) {
    for (int64_t i = 0; i < len; ++i) sum += exp(load_lanes<full>(x + i * x_step, n) - top);
    const f32x16 l = TESSERA_ISA::log(sum);
    for (int64_t i = 0; i < len; ++i)
      store_lanes<full>(y + i * y_step, load_lanes<full>(x + i * x_step, n) - top - l, n);
  } else {
    for (int64_t i = 0; i < len; ++i) {
      const f32x16 e = exp(load_lanes<full>(x + i * x_step, n) - top);
      store_lanes<full>(y + i * y_step, e, n);
      sum += e;
    }
    const f32x16 scale = 1.0f / sum;
    for (int64_t i = 0; i < len; ++i)
      store_lanes<full>(y + i * y_step, load_lanes<full>(y + i * y_step, n) * scale, n);
  }
}

void softmax_columns(const float* x, float* y, int64_t len, int64_t x_step, int64_t y_step,
                     int64_t width, bool log) {
  int64_t w = 0;
  for (; w + 16 <= width; w += 16) softmax_block<true>(x + w, y + w, len, x_step, y_step, 16, log);
  if (w < width) softmax_block<false>(x + w, y + w, len, x_step, y_step, width - w, log);
}

template <bool full>
void softmax_block_grad(const float* g, const float* y, float* dx, int64_t len, int64_t g_step,
                        int64_t y_step, int64_t dx_step, int64_t n, bool log) {
  f32x16 sum{};
  if (log) {
    for (int64_t i = 0; i < len; ++i) sum += load_lanes<full>(g + i * g_step, n);
    for (int64_t i = 0; i < len; ++i)
      store_lanes<full>(
          dx + i * dx_step,
          load_lanes<full>(g + i * g_step, n) - exp(load_lanes<full>(y + i * y_step, n)) * sum, n);
  } else {
    for (int64_t i = 0; i < len; ++i)
      sum = fma(load_lanes<full>(g + i * g_step, n), load_lanes<full>(y + i * y_step, n), sum);
    for (int64_t i = 0; i < len; ++i)
      store_lanes<full>(
          dx + i * dx_step,
          (load_lanes<full>(g + i * g_step, n) - sum) * load_lanes<full>(y + i * y_step, n), n);
  }
}

void softmax_columns_grad(const float* g, const float* y, float* dx, int64_t len, int64_t g_step,
                          int64_t y_step, int64_t dx_step, int64_t width, bool log) {
  int64_t w = 0;
  for (; w + 16 <= width; w += 16)
    softmax_block_grad<true>(g + w, y + w, dx + w, len, g_step, y_step, dx_step, 16, log);
  if (w < width)
    softmax_block_grad<false>(g + w, y + w, dx + w, len, g_step, y_step, dx_step, width - w, log);
}

}  // namespace

const SoftmaxKernels softmax_table{softmax_rows, softmax_rows_grad, softmax_columns,
                                   softmax_columns_grad};

}  // namespace tessera::kernels::TESSERA_ISA
