// SPDX-License-Identifier: Apache-2.0
// Reductions. Float sums, maxima and minima are written with vectors; float sums add short blocks
// in f32 and the blocks in f64. The other types are plain loops that the compiler vectorises.
#include "kernels/reduce.h"
#include "kernels/reduce_f32.h"
#include "kernels/simd.h"

namespace tessera::kernels::TESSERA_ISA {
namespace {

// One row per kind: identity and how two values combine; T is the type of the computation.
template <ReduceKind kind, typename T>
struct Combine;
template <typename T>
struct Combine<ReduceKind::kSum, T> {
  static T identity() { return T(0); }
  static T apply(T a, T b) { return a + b; }
};
template <typename T>
struct Combine<ReduceKind::kProd, T> {
  static T identity() { return T(1); }
  static T apply(T a, T b) { return a * b; }
};
template <typename T>
constexpr T lowest() {
  if constexpr (T(0.5) != T(0))
    return -T(__builtin_inf());
  else if constexpr (T(-1) > T(0))
    return T(0);
  else
    return T(uint64_t(1) << (sizeof(T) * 8 - 1));
}
template <typename T>
constexpr T highest() {
  if constexpr (T(0.5) != T(0))
    return T(__builtin_inf());
  else
    return T(~lowest<T>());
}
template <typename T>
struct Combine<ReduceKind::kMax, T> {
  static T identity() { return lowest<T>(); }
  static T apply(T a, T b) { return b > a || b != b ? b : a; }
};
template <typename T>
struct Combine<ReduceKind::kMin, T> {
  static T identity() { return highest<T>(); }
  static T apply(T a, T b) { return b < a || b != b ? b : a; }
};
template <typename T>
struct Combine<ReduceKind::kAny, T> {
  static T identity() { return T(0); }
  static T apply(T a, T b) { return a | b; }
};
template <typename T>
struct Combine<ReduceKind::kAll, T> {
  static T identity() { return T(1); }
  static T apply(T a, T b) { return a & b; }
};

// An element as the computation sees it.
template <ReduceKind kind, typename P, typename T>
TESSERA_INLINE P widen(T v) {
  if constexpr (kind == ReduceKind::kAny || kind == ReduceKind::kAll)
    return static_cast<P>(v != T(0));
  else
    return static_cast<P>(v);
}

template <ReduceKind kind, typename P>
void init_parts(void* part, int64_t n) {
  P* p = static_cast<P*>(part);
  for (int64_t i = 0; i < n; ++i) p[i] = Combine<kind, P>::identity();
}

template <ReduceKind kind, typename P>
void merge_parts(void* part, const void* other, int64_t n) {
  P* p = static_cast<P*>(part);
  const P* q = static_cast<const P*>(other);
  for (int64_t i = 0; i < n; ++i) p[i] = Combine<kind, P>::apply(p[i], q[i]);
}

// Four running values: enough to hide latency, a fixed order of combination.
template <ReduceKind kind, typename T, typename P>
TESSERA_INLINE P reduce_strided(const T* x, int64_t len, int64_t step) {
  using C = Combine<kind, P>;
  P a = C::identity(), b = a, c = a, d = a;
  int64_t i = 0;
  for (; i + 4 <= len; i += 4) {
    a = C::apply(a, widen<kind, P>(x[i * step]));
    b = C::apply(b, widen<kind, P>(x[(i + 1) * step]));
    c = C::apply(c, widen<kind, P>(x[(i + 2) * step]));
    d = C::apply(d, widen<kind, P>(x[(i + 3) * step]));
  }
  for (; i < len; ++i) a = C::apply(a, widen<kind, P>(x[i * step]));
  return C::apply(C::apply(a, b), C::apply(c, d));
}

template <ReduceKind kind, typename T, typename P>
void plain_rows(const void* xv, int64_t n, int64_t x_step, int64_t len, int64_t step, void* part) {
  const T* x = static_cast<const T*>(xv);
  P* p = static_cast<P*>(part);
  for (int64_t k = 0; k < n; ++k, x += x_step) {
    P v = Combine<kind, P>::identity();
    if (step == 1 && sizeof(T) < 8 && kind != ReduceKind::kProd) {
      // Integers: the order does not matter, so a plain loop vectorises.
      for (int64_t i = 0; i < len; ++i) v = Combine<kind, P>::apply(v, widen<kind, P>(x[i]));
    } else {
      v = reduce_strided<kind, T, P>(x, len, step);
    }
    p[k] = Combine<kind, P>::apply(p[k], v);
  }
}

template <ReduceKind kind, typename T, typename P>
void plain_cols(const void* xv, int64_t rows, int64_t row_step, int64_t width, void* part) {
  const T* x = static_cast<const T*>(xv);
  P* p = static_cast<P*>(part);
  for (int64_t r = 0; r < rows; ++r, x += row_step)
    for (int64_t w = 0; w < width; ++w) p[w] = Combine<kind, P>::apply(p[w], widen<kind, P>(x[w]));
}

// ---- f32 sum, product, max and min ----

template <ReduceKind kind>
void vector_rows(const void* xv, int64_t n, int64_t x_step, int64_t len, int64_t step, void* part) {
  using P = typename VectorOp<kind>::Part;
  const float* x = static_cast<const float*>(xv);
  P* p = static_cast<P*>(part);
  if (step != 1) {
    plain_rows<kind, float, P>(xv, n, x_step, len, step, part);
    return;
  }
  for (int64_t k = 0; k < n; ++k, x += x_step)
    p[k] = Combine<kind, P>::apply(p[k], vector_piece<kind>(x, len));
}

constexpr int64_t kTile = 1024;  // columns kept in the first-level cache
constexpr int64_t kDepth = 128;  // rows accumulated in f32 before going to f64

template <ReduceKind kind>
void vector_cols(const void* xv, int64_t rows, int64_t row_step, int64_t width, void* part) {
  using V = VectorOp<kind>;
  using P = typename V::Part;
  const float* x = static_cast<const float*>(xv);
  P* p = static_cast<P*>(part);
  alignas(64) float acc[kTile + 16];
  // Narrow rows without gaps: `fold` of them side by side fill the vectors.
  const int64_t fold = row_step == width && width <= kTile / 8 ? kTile / 4 / width : 1;
  if (fold > 1 && rows >= 2 * fold) {
    const int64_t wide = width * fold, deep = rows / fold;
    for (int64_t at = 0; at < deep; at += kDepth) {
      const int64_t n = deep - at < kDepth ? deep - at : kDepth;
      for (int64_t w = 0; w < wide + 16; w += 16) store(acc + w, V::identity());
      tile_rows<kind>(x + at * wide, n, wide, wide, acc);
      for (int64_t f = 0; f < fold; ++f)
        for (int64_t w = 0; w < width; ++w)
          p[w] = Combine<kind, P>::apply(p[w], acc[f * width + w]);
    }
    x += deep * wide;
    rows -= deep * fold;
  }
  for (int64_t at = 0; at < rows; at += kDepth) {
    const int64_t n = rows - at < kDepth ? rows - at : kDepth;
    for (int64_t first = 0; first < width; first += kTile) {
      const int64_t w_count = width - first < kTile ? width - first : kTile;
      for (int64_t w = 0; w < w_count; w += 16) store(acc + w, V::identity());
      tile_rows<kind>(x + at * row_step + first, n, row_step, w_count, acc);
      for (int64_t w = 0; w < w_count; ++w)
        p[first + w] = Combine<kind, P>::apply(p[first + w], acc[w]);
    }
  }
}

// ---- argmax, argmin ----

template <typename T>
TESSERA_INLINE bool is_beyond(T a, T b, bool largest) {
  if (a != a) return b == b;
  return largest ? a > b : a < b;
}

template <typename T>
bool beyond(const void* a, const void* b, bool largest) {
  return is_beyond(*static_cast<const T*>(a), *static_cast<const T*>(b), largest);
}

template <typename T>
int64_t arg_row(const void* xv, int64_t len, int64_t step, bool largest) {
  const T* x = static_cast<const T*>(xv);
  if constexpr (sizeof(T) == 4 && T(0.5) != T(0)) {
    if (step == 1 && len >= 32) {
      // The value first, at full width; then where it is.
      const float best =
          largest ? vector_piece<ReduceKind::kMax>(x, len) : vector_piece<ReduceKind::kMin>(x, len);
      const f32x16 b = broadcast(best);
      for (int64_t i = 0; i < len; i += 16) {
        const int64_t n = len - i < 16 ? len - i : 16;
        const f32x16 v = load_n(x + i, n);
        const i32x16 hit = best == best ? v == b : v != v;
        int32_t any = 0;
        for (int k = 0; k < 16; ++k) any |= hit[k];
        if (!any) continue;
        for (int64_t k = 0; k < n; ++k)
          if (hit[k]) return i + k;
      }
    }
  }
  if constexpr (T(0.5) == T(0)) {
    if (step == 1 && len >= 32) {
      T best = x[0];
      if (largest)
        for (int64_t i = 1; i < len; ++i) best = x[i] > best ? x[i] : best;
      else
        for (int64_t i = 1; i < len; ++i) best = x[i] < best ? x[i] : best;
      for (int64_t i = 0;; i += 32) {
        int any = 0;
        for (int64_t k = 0; k < 32 && i + k < len; ++k) any |= x[i + k] == best;
        if (!any) continue;
        while (x[i] != best) ++i;
        return i;
      }
    }
  }
  int64_t best = 0;
  for (int64_t i = 1; i < len; ++i)
    if (is_beyond(x[i * step], x[best * step], largest)) best = i;
  return best;
}

template <typename T>
void arg_cols(const void* xv, int64_t rows, int64_t row_step, int64_t width, bool largest,
              int64_t* index) {
  const T* x = static_cast<const T*>(xv);
  T best[kArgWidth];
  int32_t at[kArgWidth];
  for (int64_t w = 0; w < width; ++w) {
    best[w] = x[w];
    at[w] = 0;
  }
  for (int64_t r = 1; r < rows; ++r) {
    x += row_step;
    for (int64_t w = 0; w < width; ++w) {
      const T v = x[w], b = best[w];
      const bool better =
          largest ? (v > b) | ((v != v) & (b == b)) : (v < b) | ((v != v) & (b == b));
      best[w] = better ? v : b;
      at[w] = better ? static_cast<int32_t>(r) : at[w];
    }
  }
  for (int64_t w = 0; w < width; ++w) index[w] = at[w];
}

// ---- tables ----

template <typename P>
constexpr PartType part_type() {
  if constexpr (P(0.5) != P(0))
    return sizeof(P) == 8 ? PartType::kF64 : PartType::kF32;
  else
    return sizeof(P) == 8 ? PartType::kI64 : sizeof(P) == 4 ? PartType::kI32 : PartType::kU8;
}

template <ReduceKind kind, typename T, typename P>
const ReduceFns* plain_fns() {
  static const ReduceFns fns{part_type<P>(), init_parts<kind, P>, plain_rows<kind, T, P>,
                             plain_cols<kind, T, P>, merge_parts<kind, P>};
  return &fns;
}

template <ReduceKind kind>
const ReduceFns* vector_fns() {
  using P = typename VectorOp<kind>::Part;
  static const ReduceFns fns{part_type<P>(), init_parts<kind, P>, vector_rows<kind>,
                             vector_cols<kind>, merge_parts<kind, P>};
  return &fns;
}

// Partial maxima and minima: the type itself, but there are no partial results of i16 and i8.
template <typename T>
struct ExtremeOf {
  using Type = T;
};
template <>
struct ExtremeOf<int16_t> {
  using Type = int32_t;
};
template <>
struct ExtremeOf<int8_t> {
  using Type = int32_t;
};
template <typename T>
using Extreme = typename ExtremeOf<T>::Type;

template <typename T, typename Wide>
const ReduceFns* fns_of(ReduceKind kind) {
  switch (kind) {
    case ReduceKind::kSum:
      if constexpr (sizeof(T) == 4 && T(0.5) != T(0)) return vector_fns<ReduceKind::kSum>();
      return plain_fns<ReduceKind::kSum, T, Wide>();
    case ReduceKind::kProd:
      if constexpr (sizeof(T) == 4 && T(0.5) != T(0)) return vector_fns<ReduceKind::kProd>();
      return plain_fns<ReduceKind::kProd, T, Wide>();
    case ReduceKind::kMax:
      if constexpr (sizeof(T) == 4 && T(0.5) != T(0)) return vector_fns<ReduceKind::kMax>();
      return plain_fns<ReduceKind::kMax, T, Extreme<T>>();
    case ReduceKind::kMin:
      if constexpr (sizeof(T) == 4 && T(0.5) != T(0)) return vector_fns<ReduceKind::kMin>();
      return plain_fns<ReduceKind::kMin, T, Extreme<T>>();
    case ReduceKind::kAny:
      return plain_fns<ReduceKind::kAny, T, uint8_t>();
    case ReduceKind::kAll:
      return plain_fns<ReduceKind::kAll, T, uint8_t>();
    default:
      return nullptr;
  }
}

const ReduceFns* find_reduce(ReduceKind kind, DType dtype) {
  switch (dtype) {
    case DType::F32:
      return fns_of<float, double>(kind);
    case DType::F64:
      return fns_of<double, double>(kind);
    case DType::I64:
      return fns_of<int64_t, int64_t>(kind);
    case DType::I32:
      return fns_of<int32_t, int64_t>(kind);
    case DType::I16:
      return fns_of<int16_t, int64_t>(kind);
    case DType::I8:
      return fns_of<int8_t, int64_t>(kind);
    case DType::U8:
    case DType::Bool:
      return fns_of<uint8_t, int64_t>(kind);
    default:
      return nullptr;
  }
}

template <typename T>
const ArgFns* arg_fns_of() {
  static const ArgFns fns{arg_row<T>, arg_cols<T>, beyond<T>};
  return &fns;
}

const ArgFns* find_arg(DType dtype) {
  switch (dtype) {
    case DType::F32:
      return arg_fns_of<float>();
    case DType::F64:
      return arg_fns_of<double>();
    case DType::I64:
      return arg_fns_of<int64_t>();
    case DType::I32:
      return arg_fns_of<int32_t>();
    case DType::I16:
      return arg_fns_of<int16_t>();
    case DType::I8:
      return arg_fns_of<int8_t>();
    case DType::U8:
    case DType::Bool:
      return arg_fns_of<uint8_t>();
    default:
      return nullptr;
  }
}

}  // namespace

const ReduceKernels reduce_table{find_reduce, find_arg};

}  // namespace tessera::kernels::TESSERA_ISA
