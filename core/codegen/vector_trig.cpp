// SPDX-License-Identifier: Apache-2.0
// Trigonometric functions and their inverses; polynomials fitted as in vector_math.cpp.
#ifdef TESSERA_HAVE_LLVM

#include <cmath>

#include "codegen/vector_internal.h"

namespace tessera::codegen {
namespace {

constexpr double kPi = 3.14159265358979323846;

// x = quadrant pi/2 + r. The multiple of pi/2, in two parts, is taken off in f64, which is exact
// enough for |x| up to kLargeAngle.
struct Reduced {
  Vector quadrant;      // i32
  Vector sine, cosine;  // of r
};
constexpr double kLargeAngle = 1e8;

Vector is_large_angle(const Vector& a) {
  Vector x = abs(a);
  return (x > like(a, kLargeAngle)) & (x < like(a, kInf));
}

Reduced reduce_angle(const Vector& a) {
  Vector wide = convert(a, DType::F64);
  Vector n = rint(wide * like(wide, 0.63661977236758134308));
  Vector rest = fma(n, like(wide, -6.123233995736766e-17), fma(n, like(wide, -kPi / 2), wide));
  Vector r = clamp(convert(rest, DType::F32), -0.8, 0.8);
  Vector z = r * r;
  Vector s =
      fma(polynomial(z, {-1.6666667e-01, 8.333329e-03, -1.9839336e-04, 2.7183128e-06}), z * r, r);
  Vector c = polynomial(z, {4.1666668e-02, -1.3888883e-03, 2.4799538e-05, -2.7211476e-07});
  c = fma(c, z * z, fma(z, like(z, -0.5), like(z, 1)));
  return {convert(n, DType::I32), s, c};
}

// An odd function near zero is its operand, denormals and the sign of zero included; of infinity it
// is nothing.
Vector odd_ends(const Vector& a, const Vector& y) {
  return select(abs(a) < like(a, 1e-6), a, select(isfinite(a), y, like(a, kNan)));
}

Vector is_odd(const Vector& n) {
  return (n & like(n, 1)) != like(n, 0);
}

// sin(x + shift * pi/2)
Vector sine(const Vector& a, int shift, LaneCall exact) {
  Reduced x = reduce_angle(a);
  Vector quadrant = x.quadrant + like(x.quadrant, shift);
  Vector sign = shift_left(quadrant & like(quadrant, 2), 30);
  Vector y = as_float(as_bits(select(is_odd(quadrant), x.cosine, x.sine)) ^ sign);
  y = shift ? select(isfinite(a), y, like(a, kNan)) : odd_ends(a, y);
  return unless(is_large_angle(a), y, a, nullptr, exact);
}

// asin(x) for 0 <= x <= 1/2.
Vector asin_core(const Vector& x, const Vector& z) {
  Vector p = polynomial(
      z, {0.166666597, 0.0750051066, 0.0445157215, 0.031817615, 0.0144025972, 0.0375652164});
  return fma(x * z, p, x);
}

// atan(x) for 0 <= x <= 1.
Vector atan_core(const Vector& x) {
  Vector z = x * x;
  Vector p = polynomial(z, {-0.333332986, 0.199985489, -0.142642424, 0.109521866, -0.0840345174,
                            0.0579576194, -0.0311778709, 0.0109146181, -0.00179362437});
  return fma(x * z, p, x);
}

// high - y for a multiple of pi/2 held in two parts.
Vector from_angle(const Vector& y, double angle) {
  const double high = static_cast<float>(angle);
  return like(y, high) - (y - like(y, angle - high));
}

}  // namespace

Vector sin(const Vector& a) {
  const LaneCall exact = lane_call<::sinf, ::sin>(a.type);
  return a.type == DType::F64 ? through_memory(a, nullptr, exact) : sine(a, 0, exact);
}
Vector cos(const Vector& a) {
  const LaneCall exact = lane_call<::cosf, ::cos>(a.type);
  return a.type == DType::F64 ? through_memory(a, nullptr, exact) : sine(a, 1, exact);
}

Vector tan(const Vector& a) {
  const LaneCall exact = lane_call<::tanf, ::tan>(a.type);
  if (a.type == DType::F64) return through_memory(a, nullptr, exact);
  Reduced x = reduce_angle(a);
  Vector odd = is_odd(x.quadrant);
  Vector y = select(odd, -x.cosine, x.sine) / select(odd, x.sine, x.cosine);
  return unless(is_large_angle(a), odd_ends(a, y), a, nullptr, exact);
}

Vector asin(const Vector& a) {
  if (a.type == DType::F64) return library<::asinf, ::asin>(a);
  // Beyond 1/2: pi/2 - 2 asin(sqrt((1 - x) / 2)). Outside [-1, 1] the root is NaN.
  Vector x = abs(a), half = like(a, 0.5);
  Vector inner = x <= half;
  Vector z = select(inner, x * x, half - half * x);
  Vector y = asin_core(select(inner, x, sqrt(z)), z);
  return copysign(select(inner, y, from_angle(y + y, kPi / 2)), a);
}

Vector acos(const Vector& a) {
  if (a.type == DType::F64) return library<::acosf, ::acos>(a);
  Vector x = abs(a), half = like(a, 0.5), below = a < like(a, 0);
  Vector inner = x <= half;
  Vector z = select(inner, x * x, half - half * x);
  Vector y = asin_core(select(inner, x, sqrt(z)), z);
  Vector outer = select(below, from_angle(y + y, kPi), y + y);
  return select(inner, from_angle(select(below, -y, y), kPi / 2), outer);
}

Vector atan(const Vector& a) {
  if (a.type == DType::F64) return library<::atanf, ::atan>(a);
  Vector x = abs(a), one = like(a, 1);
  Vector large = x > one;
  Vector y = atan_core(select(large, one / x, x));
  return copysign(select(large, from_angle(y, kPi / 2), y), a);
}

Vector atan2(const Vector& a, const Vector& b) {
  if (a.type == DType::F64) return library<::atan2f, ::atan2>(a, b);
  Vector y = abs(a), x = abs(b);
  Vector steep = y > x;
  Vector top = select(steep, x, y), bottom = select(steep, y, x);
  Vector ratio = top / bottom;
  ratio = select(top == bottom, like(a, 1), ratio);  // both infinite too
  ratio = select(bottom == like(a, 0), like(a, 0), ratio);
  Vector r = atan_core(ratio);
  r = select(steep, from_angle(r, kPi / 2), r);
  // The sign of the second operand counts even for zero.
  Vector left = as_bits(b) < constant_int(*a.e, DType::I32, 0);
  r = copysign(select(left, from_angle(r, kPi), r), a);
  return select((a != a) | (b != b), like(a, kNan), r);
}

}  // namespace tessera::codegen

#endif  // TESSERA_HAVE_LLVM
