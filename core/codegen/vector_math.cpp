// SPDX-License-Identifier: Apache-2.0
// Elementary functions of the compiler's vector. The f32 polynomials were fitted for this file
// (least maximum error on the reduced range, coefficients rounded to f32); errors are those
// measured by codegen_test.
#ifdef TESSERA_HAVE_LLVM

#include "codegen/vector_math.h"

#include <llvm/IR/IntrinsicsX86.h>

#include <cmath>
#include <initializer_list>
#include <limits>

#include "codegen/scalar_value.h"
#include "kernels/random.h"

namespace tessera::codegen {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// c[0] + c[1] x + c[2] x^2 + ...
Vector polynomial(const Vector& x, std::initializer_list<double> c) {
  auto it = c.end();
  Vector r = like(x, *--it);
  while (it != c.begin()) r = fma(r, x, like(x, *--it));
  return r;
}

Vector as_bits(const Vector& x) {
  return {x.e, x.e->ir.CreateBitCast(x.v, x.e->vector_type(DType::I32)), DType::I32};
}
Vector as_float(const Vector& x) {
  return {x.e, x.e->ir.CreateBitCast(x.v, x.e->vector_type(DType::F32)), DType::F32};
}
Vector shift_left(const Vector& x, int n) {
  return {x.e, x.e->ir.CreateShl(x.v, like(x, n).v), x.type};
}
Vector shift_right(const Vector& x, int n) {
  return {x.e, x.e->ir.CreateLShr(x.v, like(x, n).v), x.type};
}

// NaN in `x` passes: both comparisons are false for it.
Vector clamp(const Vector& x, double low, double high) {
  Vector y = select(x < like(x, low), like(x, low), x);
  return select(y > like(y, high), like(y, high), y);
}

// x * 2^n for whole n in [-252, 254]; overflow and gradual underflow as the hardware rounds.
Vector scale(const Vector& x, const Vector& n) {
  auto& ir = x.e->ir;
  if (x.e->avx512) {
    llvm::Value* r = ir.CreateIntrinsic(llvm::Intrinsic::x86_avx512_mask_scalef_ps_512, {},
                                        {x.v, n.v, x.v, ir.getInt16(0xffff), ir.getInt32(4)});
    return {x.e, r, DType::F32};
  }
  Vector whole = convert(select(n == n, n, like(n, 0)), DType::I32);
  Vector half = {x.e, ir.CreateAShr(whole.v, like(whole, 1).v), DType::I32};
  Vector rest = whole - half;
  Vector p = as_float(shift_left(half + like(half, 127), 23));
  Vector q = as_float(shift_left(rest + like(rest, 127), 23));
  return x * p * q;
}

// x = n ln2 + r, |r| <= ln2 / 2, with ln2 in two parts so that n * high is exact.
Vector reduce_by_ln2(const Vector& x, const Vector& n) {
  Vector r = fma(n, like(x, -0.693145751953125), x);
  return fma(n, like(x, -1.428606820309417e-6), r);
}

// m in [sqrt(1/2), sqrt(2)) and the exponent as float, x = m 2^e; for positive finite x.
std::pair<Vector, Vector> split_exponent(const Vector& x) {
  Vector tiny = x < like(x, 1.17549435e-38);
  Vector y = select(tiny, x * like(x, 8388608.0), x);
  Vector bits = as_bits(y);
  // Adding 1 - sqrt(1/2) in units of the mantissa carries into the exponent from sqrt(2) upwards.
  Vector shifted = bits - constant_int(*x.e, DType::I32, 0x3f3504f3);
  Vector e = {x.e, x.e->ir.CreateAShr(shifted.v, like(bits, 23).v), DType::I32};
  Vector m = as_float(bits - shift_left(e, 23));
  Vector exponent = convert(e, DType::F32) - select(tiny, like(x, 23), like(x, 0));
  return {m, exponent};
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
  Vector y = select(x == like(x, kInf), x, r);
  y = select(x == like(x, 0), like(x, -kInf), y);
  return select((x < like(x, 0)) | (x != x), like(x, kNan), y);
}

// Calls `f`, a C function over the lanes in memory: f(a) or f(a, b), result in a.
Vector through_memory(const Vector& a, const Vector* b, const void* f) {
  auto& ir = a.e->ir;
  llvm::Type* type = a.v->getType();
  llvm::Function* fn = ir.GetInsertBlock()->getParent();
  llvm::IRBuilder<> top(&fn->getEntryBlock(), fn->getEntryBlock().begin());
  auto slot = [&](const Vector& x) {
    auto* p = top.CreateAlloca(type);
    p->setAlignment(llvm::Align(64));
    ir.CreateAlignedStore(x.v, p, llvm::Align(64));
    return p;
  };
  llvm::Value* pa = slot(a);
  llvm::Value* pb = b ? slot(*b) : pa;
  llvm::PointerType* ptr = ir.getPtrTy();
  auto* signature = llvm::FunctionType::get(ir.getVoidTy(), {ptr, ptr}, false);
  llvm::Value* callee = ir.CreateIntToPtr(ir.getInt64(reinterpret_cast<uint64_t>(f)), ptr);
  ir.CreateCall(signature, callee, {pa, pb});
  return {a.e, ir.CreateAlignedLoad(type, pa, llvm::Align(64)), a.type};
}

template <typename T, T (*F)(T)>
void lanes_of_one(T* a, const T*) {
  for (int k = 0; k < kLanes; ++k) a[k] = F(a[k]);
}
template <typename T, T (*F)(T, T)>
void lanes_of_two(T* a, const T* b) {
  for (int k = 0; k < kLanes; ++k) a[k] = F(a[k], b[k]);
}

using F1 = float (*)(float);
using D1 = double (*)(double);
using F2 = float (*)(float, float);
using D2 = double (*)(double, double);

template <F1 F, D1 D>
Vector library(const Vector& a) {
  return through_memory(a, nullptr,
                        a.type == DType::F64
                            ? reinterpret_cast<const void*>(&lanes_of_one<double, D>)
                            : reinterpret_cast<const void*>(&lanes_of_one<float, F>));
}
template <F2 F, D2 D>
Vector library(const Vector& a, const Vector& b) {
  return through_memory(a, &b,
                        a.type == DType::F64
                            ? reinterpret_cast<const void*>(&lanes_of_two<double, D>)
                            : reinterpret_cast<const void*>(&lanes_of_two<float, F>));
}

}  // namespace

Vector acos(const Vector& a) {
  return library<::acosf, ::acos>(a);
}
Vector acosh(const Vector& a) {
  return library<::acoshf, ::acosh>(a);
}
Vector asin(const Vector& a) {
  return library<::asinf, ::asin>(a);
}
Vector asinh(const Vector& a) {
  return library<::asinhf, ::asinh>(a);
}
Vector atan(const Vector& a) {
  return library<::atanf, ::atan>(a);
}
Vector atan2(const Vector& a, const Vector& b) {
  return library<::atan2f, ::atan2>(a, b);
}
Vector atanh(const Vector& a) {
  return library<::atanhf, ::atanh>(a);
}
Vector cosh(const Vector& a) {
  return library<::coshf, ::cosh>(a);
}
Vector erfc(const Vector& a) {
  return library<::erfcf, ::erfc>(a);
}
Vector hypot(const Vector& a, const Vector& b) {
  return library<::hypotf, ::hypot>(a, b);
}
Vector sinh(const Vector& a) {
  return library<::sinhf, ::sinh>(a);
}

Vector fmod(const Vector& a, const Vector& b) {
  if (is_float(a.type)) return library<::fmodf, ::fmod>(a, b);
  Vector zero = like(a, 0);
  return select(b == zero, zero, a - trunc_div(a, b) * b);
}

Vector exp(const Vector& a) {
  if (a.type == DType::F64) return library<::expf, ::exp>(a);
  Vector x = clamp(a, -104, 89);
  Vector n = rint(x * like(x, 1.44269504088896341));
  Vector r = reduce_by_ln2(x, n);
  Vector q = polynomial(r, {0.5, 1.6666518e-01, 4.1666206e-02, 8.368948e-03, 1.3950575e-03});
  return scale(fma(q, r * r, r) + like(x, 1), n);
}

Vector exp2(const Vector& a) {
  if (a.type == DType::F64) return library<::exp2f, ::exp2>(a);
  Vector x = clamp(a, -150, 129);
  Vector n = rint(x);
  Vector r = (x - n) * like(x, 0.69314718055994530942);
  Vector q = polynomial(r, {0.5, 1.6666518e-01, 4.1666206e-02, 8.368948e-03, 1.3950575e-03});
  return scale(fma(q, r * r, r) + like(x, 1), n);
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
  // Below 2^-12 the operand itself is closer than the sum, and keeps the sign of zero.
  return select(abs(a) < like(a, 1e-9), a, y);
}

Vector log(const Vector& a) {
  if (a.type == DType::F64) return library<::logf, ::log>(a);
  auto [m, e] = split_exponent(a);
  Vector f = m - like(m, 1);
  Vector r = fma(e, like(a, 1.428606820309417e-6), log_core(f));
  return log_ends(a, fma(e, like(a, 0.693145751953125), f + r));
}

namespace {

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
  Vector r = fma(e, like(a, 1.428606820309417e-6), log_core(f)) + lost / u;
  Vector y = log_ends(u, fma(e, like(a, 0.693145751953125), f + r));
  return select(abs(a) < like(a, 1e-9), a, y);
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

Vector tanh(const Vector& a) {
  if (a.type == DType::F64) return library<::tanhf, ::tanh>(a);
  Vector t = expm1(like(a, -2) * abs(a));
  return copysign(t / (t + like(a, 2)), a);
}

namespace {

// sin(x + shift * pi/2). The multiple of pi/2 is taken off in f64, which holds for |x| < 2^30 and
// is meaningless, but bounded, above.
Vector sine(const Vector& a, int shift) {
  Vector wide = convert(a, DType::F64);
  Vector n = rint(wide * like(wide, 0.63661977236758134308));
  Vector r = convert(fma(n, like(wide, -1.5707963267948966192), wide), DType::F32);
  r = clamp(r, -0.8, 0.8);
  Vector quadrant =
      convert(clamp(select(n == n, n, like(n, 0)), -2147483000.0, 2147483000.0), DType::I32);
  quadrant = quadrant + constant_int(*a.e, DType::I32, shift);
  Vector z = r * r;
  Vector s =
      fma(polynomial(z, {-1.6666667e-01, 8.333329e-03, -1.9839336e-04, 2.7183128e-06}), z * r, r);
  Vector c = polynomial(z, {4.1666668e-02, -1.3888883e-03, 2.4799538e-05, -2.7211476e-07});
  c = fma(c, z * z, fma(z, like(z, -0.5), like(z, 1)));
  Vector zero = constant_int(*a.e, DType::I32, 0);
  Vector odd = (quadrant & constant_int(*a.e, DType::I32, 1)) != zero;
  Vector sign = shift_left(quadrant & constant_int(*a.e, DType::I32, 2), 30);
  Vector y = as_float(as_bits(select(odd, c, s)) ^ sign);
  return select(isfinite(a), y, like(a, kNan));
}

}  // namespace

Vector sin(const Vector& a) {
  return a.type == DType::F64 ? library<::sinf, ::sin>(a) : sine(a, 0);
}
Vector cos(const Vector& a) {
  return a.type == DType::F64 ? library<::cosf, ::cos>(a) : sine(a, 1);
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
  if (is_float(a.type)) return library<::powf, ::pow>(a, b);
  Vector wide = convert(a, DType::I64), exponent = convert(b, DType::I64);
  Vector r = through_memory(wide, &exponent,
                            reinterpret_cast<const void*>(&lanes_of_two<int64_t, integer_power>));
  return convert(r, a.type);
}

namespace {

Vector word(const Vector& x, uint32_t v) {
  return constant_int(*x.e, DType::I32, static_cast<int32_t>(v));
}
Vector xor_shift(const Vector& x, int n) {
  return x ^ shift_right(x, n);
}

Vector mix(Vector x) {
  x = xor_shift(x, 17) * word(x, 0xed5ad4bb);
  x = xor_shift(x, 11) * word(x, 0xac4c1b51);
  x = xor_shift(x, 15) * word(x, 0x31848bab);
  return xor_shift(x, 14);
}

Vector fold(const Vector& x) {
  Vector low = convert(x, DType::I32), high = convert(shift_right(x, 32), DType::I32);
  return low ^ (high * word(high, 0x85ebca6b));
}

}  // namespace

VectorKey random_key(const Vector& seed, const Vector& counter, const Vector& stream) {
  Vector s = convert(stream, DType::I32);
  Vector a = mix(fold(seed) ^ mix(s + word(s, 0x9e3779b9)));
  return {a, mix(fold(counter) + mix(a))};
}

Vector random_uniform(const VectorKey& key, const Vector& index_low) {
  Vector x = index_low ^ key.a;
  x = xor_shift(x, 17) * word(x, 0xed5ad4bb);
  x = xor_shift(x, 11) + key.b;
  x = x * word(x, 0xac4c1b51);
  x = xor_shift(x, 15) * word(x, 0x31848bab);
  x = xor_shift(x, 14);
  return convert(shift_right(x, 8), DType::F32) * constant(*x.e, DType::F32, 0x1p-24);
}

}  // namespace tessera::codegen

#endif  // TESSERA_HAVE_LLVM
