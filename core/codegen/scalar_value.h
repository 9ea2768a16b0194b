// SPDX-License-Identifier: Apache-2.0
// One number with its type, for the reference interpreter. Functions are those of the C library in
// double; results are rounded to f32 (f64 stays) and integers wrap at their width.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "base/dtype.h"
#include "base/error.h"
#include "codegen/special_math.h"

namespace tessera::codegen {

struct Scalar {
  DType type = DType::F32;
  double f = 0;
  int64_t i = 0;  // integers and bool
};

float round_to_f16(float x);
float round_to_bf16(float x);
uint16_t bits_of_f16(float x);
float f16_of_bits(uint16_t bits);

inline int64_t wrap(DType t, int64_t i) {
  switch (t) {
    case DType::I32:
      return static_cast<int32_t>(i);
    case DType::I16:
      return static_cast<int16_t>(i);
    case DType::I8:
      return static_cast<int8_t>(i);
    case DType::U8:
      return static_cast<uint8_t>(i);
    case DType::Bool:
      return i != 0;
    default:
      return i;
  }
}
inline Scalar of_int(DType t, int64_t i) {
  return {t, 0, wrap(t, i)};
}
inline Scalar of_float(DType t, double f) {
  return {t, t == DType::F64 ? f : static_cast<float>(f), 0};
}
inline Scalar of_bool(bool v) {
  return {DType::Bool, 0, v};
}
inline bool floating(const Scalar& x) {
  return is_float(x.type);
}
inline double real(const Scalar& x) {
  return floating(x) ? x.f : static_cast<double>(x.i);
}

// Truncates as x86 does: out of range gives the most negative integer.
inline int64_t truncate(double f) {
  return f >= -9223372036854775808.0 && f < 9223372036854775808.0
             ? static_cast<int64_t>(f)
             : std::numeric_limits<int64_t>::min();
}

inline Scalar convert(const Scalar& x, DType t) {
  switch (t) {
    case DType::F64:
      return of_float(t, real(x));
    case DType::F32:
      return of_float(t, real(x));
    case DType::F16:
      return of_float(t, round_to_f16(static_cast<float>(real(x))));
    case DType::BF16:
      return of_float(t, round_to_bf16(static_cast<float>(real(x))));
    case DType::Bool:
      return of_bool(floating(x) ? x.f != 0 : x.i != 0);
    default:
      if (class_of(t) == DTypeClass::kOpaque) return x;
      return of_int(t, floating(x) ? truncate(x.f) : x.i);
  }
}

inline Scalar like(const Scalar& x, double v) {
  return floating(x) ? of_float(x.type, v) : of_int(x.type, static_cast<int64_t>(v));
}

#define TESSERA_ARITHMETIC(op)                                                                     \
  inline Scalar operator op(const Scalar& a, const Scalar& b) {                                    \
    if (floating(a)) return of_float(a.type, a.f op b.f);                                          \
    return of_int(a.type,                                                                          \
                  static_cast<int64_t>(static_cast<uint64_t>(a.i) op static_cast<uint64_t>(b.i))); \
  }
TESSERA_ARITHMETIC(+)
TESSERA_ARITHMETIC(-)
TESSERA_ARITHMETIC(*)
#undef TESSERA_ARITHMETIC
#define TESSERA_COMPARE(op)                                     \
  inline Scalar operator op(const Scalar& a, const Scalar& b) { \
    return of_bool(floating(a) ? a.f op b.f : a.i op b.i);      \
  }
TESSERA_COMPARE(==)
TESSERA_COMPARE(!=)
TESSERA_COMPARE(<)
TESSERA_COMPARE(<=)
TESSERA_COMPARE(>)
TESSERA_COMPARE(>=)
#undef TESSERA_COMPARE
#define TESSERA_BITS(op)                                        \
  inline Scalar operator op(const Scalar& a, const Scalar& b) { \
    return of_int(a.type, a.i op b.i);                          \
  }
TESSERA_BITS(&)
TESSERA_BITS(|)
TESSERA_BITS(^)
#undef TESSERA_BITS
inline Scalar operator~(const Scalar& a) {
  return of_int(a.type, a.type == DType::Bool ? !a.i : ~a.i);
}
inline Scalar operator-(const Scalar& a) {
  return floating(a) ? of_float(a.type, -a.f)
                     : of_int(a.type, static_cast<int64_t>(-static_cast<uint64_t>(a.i)));
}

inline Scalar truth(const Scalar& a) {
  return convert(a, DType::Bool);
}
inline Scalar select(const Scalar& c, const Scalar& a, const Scalar& b) {
  return c.i ? a : b;
}
inline Scalar isinf(const Scalar& a) {
  return of_bool(floating(a) && std::isinf(a.f));
}
inline Scalar isfinite(const Scalar& a) {
  return of_bool(!floating(a) || std::isfinite(a.f));
}
inline Scalar abs(const Scalar& a) {
  return floating(a) ? of_float(a.type, std::fabs(a.f)) : (a.i < 0 ? -a : a);
}
inline Scalar sign(const Scalar& a) {
  if (!floating(a)) return of_int(a.type, (a.i > 0) - (a.i < 0));
  return of_float(a.type, (a.f > 0) - (a.f < 0));
}
// A NaN on either side wins, as in PyTorch.
inline Scalar max(const Scalar& a, const Scalar& b) {
  return select(of_bool((a > b).i || (a != a).i), a, b);
}
inline Scalar min(const Scalar& a, const Scalar& b) {
  return select(of_bool((a < b).i || (a != a).i), a, b);
}

// Integer division by zero gives zero here and in the compiled code.
inline Scalar trunc_div(const Scalar& a, const Scalar& b) {
  if (floating(a)) return of_float(a.type, std::trunc(of_float(a.type, a.f / b.f).f));
  if (b.i == 0) return of_int(a.type, 0);
  return b.i == -1 ? -a : of_int(a.type, a.i / b.i);
}
inline Scalar operator/(const Scalar& a, const Scalar& b) {
  return floating(a) ? of_float(a.type, a.f / b.f) : trunc_div(a, b);
}
Scalar floor_div(const Scalar& a, const Scalar& b);
inline Scalar fmod(const Scalar& a, const Scalar& b) {
  if (floating(a)) return of_float(a.type, std::fmod(a.f, b.f));
  return b.i == 0 || b.i == -1 ? of_int(a.type, 0) : of_int(a.type, a.i % b.i);
}
inline Scalar remainder(const Scalar& a, const Scalar& b) {
  Scalar r = fmod(a, b);
  if (floating(a)) return r.f != 0 && (r.f < 0) != (b.f < 0) ? of_float(a.type, r.f + b.f) : r;
  return r.i != 0 && (r.i < 0) != (b.i < 0) ? of_int(a.type, r.i + b.i) : r;
}

inline int bits_of(DType t) {
  return static_cast<int>(size_of(t)) * 8;
}
inline Scalar shift_bits_left(const Scalar& a, const Scalar& b) {
  if (b.i < 0 || b.i >= bits_of(a.type)) return of_int(a.type, 0);
  return of_int(a.type, static_cast<int64_t>(static_cast<uint64_t>(a.i) << b.i));
}
// Too far gives what is left after all digits: the sign.
inline Scalar shift_bits_right(const Scalar& a, const Scalar& b) {
  const bool far = b.i < 0 || b.i >= bits_of(a.type);
  return of_int(a.type, a.i >> (far ? 63 : b.i));
}
inline Scalar signbit(const Scalar& a) {
  return of_bool(floating(a) ? std::signbit(a.f) : a.i < 0);
}
int64_t greatest_divisor(int64_t a, int64_t b);
double exponent_of(double x);
double mantissa_of(double x);
Scalar gcd(const Scalar& a, const Scalar& b);
Scalar frexp_exponent(const Scalar& a);
Scalar frexp_mantissa(const Scalar& a);
Scalar nextafter(const Scalar& a, const Scalar& b, const Scalar& units);

inline int64_t integer_power(int64_t base, int64_t exponent) {
  if (exponent < 0) return base == 1 ? 1 : base == -1 ? (exponent & 1 ? -1 : 1) : 0;
  uint64_t result = 1, b = static_cast<uint64_t>(base);
  for (; exponent; exponent >>= 1, b *= b)
    if (exponent & 1) result *= b;
  return static_cast<int64_t>(result);
}
inline Scalar pow(const Scalar& a, const Scalar& b) {
  return floating(a) ? of_float(a.type, std::pow(a.f, b.f))
                     : of_int(a.type, integer_power(a.i, b.i));
}

#define TESSERA_ROUNDING(name)                                 \
  inline Scalar name(const Scalar& a) {                        \
    return floating(a) ? of_float(a.type, std::name(a.f)) : a; \
  }
TESSERA_ROUNDING(ceil)
TESSERA_ROUNDING(floor)
TESSERA_ROUNDING(rint)
TESSERA_ROUNDING(trunc)
#undef TESSERA_ROUNDING
#define TESSERA_UNARY(name)                      \
  inline Scalar name(const Scalar& a) {          \
    return of_float(a.type, std::name(real(a))); \
  }
TESSERA_UNARY(acos)
TESSERA_UNARY(acosh)
TESSERA_UNARY(asin)
TESSERA_UNARY(asinh)
TESSERA_UNARY(atan)
TESSERA_UNARY(atanh)
TESSERA_UNARY(cos)
TESSERA_UNARY(cosh)
TESSERA_UNARY(erf)
TESSERA_UNARY(erfc)
TESSERA_UNARY(exp)
TESSERA_UNARY(exp2)
TESSERA_UNARY(expm1)
TESSERA_UNARY(log)
TESSERA_UNARY(log10)
TESSERA_UNARY(log1p)
TESSERA_UNARY(log2)
TESSERA_UNARY(sin)
TESSERA_UNARY(sinh)
TESSERA_UNARY(sqrt)
TESSERA_UNARY(tan)
TESSERA_UNARY(tanh)
#undef TESSERA_UNARY
#define TESSERA_BINARY(name)                              \
  inline Scalar name(const Scalar& a, const Scalar& b) {  \
    return of_float(a.type, std::name(real(a), real(b))); \
  }
TESSERA_BINARY(atan2)
TESSERA_BINARY(copysign)
TESSERA_BINARY(hypot)
#undef TESSERA_BINARY

#define TESSERA_ONE(name)                            \
  inline Scalar name(const Scalar& a) {              \
    return of_float(a.type, special::name(real(a))); \
  }
#define TESSERA_TWO(name)                                     \
  inline Scalar name(const Scalar& a, const Scalar& b) {      \
    return of_float(a.type, special::name(real(a), real(b))); \
  }
TESSERA_VECTOR_SPECIAL(TESSERA_ONE)
TESSERA_LANE_SPECIAL(TESSERA_ONE, TESSERA_TWO)
#undef TESSERA_ONE
#undef TESSERA_TWO

Scalar load_scalar(DType t, const std::byte* p);
void store_scalar(DType t, std::byte* p, const Scalar& x);

}  // namespace tessera::codegen
