// SPDX-License-Identifier: Apache-2.0
// Scans. Rows without gaps are scanned a vector at a time: within the vector by shifting it over
// itself, then all of it from the carry. Other rows element by element, columns by plain loops.
#include "kernels/scan.h"
#include "kernels/simd.h"

namespace tessera::kernels::TESSERA_ISA {
namespace {

#ifdef __AVX512F__
constexpr int kWide = 8;
#else
constexpr int kWide = 4;
#endif

template <typename T>
struct VecOf {
  typedef T type __attribute__((vector_size(kWide * sizeof(T))));
};
template <typename T>
using Vec = typename VecOf<T>::type;

template <typename V>
TESSERA_INLINE V reversed(V v) {
  if constexpr (kWide == 8)
    return __builtin_shufflevector(v, v, 7, 6, 5, 4, 3, 2, 1, 0);
  else
    return __builtin_shufflevector(v, v, 3, 2, 1, 0);
}
template <typename V>
TESSERA_INLINE V last_lane(V v) {
  if constexpr (kWide == 8)
    return __builtin_shufflevector(v, v, 7, 7, 7, 7, 7, 7, 7, 7);
  else
    return __builtin_shufflevector(v, v, 3, 3, 3, 3);
}

// Elements i .. i + kWide of a row in the order of the scan; step is 1 or -1.
template <typename A, typename T>
TESSERA_INLINE Vec<A> load_row(const T* x, int64_t step, int64_t i) {
  Vec<T> v;
  std::memcpy(&v, step > 0 ? x + i : x - i - (kWide - 1), sizeof v);
  const Vec<A> wide = __builtin_convertvector(v, Vec<A>);
  return step > 0 ? wide : reversed(wide);
}
template <typename A, typename T>
TESSERA_INLINE void store_row(T* y, int64_t step, int64_t i, Vec<A> wide) {
  const Vec<T> v = __builtin_convertvector(step > 0 ? wide : reversed(wide), Vec<T>);
  std::memcpy(step > 0 ? y + i : y - i - (kWide - 1), &v, sizeof v);
}

bool gapless(const ScanPiece& p) {
  return (p.x_step == 1 || p.x_step == -1) && (!p.y || p.y_step == p.x_step);
}

// ---- sum and product ----

template <ScanKind kind, typename A>
struct Fold {
  static TESSERA_INLINE A identity() { return kind == ScanKind::kSum ? A(0) : A(1); }
  template <typename V>
  static TESSERA_INLINE V apply(V a, V b) {
    if constexpr (kind == ScanKind::kSum)
      return a + b;
    else
      return a * b;
  }
  // Inclusive scan within a vector.
  static TESSERA_INLINE Vec<A> within(Vec<A> v) {
    const Vec<A> none = Vec<A>{} + identity();
    if constexpr (kWide == 8) {
      v = apply(v, Vec<A>(__builtin_shufflevector(v, none, 8, 0, 1, 2, 3, 4, 5, 6)));
      v = apply(v, Vec<A>(__builtin_shufflevector(v, none, 8, 8, 0, 1, 2, 3, 4, 5)));
      return apply(v, Vec<A>(__builtin_shufflevector(v, none, 8, 8, 8, 8, 0, 1, 2, 3)));
    } else {
      v = apply(v, Vec<A>(__builtin_shufflevector(v, none, 4, 0, 1, 2)));
      return apply(v, Vec<A>(__builtin_shufflevector(v, none, 4, 4, 0, 1)));
    }
  }
};

template <typename A>
TESSERA_INLINE A* values(ScanCarry* c) {
  return reinterpret_cast<A*>(c->value);
}

template <ScanKind kind, typename A>
void fold_init(ScanCarry* carry, int64_t columns) {
  for (int64_t w = 0; w < columns; ++w) values<A>(carry)[w] = Fold<kind, A>::identity();
}

template <ScanKind kind, typename A>
void fold_join(ScanCarry* carry, const ScanCarry* before, int64_t columns) {
  const A* b = reinterpret_cast<const A*>(before->value);
  for (int64_t w = 0; w < columns; ++w)
    values<A>(carry)[w] = Fold<kind, A>::apply(b[w], values<A>(carry)[w]);
}

template <ScanKind kind, typename T, typename A, bool write>
void fold_row(const ScanPiece& p, A* carry) {
  using F = Fold<kind, A>;
  const T* x = static_cast<const T*>(p.x);
  T* y = static_cast<T*>(p.y);
  int64_t i = 0;
  A before = *carry;
  if (gapless(p) && p.len >= kWide) {
    Vec<A> all = Vec<A>{} + before;
    for (; i + kWide <= p.len; i += kWide) {
      const Vec<A> own = F::within(load_row<A>(x, p.x_step, i));
      if (write) store_row<A>(y, p.y_step, i, F::apply(all, own));
      all = F::apply(all, last_lane(own));
    }
    before = all[0];
  }
  for (; i < p.len; ++i) {
    before = F::apply(before, static_cast<A>(x[i * p.x_step]));
    if (write) y[i * p.y_step] = static_cast<T>(before);
  }
  *carry = before;
}

template <ScanKind kind, typename T, typename A>
void fold_row_any(const ScanPiece& p, ScanCarry* carry) {
  p.y ? fold_row<kind, T, A, true>(p, values<A>(carry))
      : fold_row<kind, T, A, false>(p, values<A>(carry));
}

template <ScanKind kind, typename T, typename A>
void fold_columns(const ScanPiece& p, ScanCarry* carry) {
  A* __restrict__ acc = values<A>(carry);
  for (int64_t i = 0; i < p.len; ++i) {
    const T* x = static_cast<const T*>(p.x) + i * p.x_step;
    if (!p.y) {
      for (int64_t w = 0; w < p.columns; ++w)
        acc[w] = Fold<kind, A>::apply(acc[w], static_cast<A>(x[w]));
      continue;
    }
    T* y = static_cast<T*>(p.y) + i * p.y_step;
#pragma GCC ivdep
    for (int64_t w = 0; w < p.columns; ++w) {
      const A v = Fold<kind, A>::apply(acc[w], static_cast<A>(x[w]));
      acc[w] = v;
      y[w] = static_cast<T>(v);
    }
  }
}

// ---- log of a sum of exponentials ----

// The sum is s * exp(m), m being the largest element so far: s >= 1 once an element was finite.
using D = Vec<double>;
using L = Vec<int64_t>;

// exp of x in [-700, 0], a few ulp.
TESSERA_INLINE D exp_d(D x) {
  const D magic = D{} + 6755399441055744.0;  // 1.5 * 2^52: adding it rounds to whole numbers
  const D shifted = x * 1.4426950408889634074 + magic, n = shifted - magic;
  const D r = (x - n * 6.93145751953125e-1) - n * 1.42860682030941723212e-6;
  D p = D{} + 1.0 / 479001600;
  p = p * r + 1.0 / 39916800;
  p = p * r + 1.0 / 3628800;
  p = p * r + 1.0 / 362880;
  p = p * r + 1.0 / 40320;
  p = p * r + 1.0 / 5040;
  p = p * r + 1.0 / 720;
  p = p * r + 1.0 / 120;
  p = p * r + 1.0 / 24;
  p = p * r + 1.0 / 6;
  p = p * r + 0.5;
  p = p * r + 1.0;
  p = p * r + 1.0;
  return reinterpret_cast<D>(reinterpret_cast<L>(p) + (reinterpret_cast<L>(shifted) << 52));
}

// Natural logarithm of positive normal numbers, a few ulp.
TESSERA_INLINE D log_d(D x) {
  const L bits = reinterpret_cast<L>(x);
  const L half = (bits & 0xfffffffffffff) | 0x3ff0000000000000;  // [1, 2)
  D m = reinterpret_cast<D>(half);
  const L high = m > D{} + 1.4142135623730951;
  m = high ? m * 0.5 : m;
  const D e = __builtin_convertvector(((bits >> 52) & 0x7ff) - 1023 - high, D);
  const D f = (m - 1.0) / (m + 1.0), z = f * f;
  D p = D{} + 1.0 / 19;
  p = p * z + 1.0 / 17;
  p = p * z + 1.0 / 15;
  p = p * z + 1.0 / 13;
  p = p * z + 1.0 / 11;
  p = p * z + 1.0 / 9;
  p = p * z + 1.0 / 7;
  p = p * z + 1.0 / 5;
  p = p * z + 1.0 / 3;
  return e * 6.93147180559945286227e-1 + 2.0 * (f + f * z * p);
}

// Takes one more element per column. A clamped exponent covers the infinities; NaN stays.
TESSERA_INLINE void take_exp(D x, D& m, D& s) {
  const L below = x <= m;
  D t = x - m;
  t = t > D{} ? -t : t;
  const D e = exp_d(t > D{} - 700.0 ? t : D{} - 700.0);
  s = below ? s + e : s * e + 1.0;
  m = below | (m != m) ? m : x;
}
TESSERA_INLINE D exp_result(D m, D s) {
  return m + log_d(s);
}

TESSERA_INLINE double* scales(ScanCarry* c) {
  return reinterpret_cast<double*>(c->other);
}

void exp_init(ScanCarry* carry, int64_t columns) {
  for (int64_t w = 0; w < columns; ++w) {
    values<double>(carry)[w] = -__builtin_inf();
    scales(carry)[w] = 0;
  }
}

void exp_join(ScanCarry* carry, const ScanCarry* before, int64_t columns) {
  const auto* bm = reinterpret_cast<const double*>(before->value);
  const auto* bs = reinterpret_cast<const double*>(before->other);
  for (int64_t w = 0; w < columns; ++w) {
    double &m = values<double>(carry)[w], &s = scales(carry)[w];
    const double gap = bm[w] < m ? bm[w] - m : m - bm[w];  // not above 0 unless a NaN is there
    const double e = bm[w] == m ? 1.0 : gap > -700.0 ? exp_d(D{} + gap)[0] : 0.0;
    const bool keep = bm[w] <= m || m != m;
    s = keep ? s + bs[w] * e : s * e + bs[w];
    m = keep ? m : bm[w];
  }
}

template <typename T, bool write>
void exp_row(const ScanPiece& p, ScanCarry* carry) {
  const T* x = static_cast<const T*>(p.x);
  T* y = static_cast<T*>(p.y);
  double m = values<double>(carry)[0], s = scales(carry)[0];
  int64_t i = 0;
  const bool dense = gapless(p);
  while (i < p.len) {
    const int64_t n = p.len - i < kWide ? p.len - i : kWide;
    if (dense && n == kWide) {
      // One reference for the whole vector, if nothing is far below it.
      const D v = load_row<double>(x, p.x_step, i);
      double top = m, low = v[0];
      bool odd = false;
      for (int k = 0; k < kWide; ++k) {
        top = v[k] > top ? v[k] : top;
        low = v[k] < low ? v[k] : low;
        odd |= v[k] != v[k];
      }
      if (!odd && top < __builtin_inf() && low - top > -600.0) {
        const double shift = m - top;
        const double kept = shift == 0 ? s : shift < -700.0 ? 0.0 : s * exp_d(D{} + shift)[0];
        const D sums = Fold<ScanKind::kSum, double>::within(exp_d(v - top)) + kept;
        if (write) store_row<double>(y, p.y_step, i, exp_result(D{} + top, sums));
        m = top;
        s = sums[kWide - 1];
        i += kWide;
        continue;
      }
    }
    for (int64_t k = 0; k < n; ++k, ++i) {
      D mv = D{} + m, sv = D{} + s;
      take_exp(D{} + static_cast<double>(x[i * p.x_step]), mv, sv);
      m = mv[0];
      s = sv[0];
      if (write) y[i * p.y_step] = static_cast<T>(exp_result(mv, sv)[0]);
    }
  }
  values<double>(carry)[0] = m;
  scales(carry)[0] = s;
}

template <typename T>
void exp_row_any(const ScanPiece& p, ScanCarry* carry) {
  p.y ? exp_row<T, true>(p, carry) : exp_row<T, false>(p, carry);
}

template <typename T>
void exp_columns(const ScanPiece& p, ScanCarry* carry) {
  for (int64_t i = 0; i < p.len; ++i) {
    const T* x = static_cast<const T*>(p.x) + i * p.x_step;
    T* y = p.y ? static_cast<T*>(p.y) + i * p.y_step : nullptr;
    for (int64_t w = 0; w < p.columns; w += kWide) {
      const int64_t n = p.columns - w < kWide ? p.columns - w : kWide;
      D v{}, m, s;
      if (n == kWide)
        v = load_row<double>(x + w, 1, 0);
      else
        for (int64_t k = 0; k < n; ++k) v[k] = static_cast<double>(x[w + k]);
      std::memcpy(&m, values<double>(carry) + w, sizeof m);
      std::memcpy(&s, scales(carry) + w, sizeof s);
      take_exp(v, m, s);
      std::memcpy(values<double>(carry) + w, &m, sizeof m);
      std::memcpy(scales(carry) + w, &s, sizeof s);
      if (!y) continue;
      const D out = exp_result(m, s);
      if (n == kWide)
        store_row<double>(y + w, 1, 0, out);
      else
        for (int64_t k = 0; k < n; ++k) y[w + k] = static_cast<T>(out[k]);
    }
  }
}

// ---- maximum and minimum ----

// Of equal elements the last one counts, and so does the last NaN.
template <ScanKind kind, typename T>
TESSERA_INLINE bool takes(T x, T best) {
  return (kind == ScanKind::kMax ? x >= best : x <= best) | (x != x);
}

template <typename T>
void extreme_init(ScanCarry* carry, int64_t columns) {
  for (int64_t w = 0; w < columns; ++w) carry->other[w] = -1;  // nothing yet
}

template <ScanKind kind, typename T>
void extreme_join(ScanCarry* carry, const ScanCarry* before, int64_t columns) {
  T* v = values<T>(carry);
  const T* b = reinterpret_cast<const T*>(before->value);
  for (int64_t w = 0; w < columns; ++w) {
    if (before->other[w] < 0 || (carry->other[w] >= 0 && takes<kind>(v[w], b[w]))) continue;
    v[w] = b[w];
    carry->other[w] = before->other[w];
  }
}

template <ScanKind kind, typename T, bool write>
void extreme_row(const ScanPiece& p, ScanCarry* carry) {
  constexpr int64_t kBlock = 64;
  const T* x = static_cast<const T*>(p.x);
  T* y = static_cast<T*>(p.y);
  if (p.len == 0) return;
  T best = carry->other[0] < 0 ? x[0] : values<T>(carry)[0];
  int64_t at = carry->other[0] < 0 ? p.first : carry->other[0];
  const bool dense = gapless(p) && (!write || p.index_step == p.x_step);
  for (int64_t i = 0; i < p.len;) {
    const int64_t n = p.len - i < kBlock ? p.len - i : kBlock;
    if (dense && n == kBlock) {
      // Most blocks bring nothing new: a vector of comparisons, then fills.
      const int64_t low = p.x_step > 0 ? i : -i - (kBlock - 1);
      int any = 0;
      for (int64_t k = 0; k < kBlock; ++k) any |= takes<kind>(x[low + k], best);
      if (!any) {
        if (write) {
          for (int64_t k = 0; k < kBlock; ++k) y[low + k] = best;
          for (int64_t k = 0; k < kBlock; ++k) p.index[low + k] = at;
        }
        i += kBlock;
        continue;
      }
    }
    for (int64_t k = 0; k < n; ++k, ++i) {
      const T v = x[i * p.x_step];
      if (takes<kind>(v, best)) {
        best = v;
        at = p.first + i;
      }
      if (write) {
        y[i * p.y_step] = best;
        p.index[i * p.index_step] = at;
      }
    }
  }
  values<T>(carry)[0] = best;
  carry->other[0] = at;
}

template <ScanKind kind, typename T>
void extreme_row_any(const ScanPiece& p, ScanCarry* carry) {
  p.y ? extreme_row<kind, T, true>(p, carry) : extreme_row<kind, T, false>(p, carry);
}

template <ScanKind kind, typename T>
void extreme_columns(const ScanPiece& p, ScanCarry* carry) {
  T* __restrict__ best = values<T>(carry);
  int64_t* __restrict__ at = carry->other;
  if (p.len > 0)
    for (int64_t w = 0; w < p.columns; ++w)
      if (at[w] < 0) {
        best[w] = static_cast<const T*>(p.x)[w];
        at[w] = p.first;
      }
  for (int64_t i = 0; i < p.len; ++i) {
    const T* x = static_cast<const T*>(p.x) + i * p.x_step;
    const int64_t index = p.first + i;
#pragma GCC ivdep
    for (int64_t w = 0; w < p.columns; ++w) {
      const T v = x[w];
      const bool take = takes<kind>(v, best[w]);
      at[w] = take ? index : at[w];
      best[w] = take ? v : best[w];
    }
    if (!p.y) continue;
    std::memcpy(static_cast<T*>(p.y) + i * p.y_step, best, p.columns * sizeof(T));
    std::memcpy(p.index + i * p.index_step, at, p.columns * sizeof(int64_t));
  }
}

// ---- tables ----

// Short rows are many: what is the same for all is done once.
template <typename T, typename I, typename R>
TESSERA_INLINE void each_row(ScanPiece p, ScanCarry* carry, I init, R row) {
  for (int64_t r = 0; r < p.rows; ++r) {
    init(carry, 1);
    row(p, carry);
    p.x = static_cast<const T*>(p.x) + p.x_row;
    p.y = static_cast<T*>(p.y) + p.y_row;
    p.index += p.index_row;
  }
}
template <ScanKind kind, typename T, typename A>
void fold_rows(ScanPiece p, ScanCarry* carry) {
  each_row<T>(p, carry, fold_init<kind, A>, [](const ScanPiece& q, ScanCarry* c) {
    fold_row<kind, T, A, true>(q, values<A>(c));
  });
}
template <ScanKind kind, typename T>
void extreme_rows(ScanPiece p, ScanCarry* carry) {
  each_row<T>(p, carry, extreme_init<T>, extreme_row<kind, T, true>);
}
template <typename T>
void exp_rows(ScanPiece p, ScanCarry* carry) {
  each_row<T>(p, carry, exp_init, exp_row<T, true>);
}

template <ScanKind kind, typename T, typename A>
const ScanFns* fold_fns() {
  // A product of floats may overflow in one piece and be zero by another: only the given order is
  // right.
  constexpr bool cut = kind == ScanKind::kSum || A(0.5) == A(0);
  static const ScanFns fns{fold_init<kind, A>, fold_row_any<kind, T, A>, fold_rows<kind, T, A>,
                           fold_columns<kind, T, A>, cut ? fold_join<kind, A> : nullptr};
  return &fns;
}

template <ScanKind kind, typename T>
const ScanFns* extreme_fns() {
  static const ScanFns fns{extreme_init<T>, extreme_row_any<kind, T>, extreme_rows<kind, T>,
                           extreme_columns<kind, T>, extreme_join<kind, T>};
  return &fns;
}

template <typename T, typename A>
const ScanFns* fns_of(ScanKind kind) {
  switch (kind) {
    case ScanKind::kSum:
      return fold_fns<ScanKind::kSum, T, A>();
    case ScanKind::kProd:
      return fold_fns<ScanKind::kProd, T, A>();
    case ScanKind::kMax:
      return extreme_fns<ScanKind::kMax, T>();
    case ScanKind::kMin:
      return extreme_fns<ScanKind::kMin, T>();
    default:
      if constexpr (T(0.5) != T(0)) {
        static const ScanFns fns{exp_init, exp_row_any<T>, exp_rows<T>, exp_columns<T>, exp_join};
        return &fns;
      }
      return nullptr;
  }
}

const ScanFns* find(ScanKind kind, DType dtype) {
  switch (dtype) {
    case DType::F32:
      return fns_of<float, double>(kind);
    case DType::F64:
      return fns_of<double, double>(kind);
    case DType::I64:
      return fns_of<int64_t, uint64_t>(kind);
    case DType::I32:
      return fns_of<int32_t, uint64_t>(kind);
    case DType::I16:
      return fns_of<int16_t, uint64_t>(kind);
    case DType::I8:
      return fns_of<int8_t, uint64_t>(kind);
    case DType::U8:
    case DType::Bool:
      return fns_of<uint8_t, uint64_t>(kind);
    default:
      return nullptr;
  }
}

}  // namespace

const ScanKernels scan_table{find};

}  // namespace tessera::kernels::TESSERA_ISA
