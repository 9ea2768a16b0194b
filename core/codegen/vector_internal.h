// SPDX-License-Identifier: Apache-2.0
// What the files of vector functions share: bits, polynomials, calls of C functions lane by lane,
// and the way out of the vector code for lanes that are rare and hard.
#pragma once

#ifdef TESSERA_HAVE_LLVM

#include <functional>
#include <initializer_list>
#include <limits>

#include "codegen/vector_math.h"

namespace tessera::codegen {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// c[0] + c[1] x + c[2] x^2 + ...
Vector polynomial(const Vector& x, std::initializer_list<double> c);

// f32 as i32, f64 as i64, and back.
Vector as_bits(const Vector& x);
Vector as_float(const Vector& x);
Vector shift_left(const Vector& x, int n);
Vector shift_right(const Vector& x, int n);  // zeros come in
Vector shift_right_signed(const Vector& x, int n);

// NaN in `x` passes.
Vector clamp(const Vector& x, double low, double high);
// x * 2^n for whole n in [-252, 254], f32; overflow and gradual underflow as the hardware rounds.
Vector scale(const Vector& x, const Vector& n);

// A C function over the lanes in memory: f(a, b), result in a.
using LaneCall = void (*)(void* a, const void* b);
Vector through_memory(const Vector& a, const Vector* b, LaneCall f);

template <typename T, T (*F)(T)>
void lanes_of_one(void* a, const void*) {
  auto* x = static_cast<T*>(a);
  for (int k = 0; k < kLanes; ++k) x[k] = F(x[k]);
}
template <typename T, T (*F)(T, T)>
void lanes_of_two(void* a, const void* b) {
  auto* x = static_cast<T*>(a);
  auto* y = static_cast<const T*>(b);
  for (int k = 0; k < kLanes; ++k) x[k] = F(x[k], y[k]);
}

using F1 = float (*)(float);
using D1 = double (*)(double);
using F2 = float (*)(float, float);
using D2 = double (*)(double, double);

// F for f32 lanes, D for f64 lanes.
template <F1 F, D1 D>
LaneCall lane_call(DType t) {
  return t == DType::F64 ? &lanes_of_one<double, D> : &lanes_of_one<float, F>;
}
template <F2 F, D2 D>
LaneCall lane_call(DType t) {
  return t == DType::F64 ? &lanes_of_two<double, D> : &lanes_of_two<float, F>;
}
template <F1 F, D1 D>
Vector library(const Vector& a) {
  return through_memory(a, nullptr, lane_call<F, D>(a.type));
}
template <F2 F, D2 D>
Vector library(const Vector& a, const Vector& b) {
  return through_memory(a, &b, lane_call<F, D>(a.type));
}

// The natural logarithm of positive finite f64 lanes, to about an ulp.
Vector wide_log(const Vector& x);

// f32: e^(factor x^2) without the error of a rounded square, and e^(x^2) erfc(x) for x >= 0.
Vector exp_of_square(const Vector& x, double factor);
Vector scaled_erfc(const Vector& x);

// Emits `body` so that it runs where a lane is set, which is seldom.
void when_any(const Vector& mask, const std::function<void()>& body);

// `fast`, but slow(a, b) in the lanes of `rare`; a branch jumps over the call where there are none.
Vector unless(const Vector& rare, const Vector& fast, const Vector& a, const Vector* b,
              LaneCall slow);

}  // namespace tessera::codegen

#endif  // TESSERA_HAVE_LLVM
