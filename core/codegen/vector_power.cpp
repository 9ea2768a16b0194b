// SPDX-License-Identifier: Apache-2.0
// Powers, remainders and lengths: functions of two operands that need more than one precision.
#ifdef TESSERA_HAVE_LLVM

#include <cmath>

#include "codegen/scalar_value.h"
#include "codegen/vector_internal.h"

namespace tessera::codegen {
namespace {

// x = 2^e (1 + f): e as f64, and log(1 + f) / 2 = atanh(f / (2 + f)), with the coefficients of its
// series in the square of that quotient from the third power on.
std::pair<Vector, Vector> wide_log_parts(const Vector& x, std::initializer_list<double> series) {
  Vector bits = as_bits(x);
  Vector e = shift_right_signed(bits - constant_int(*x.e, DType::I64, 0x3fe6a09e667f3bcd), 52);
  Vector f = as_float(bits - shift_left(e, 52)) - like(x, 1);
  Vector s = f / (f + like(x, 2)), z = s * s;
  return {convert(convert(e, DType::I32), DType::F64), fma(s * z, polynomial(z, series), s)};
}

// To about 2^-44.
Vector wide_log2(const Vector& x) {
  auto [e, half] = wide_log_parts(x, {0.3333333333790214, 0.19999997810429695, 0.14286054624335504,
                                      0.11088092687356145, 0.09792096937446947});
  return fma(half, like(x, 2 * 1.4426950408889634074), e);
}

// 2^w as f64 to about 2^-40, for |w| < 1000.
Vector wide_exp2(const Vector& w) {
  Vector n = rint(w), r = w - n;
  Vector p = polynomial(r, {0.6931471805461518, 0.24022650695554099, 0.05550410940701367,
                            0.009618129219469793, 0.001333345090649382, 0.00015403415442746823,
                            1.531001019744401e-05, 1.3263504004110424e-06});
  p = fma(p, r, like(r, 1));
  Vector whole = convert(convert(n, DType::I32), DType::I64);
  return as_float(as_bits(p) + shift_left(whole, 52));
}

// a^b in f32 by 2^(b log2 |a|) in f64, whose rounding then is that of the result.
Vector float_power(const Vector& a, const Vector& b) {
  Vector x = abs(a), zero = like(a, 0), one = like(a, 1);
  Vector w = convert(b, DType::F64) * wide_log2(convert(x, DType::F64));
  Vector y = convert(wide_exp2(clamp(select(w == w, w, like(w, 0)), -200, 200)), DType::F32);
  Vector up = (b > zero) ^ (x < one);  // the power goes to infinity rather than to zero
  y = select((x == zero) | isinf(x) | isinf(b), select(up, like(a, kInf), zero), y);
  Vector whole = trunc(b) == b, half = b * like(b, 0.5);
  Vector odd = whole & (trunc(half) != half);
  Vector negative = as_bits(a) < constant_int(*a.e, DType::I32, 0);
  y = select(negative & odd, -y, y);
  y = select((a < zero) & isfinite(a) & ~whole, like(a, kNan), y);
  y = select((a != a) | (b != b), like(a, kNan), y);
  return select((b == zero) | (a == one) | ((x == one) & isinf(b)), one, y);
}

template <int64_t (*F)(int64_t, int64_t)>
Vector on_integers(const Vector& a, const Vector& b) {
  Vector y = convert(b, DType::I64);
  return convert(through_memory(convert(a, DType::I64), &y, &lanes_of_two<int64_t, F>), a.type);
}

}  // namespace

Vector wide_log(const Vector& x) {
  auto [e, half] = wide_log_parts(
      x, {0.3333333333333367, 0.19999999999707174, 0.14285714371234465, 0.11111099282070987,
          0.0909178241512368, 0.07657018411896246, 0.07398047503079984});
  return fma(e, like(x, 0.69314718055994530942), half + half);
}

Vector pow(const Vector& a, const Vector& b) {
  // The exponents that occur in models; PyTorch takes the same short cuts.
  if (auto* c = llvm::dyn_cast<llvm::Constant>(b.v); c && c->getSplatValue()) {
    double n = std::nan("");
    if (auto* f = llvm::dyn_cast<llvm::ConstantFP>(c->getSplatValue()))
      n = f->getValue().convertToDouble();
    if (auto* i = llvm::dyn_cast<llvm::ConstantInt>(c->getSplatValue()))
      n = static_cast<double>(i->getSExtValue());
    const bool real = is_float(a.type);
    if (n == 0) return like(a, 1);
    if (n == 1) return a;
    if (n == 2) return a * a;
    if (n == 3) return a * a * a;
    if (n == 4) return (a * a) * (a * a);
    if (real && n == 0.5) return sqrt(a);
    if (real && n == -0.5) return like(a, 1) / sqrt(a);
    if (real && n == -1) return like(a, 1) / a;
    if (real && n == -2) return like(a, 1) / (a * a);
  }
  if (!is_float(a.type)) return on_integers<integer_power>(a, b);
  return a.type == DType::F64 ? library<::powf, ::pow>(a, b) : float_power(a, b);
}

Vector gcd(const Vector& a, const Vector& b) {
  return on_integers<greatest_divisor>(a, b);
}

Vector shift_bits_left(const Vector& a, const Vector& b) {
  Vector n = constant_int(*a.e, a.type, bits_of(a.type)), zero = like(a, 0);
  Vector inside = (b >= zero) & (b < n);
  Vector y = {a.e, a.e->ir.CreateShl(a.v, select(inside, b, zero).v), a.type};
  return select(inside, y, zero);
}

Vector shift_bits_right(const Vector& a, const Vector& b) {
  Vector last = constant_int(*a.e, a.type, bits_of(a.type) - 1), zero = like(a, 0);
  Vector inside = (b >= zero) & (b <= last);
  Vector by = select(inside, b, last);
  auto& ir = a.e->ir;
  if (a.type != DType::U8) return {a.e, ir.CreateAShr(a.v, by.v), a.type};
  return select(inside, {a.e, ir.CreateLShr(a.v, by.v), a.type}, zero);
}

Vector signbit(const Vector& a) {
  Vector bits = is_float(a.type) ? as_bits(a) : a;
  return bits < like(bits, 0);
}

namespace {

// The magnitude with denormals made normal, as integers so that the processor cannot flush them,
// and by what power of two it grew.
std::pair<Vector, Vector> normalized(const Vector& a) {
  Vector bits = shift_right(shift_left(as_bits(a), 1), 1);
  Vector tiny = bits < constant_int(*a.e, DType::I32, 0x00800000);
  return {select(tiny, as_bits(convert(bits, DType::F32)), bits),
          select(tiny, like(a, -149), like(a, 0))};
}

Vector has_no_exponent(const Vector& bits) {
  return (bits == like(bits, 0)) | (bits >= constant_int(*bits.e, DType::I32, 0x7f800000));
}

}  // namespace

Vector frexp_exponent(const Vector& a) {
  if (a.type == DType::F64) return library<::fabsf, exponent_of>(a);
  auto [bits, grown] = normalized(a);
  Vector e = convert(shift_right(bits, 23) - like(bits, 126), DType::F32) + grown;
  return select(has_no_exponent(bits), like(a, 0), e);
}

Vector frexp_mantissa(const Vector& a) {
  if (a.type == DType::F64) return library<::fabsf, mantissa_of>(a);
  Vector bits = normalized(a).first;
  Vector fraction = (bits & constant_int(*a.e, DType::I32, 0x007fffff)) |
                    constant_int(*a.e, DType::I32, 0x3f000000);
  return select(has_no_exponent(bits), a, copysign(as_float(fraction), a));
}

Vector nextafter(const Vector& a, const Vector& b, const Vector& units) {
  if (a.type == DType::F64) return library<::nextafterf, ::nextafter>(a, b);
  // Integers in the order of the floats, both zeros alike.
  Vector least = constant_int(*a.e, DType::I32, std::numeric_limits<int32_t>::min());
  Vector zero = like(least, 0);
  auto flip = [&](const Vector& x) { return select(x < zero, least - x, x); };
  Vector x = flip(as_bits(a)), y = flip(as_bits(b)), by = convert(units, DType::I32);
  Vector next = x + select(y > x, by, -by);
  Vector r = as_float(flip(next));
  r = select(next == zero, copysign(like(a, 0), a), r);
  r = select(x == y, b, r);
  return select((a != a) | (b != b), like(a, kNan), r);
}

Vector hypot(const Vector& a, const Vector& b) {
  if (a.type == DType::F64) return library<::hypotf, ::hypot>(a, b);
  Vector x = convert(a, DType::F64), y = convert(b, DType::F64);
  Vector r = convert(sqrt(fma(x, x, y * y)), DType::F32);
  return select(isinf(a) | isinf(b), like(a, kInf), r);
}

Vector fmod(const Vector& a, const Vector& b) {
  Vector zero = like(a, 0);
  if (!is_float(a.type)) return select(b == zero, zero, a - trunc_div(a, b) * b);
  // x - q y is exact while q is a whole number that the type holds; q may be one off by rounding.
  Vector x = abs(a), y = abs(b);
  Vector q = trunc(x / y);
  Vector r = fma(-q, y, x);
  r = select(r < zero, r + y, r);
  r = select(r >= y, r - y, r);
  Vector easy = (q < like(a, a.type == DType::F64 ? 0x1p51 : 0x1p22)) & (y < like(a, kInf));
  return unless(~easy, copysign(r, a), a, &b, lane_call<::fmodf, ::fmod>(a.type));
}

}  // namespace tessera::codegen

#endif  // TESSERA_HAVE_LLVM
