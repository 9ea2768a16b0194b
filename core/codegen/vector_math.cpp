// SPDX-License-Identifier: Apache-2.0
// Exponentials, logarithms, hyperbolic functions and the error function of the compiler's vector.
// The f32 polynomials were fitted for this file (least maximum error on the reduced range,
// coefficients rounded to f32); errors are those measured by vector_math_test.
#ifdef TESSERA_HAVE_LLVM

#include <cmath>

#include "codegen/vector_internal.h"

namespace tessera::codegen {
namespace {

constexpr double kLn2 = 0.69314718055994530942;
constexpr double kLn2High = 0.693145751953125, kLn2Low = 1.428606820309417e-6;

// x = n ln2 + r, |r| <= ln2 / 2, with ln2 in two parts so that n * high is exact.
Vector reduce_by_ln2(const Vector& x, const Vector& n) {
  return fma(n, like(x, -kLn2Low), fma(n, like(x, -kLn2High), x));
}

// e^r for |r| <= ln2 / 2.
Vector exp_core(const Vector& r) {
  Vector q = polynomial(r, {0.5, 1.6666518e-01, 4.1666206e-02, 8.368948e-03, 1.3950575e-03});
  return fma(q, r * r, r) + like(r, 1);
}

// e^a 2^by, as exact as e^a also where that would overflow.
Vector exp_scaled(const Vector& a, int by) {
  Vector x = clamp(a, -104, 90);
  Vector n = rint(x * like(x, 1.44269504088896341));
  Vector p = exp_core(reduce_by_ln2(x, n));
  return scale(p, by ? n + like(n, by) : n);
}

// m in [sqrt(1/2), sqrt(2)) and the exponent as float, x = m 2^e; for positive finite x. Denormals
// are read as integers, so that they count also while the processor takes them for zero.
std::pair<Vector, Vector> split_exponent(const Vector& x) {
  Vector raw = as_bits(x);
  Vector tiny = raw < constant_int(*x.e, DType::I32, 0x00800000);
  Vector bits = as_bits(select(tiny, convert(raw, DType::F32), x));
  // Adding 1 - sqrt(1/2) in units of the mantissa carries into the exponent from sqrt(2) upwards.
  Vector e = shift_right_signed(bits - constant_int(*x.e, DType::I32, 0x3f3504f3), 23);
  Vector m = as_float(bits - shift_left(e, 23));
  return {m, convert(e, DType::F32) - select(tiny, like(x, 149), like(x, 0))};
}

// log(1 + f) - f for f in [sqrt(1/2) - 1, sqrt(2) - 1].
Vector log_core(const Vector& f) {
  Vector z = f * f;
  Vector p =
      polynomial(f, {3.333331e-01, -2.4999987e-01, 2.0002219e-01, -1.6669244e-01, 1.4218776e-01,
                     -1.2384522e-01, 1.1872363e-01, -1.1788657e-01, 6.9152914e-02});
  return fma(z, like(f, -0.5), p * f * z);
}

Vector log_ends(const Vector& x, const Vector& r) {
  Vector bits = as_bits(x), zero = like(bits, 0);
  Vector y = select(x == like(x, kInf), x, r);
  y = select((bits < zero) | (x != x), like(x, kNan), y);
  return select(shift_left(bits, 1) == zero, like(x, -kInf), y);
}

// log(x) / log(base) with 1 / log(base) = high + low, high short enough that high * f is nearly
// exact.
Vector log_of_base(const Vector& a, double exponent_factor, double exponent_low, double high,
                   double low) {
  auto [m, e] = split_exponent(a);
  Vector f = m - like(m, 1);
  Vector rest = log_core(f);
  Vector r = fma(f, like(a, low), rest * like(a, high));
  r = fma(e, like(a, exponent_low), r);
  r = fma(f, like(a, high), r);
  return log_ends(a, fma(e, like(a, exponent_factor), r));
}

}  // namespace

Vector exp(const Vector& a) {
  if (a.type == DType::F64) return library<::expf, ::exp>(a);
  return exp_scaled(a, 0);
}

Vector exp2(const Vector& a) {
  if (a.type == DType::F64) return library<::exp2f, ::exp2>(a);
  Vector x = clamp(a, -150, 129);
  Vector n = rint(x);
  return scale(exp_core((x - n) * like(x, kLn2)), n);
}

Vector expm1(const Vector& a) {
  if (a.type == DType::F64) return library<::expm1f, ::expm1>(a);
  Vector x = clamp(a, -18, 89);
  Vector n = rint(x * like(x, 1.44269504088896341));
  Vector r = reduce_by_ln2(x, n);
  Vector q =
      polynomial(r, {0.5, 1.6666667e-01, 4.166635e-02, 8.333277e-03, 1.3941126e-03, 1.9911966e-04});
  Vector p = fma(q, r * r, r);
  // With t = 2^(n-1): 2 (t p + t - 1/2); 2^n itself would overflow before the result does.
  Vector half = like(x, 0.5);
  Vector t = scale(half, n);
  Vector y = fma(t, p, t - half);
  y = y + y;
  // Where the square no longer counts, the operand itself keeps the sign of zero and denormals.
  return select(abs(a) < like(a, 1e-9), a, y);
}

Vector log(const Vector& a) {
  if (a.type == DType::F64) return library<::logf, ::log>(a);
  auto [m, e] = split_exponent(a);
  Vector f = m - like(m, 1);
  Vector r = fma(e, like(a, kLn2Low), log_core(f));
  return log_ends(a, fma(e, like(a, kLn2High), f + r));
}

Vector log2(const Vector& a) {
  if (a.type == DType::F64) return library<::log2f, ::log2>(a);
  return log_of_base(a, 1.0, 0.0, 1.4426950216293335, 1.92596299113e-8);
}

Vector log10(const Vector& a) {
  if (a.type == DType::F64) return library<::log10f, ::log10>(a);
  return log_of_base(a, 0.301029205322265625, 7.9034171557e-7, 0.43429449200630188,
                     -1.01030500522e-8);
}

Vector log1p(const Vector& a) {
  if (a.type == DType::F64) return library<::log1pf, ::log1p>(a);
  // u = 1 + a rounds; what it lost comes back to first order.
  Vector one = like(a, 1);
  Vector u = one + a;
  Vector lost = select(a < one, a - (u - one), one - (u - a));
  auto [m, e] = split_exponent(u);
  Vector f = m - one;
  Vector r = fma(e, like(a, kLn2Low), log_core(f)) + lost / u;
  Vector y = log_ends(u, fma(e, like(a, kLn2High), f + r));
  return select(abs(a) < like(a, 1e-9), a, y);
}

Vector tanh(const Vector& a) {
  if (a.type == DType::F64) return library<::tanhf, ::tanh>(a);
  Vector t = expm1(like(a, -2) * abs(a));
  return copysign(t / (t + like(a, 2)), a);
}

Vector sinh(const Vector& a) {
  if (a.type == DType::F64) return library<::sinhf, ::sinh>(a);
  Vector x = abs(a), z = x * x;
  Vector near =
      fma(x * z, polynomial(z, {0.166666672, 0.00833335053, 0.000198360663, 2.81743951e-06}), x);
  Vector half = exp_scaled(x, -1);
  Vector far = half - like(a, 0.25) / half;
  return copysign(select(x < like(a, 1), near, far), a);
}

Vector cosh(const Vector& a) {
  if (a.type == DType::F64) return library<::coshf, ::cosh>(a);
  Vector half = exp_scaled(abs(a), -1);
  return half + like(a, 0.25) / half;
}

Vector asinh(const Vector& a) {
  if (a.type == DType::F64) return library<::asinhf, ::asinh>(a);
  // log(x + sqrt(x^2 + 1)), and log(2x) where the square would overflow.
  Vector x = abs(a), z = x * x, one = like(a, 1);
  Vector large = x > like(a, 1e9);
  Vector y = log1p(select(large, x, x + z / (one + sqrt(z + one))));
  return copysign(select(large, y + like(a, kLn2), y), a);
}

Vector acosh(const Vector& a) {
  if (a.type == DType::F64) return library<::acoshf, ::acosh>(a);
  Vector t = a - like(a, 1);
  Vector large = a > like(a, 1e9);
  Vector y = log1p(select(large, a, t + sqrt(t * (t + like(a, 2)))));
  y = select(large, y + like(a, kLn2), y);
  return select(a < like(a, 1), like(a, kNan), y);
}

Vector atanh(const Vector& a) {
  if (a.type == DType::F64) return library<::atanhf, ::atanh>(a);
  Vector x = abs(a);
  Vector y = like(a, 0.5) * log1p((x + x) / (like(a, 1) - x));
  return copysign(select(x < like(a, 1e-9), x, y), a);
}

Vector erf(const Vector& a) {
  if (a.type == DType::F64) return library<::erff, ::erf>(a);
  // x P(x^2) / Q(x^2), exactly 1 from where f32 rounds to it; a large x makes the quotient NaN,
  // which is not taken.
  Vector x = abs(a), z = x * x;
  Vector p = polynomial(
      z, {1.1283791, 1.9075224e-01, 5.2785613e-02, 3.7781245e-03, 2.8475389e-04, 2.0419316e-06});
  Vector q = polynomial(
      z, {1.0, 5.023825e-01, 1.14244014e-01, 1.4994473e-02, 1.1648133e-03, 3.800081e-05});
  Vector r = x * p / q, one = like(a, 1);
  return copysign(select((x >= like(a, 3.92)) | (r > one), one, r), a);
}

// A polynomial in (x - 2) / (x + 2) gives it times 1 + 2 x, which stays between 1 and 1.4 over the
// whole half line (the substitution of Shepherd and Laframboise, 1981).
Vector scaled_erfc(const Vector& x) {
  Vector t = (x - like(x, 2)) / (x + like(x, 2));
  t = select(x == like(x, kInf), like(x, 1), t);
  Vector p = polynomial(t, {1.27697837, -0.0927637145, -0.166031048, 0.164048538, -0.0542123206,
                            -0.0080138687, 0.00869013742, 0.00120587111, -0.00139679108,
                            -0.000346467161, 0.000161226737, 5.92307588e-05});
  return p * like(x, 0.5) / (like(x, 0.5) + x);
}

Vector exp_of_square(const Vector& x, double factor) {
  Vector square = x * x, f = like(x, factor);
  Vector low = fma(x, x, -square);  // made good to first order
  Vector e = exp(f * square);
  return select(isinf(e), e, fma(e, f * low, e));
}

Vector erfc(const Vector& a) {
  if (a.type == DType::F64) return library<::erfcf, ::erfc>(a);
  Vector x = clamp(abs(a), 0, 12);
  Vector r = exp_of_square(x, -1) * scaled_erfc(x);
  return select(a < like(a, 0), like(a, 2) - r, r);
}

Vector erfcx(const Vector& a) {
  if (a.type == DType::F64) return library<::erfcf, special::erfcx>(a);
  Vector r = scaled_erfc(abs(a));
  Vector low = exp_of_square(clamp(a, -10, 0), 1);
  return select(a < like(a, 0), low + low - r, r);
}

}  // namespace tessera::codegen

#endif  // TESSERA_HAVE_LLVM
