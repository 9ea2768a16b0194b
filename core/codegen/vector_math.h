// SPDX-License-Identifier: Apache-2.0
// The vector the compiler computes with: sixteen lanes of one type as LLVM IR, with the operators
// and functions that the rows of pointwise.def are written in.
#pragma once

#ifdef TESSERA_HAVE_LLVM

#include <llvm/IR/IRBuilder.h>

#include "base/dtype.h"
#include "codegen/special_math.h"

namespace tessera::codegen {

constexpr int kLanes = 16;

// Where instructions go. `avx512` and `bf16` allow intrinsics of those sets.
struct Emitter {
  llvm::IRBuilder<>& ir;
  bool avx512 = false;
  bool bf16 = false;

  // Register type of a compute type: <16 x float>, <16 x i1> for bool, ...
  llvm::FixedVectorType* vector_type(DType t) const;
  llvm::Type* lane_type(DType t) const;
  // Element type in memory; half types are moved as 16-bit integers.
  llvm::Type* memory_type(DType t) const;
};

// `type` is a compute type: f32, f64, the integers, bool.
struct Vector {
  Emitter* e = nullptr;
  llvm::Value* v = nullptr;
  DType type = DType::F32;
};

Vector constant(Emitter& e, DType type, double value);
Vector constant_int(Emitter& e, DType type, int64_t value);
inline Vector like(const Vector& x, double value) {
  return constant(*x.e, x.type, value);
}
// To the compute type of `t`, rounded to `t` where it is a half type.
Vector convert(const Vector& x, DType t);
// Registers to and from what lies in memory.
Vector from_memory(Emitter& e, llvm::Value* raw, DType t);
llvm::Value* to_memory(const Vector& x, DType t);

Vector operator+(const Vector& a, const Vector& b);
Vector operator-(const Vector& a, const Vector& b);
Vector operator*(const Vector& a, const Vector& b);
Vector operator/(const Vector& a, const Vector& b);
Vector operator-(const Vector& a);
Vector operator==(const Vector& a, const Vector& b);
Vector operator!=(const Vector& a, const Vector& b);
Vector operator<(const Vector& a, const Vector& b);
Vector operator<=(const Vector& a, const Vector& b);
Vector operator>(const Vector& a, const Vector& b);
Vector operator>=(const Vector& a, const Vector& b);
Vector operator&(const Vector& a, const Vector& b);
Vector operator|(const Vector& a, const Vector& b);
Vector operator^(const Vector& a, const Vector& b);
Vector operator~(const Vector& a);

Vector truth(const Vector& a);
Vector select(const Vector& cond, const Vector& a, const Vector& b);
Vector isinf(const Vector& a);
Vector isfinite(const Vector& a);
Vector abs(const Vector& a);
Vector sign(const Vector& a);
Vector max(const Vector& a, const Vector& b);  // a NaN on either side wins
Vector min(const Vector& a, const Vector& b);
Vector fma(const Vector& a, const Vector& b, const Vector& c);
Vector trunc_div(const Vector& a, const Vector& b);
Vector floor_div(const Vector& a, const Vector& b);
Vector fmod(const Vector& a, const Vector& b);
Vector remainder(const Vector& a, const Vector& b);
Vector pow(const Vector& a, const Vector& b);
Vector copysign(const Vector& a, const Vector& b);
Vector ceil(const Vector& a);
Vector floor(const Vector& a);
Vector rint(const Vector& a);
Vector trunc(const Vector& a);
Vector sqrt(const Vector& a);

Vector gcd(const Vector& a, const Vector& b);  // integers
Vector shift_bits_left(const Vector& a, const Vector& b);
Vector shift_bits_right(const Vector& a, const Vector& b);
Vector signbit(const Vector& a);
Vector frexp_exponent(const Vector& a);  // as a float
Vector frexp_mantissa(const Vector& a);
// The next number towards b, `units` of the last place away (65536: the next bf16).
Vector nextafter(const Vector& a, const Vector& b, const Vector& units);

// f32 with polynomials of our own, 1 to 4 ulp; f64 lane by lane through the C library.
Vector acos(const Vector& a);
Vector acosh(const Vector& a);
Vector asin(const Vector& a);
Vector asinh(const Vector& a);
Vector atan(const Vector& a);
Vector atan2(const Vector& a, const Vector& b);
Vector atanh(const Vector& a);
Vector cos(const Vector& a);
Vector cosh(const Vector& a);
Vector erf(const Vector& a);
Vector erfc(const Vector& a);
Vector exp(const Vector& a);
Vector exp2(const Vector& a);
Vector expm1(const Vector& a);
Vector hypot(const Vector& a, const Vector& b);
Vector log(const Vector& a);
Vector log10(const Vector& a);
Vector log1p(const Vector& a);
Vector log2(const Vector& a);
Vector sin(const Vector& a);
Vector sinh(const Vector& a);
Vector tan(const Vector& a);
Vector tanh(const Vector& a);

// Rare ones, of codegen/special_math.h.
#define TESSERA_ONE(name) Vector name(const Vector& a);
#define TESSERA_TWO(name) Vector name(const Vector& a, const Vector& b);
TESSERA_VECTOR_SPECIAL(TESSERA_ONE)
TESSERA_LANE_SPECIAL(TESSERA_ONE, TESSERA_TWO)
#undef TESSERA_ONE
#undef TESSERA_TWO

// The generator of kernels/random.h: a and b from the key (i32 splats), then bits per lane.
struct VectorKey {
  Vector a, b;
};
VectorKey random_key(const Vector& seed, const Vector& counter,
                     const Vector& stream);                            // i64, i64, i64
Vector random_uniform(const VectorKey& key, const Vector& index_low);  // i32 index -> f32

// All lanes combined by sum, max or min in a fixed tree; the result is in lane 0.
enum class Combine : uint8_t { kSum, kMax, kMin };
Vector combine(Combine how, const Vector& a, const Vector& b);
llvm::Value* across_lanes(Combine how, const Vector& a);

}  // namespace tessera::codegen

#endif  // TESSERA_HAVE_LLVM
