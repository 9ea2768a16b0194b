// SPDX-License-Identifier: Apache-2.0
// `half` of codelets: the compiler's 16-bit float, rounded after every operation.
#pragma once

#include <cmath>
#include <limits>

#ifndef __FLT16_MANT_DIG__
#error "half needs a compiler with _Float16: GCC 12 or Clang 15, or newer"
#endif

using half = _Float16;

namespace poplar {
using ::half;
}

#ifndef __STDCPP_FLOAT16_T__
namespace std {

template <>
class numeric_limits<_Float16> {
 public:
  static constexpr bool is_specialized = true, is_signed = true, is_integer = false;
  static constexpr bool is_exact = false, has_infinity = true, has_quiet_NaN = true;
  static constexpr bool has_signaling_NaN = true, is_iec559 = true, is_bounded = true;
  static constexpr bool is_modulo = false, traps = false, tinyness_before = false;
  static constexpr float_round_style round_style = round_to_nearest;
  static constexpr int digits = 11, digits10 = 3, max_digits10 = 5, radix = 2;
  static constexpr int min_exponent = -13, max_exponent = 16;
  static constexpr int min_exponent10 = -4, max_exponent10 = 4;
  static constexpr _Float16 min() noexcept { return _Float16(6.103515625e-05f); }
  static constexpr _Float16 max() noexcept { return _Float16(65504.0f); }
  static constexpr _Float16 lowest() noexcept { return _Float16(-65504.0f); }
  static constexpr _Float16 epsilon() noexcept { return _Float16(0.0009765625f); }
  static constexpr _Float16 round_error() noexcept { return _Float16(0.5f); }
  static constexpr _Float16 infinity() noexcept { return _Float16(__builtin_inff()); }
  static constexpr _Float16 quiet_NaN() noexcept { return _Float16(__builtin_nanf("")); }
  static constexpr _Float16 signaling_NaN() noexcept { return _Float16(__builtin_nanf("")); }
  static constexpr _Float16 denorm_min() noexcept { return _Float16(5.9604644775390625e-08f); }
};

// The functions of <cmath>, which leaves half ambiguous.
#define TESSERA_HALF_FUNCTION(name)                            \
  inline _Float16 name(_Float16 x) {                           \
    return static_cast<_Float16>(name(static_cast<float>(x))); \
  }
TESSERA_HALF_FUNCTION(abs)
TESSERA_HALF_FUNCTION(fabs)
TESSERA_HALF_FUNCTION(sqrt)
TESSERA_HALF_FUNCTION(cbrt)
TESSERA_HALF_FUNCTION(exp)
TESSERA_HALF_FUNCTION(exp2)
TESSERA_HALF_FUNCTION(expm1)
TESSERA_HALF_FUNCTION(log)
TESSERA_HALF_FUNCTION(log2)
TESSERA_HALF_FUNCTION(log10)
TESSERA_HALF_FUNCTION(log1p)
TESSERA_HALF_FUNCTION(sin)
TESSERA_HALF_FUNCTION(cos)
TESSERA_HALF_FUNCTION(tan)
TESSERA_HALF_FUNCTION(tanh)
TESSERA_HALF_FUNCTION(erf)
TESSERA_HALF_FUNCTION(floor)
TESSERA_HALF_FUNCTION(ceil)
TESSERA_HALF_FUNCTION(round)
TESSERA_HALF_FUNCTION(trunc)
TESSERA_HALF_FUNCTION(nearbyint)
TESSERA_HALF_FUNCTION(rint)
#undef TESSERA_HALF_FUNCTION
inline _Float16 pow(_Float16 x, _Float16 y) {
  return static_cast<_Float16>(pow(static_cast<float>(x), static_cast<float>(y)));
}
inline _Float16 fmod(_Float16 x, _Float16 y) {
  return static_cast<_Float16>(fmod(static_cast<float>(x), static_cast<float>(y)));
}
inline _Float16 fmax(_Float16 x, _Float16 y) {
  return static_cast<_Float16>(fmax(static_cast<float>(x), static_cast<float>(y)));
}
inline _Float16 fmin(_Float16 x, _Float16 y) {
  return static_cast<_Float16>(fmin(static_cast<float>(x), static_cast<float>(y)));
}
inline _Float16 fma(_Float16 x, _Float16 y, _Float16 z) {
  return static_cast<_Float16>(
      fma(static_cast<float>(x), static_cast<float>(y), static_cast<float>(z)));
}
inline bool isnan(_Float16 x) {
  return x != x;
}
inline bool isinf(_Float16 x) {
  return isinf(static_cast<float>(x));
}
inline bool isfinite(_Float16 x) {
  return isfinite(static_cast<float>(x));
}
inline bool signbit(_Float16 x) {
  return signbit(static_cast<float>(x));
}

}  // namespace std

using std::abs;
using std::ceil;
using std::cos;
using std::exp;
using std::fabs;
using std::floor;
using std::fma;
using std::fmax;
using std::fmin;
using std::log;
using std::pow;
using std::round;
using std::sin;
using std::sqrt;
using std::tanh;
using std::trunc;
#endif
