// SPDX-License-Identifier: Apache-2.0
// The longer formulas that rows of pointwise.def refer to by name, for both value types.
#pragma once

namespace tessera::codegen {

// Both value types offer like(v, x), a constant of v's type.

template <typename V>
V softplus(const V& a) {
  return select(a > like(a, 20), a, log1p(exp(a)));
}

template <typename V>
V sigmoid(const V& a) {
  return like(a, 1) / (like(a, 1) + exp(-a));
}

template <typename V>
V silu_grad(const V& grad, const V& x) {
  V s = sigmoid(x);
  return grad * s * (like(x, 1) + x * (like(x, 1) - s));
}

template <typename V>
V mish_grad(const V& grad, const V& x) {
  V t = tanh(softplus(x));
  return grad * (t + x * sigmoid(x) * (like(x, 1) - t * t));
}

// 0.5 x (1 + tanh(u)) is x sigmoid(2u): one exponential and no cancellation.
template <typename V>
V gelu_tanh(const V& x) {
  V u = x * (like(x, 2 * 0.79788456080286535588) +
             like(x, 2 * 0.79788456080286535588 * 0.044715) * x * x);
  return x * sigmoid(u);
}

template <typename V>
V gelu_tanh_grad(const V& grad, const V& x) {
  const double k = 2 * 0.79788456080286535588;
  V s = sigmoid(x * (like(x, k) + like(x, k * 0.044715) * x * x));
  V du = like(x, k) + like(x, 3 * k * 0.044715) * x * x;
  return grad * (s + x * s * (like(x, 1) - s) * du);
}

// `saved` is the result of elu if is_result, else its operand.
template <typename V>
V elu_grad(const V& grad, const V& alpha, const V& scale, const V& input_scale, const V& is_result,
           const V& saved) {
  V slope =
      select(truth(is_result), saved + alpha * scale, alpha * scale * exp(saved * input_scale));
  return grad * select(saved <= like(saved, 0), input_scale * slope, scale);
}

template <typename V>
V log_add_exp(const V& a, const V& b) {
  V top = max(a, b), gap = abs(a - b);
  return select(a == b, a + like(a, 0.69314718055994530942), top + log1p(exp(-gap)));
}

template <typename V>
V log_add_exp2(const V& a, const V& b) {
  V top = max(a, b), gap = abs(a - b);
  return select(a == b, a + like(a, 1), top + log1p(exp2(-gap)) * like(a, 1.44269504088896340736));
}

template <typename V>
V lcm(const V& a, const V& b) {
  V g = gcd(a, b);
  return select(g == like(a, 0), g, abs(trunc_div(a, g) * b));
}

// As Python divides floats: consistent with remainder, where floor(a / b) would round up first.
template <typename V>
V float_floor_div(const V& a, const V& b) {
  V zero = like(a, 0), mod = fmod(a, b);
  V div = (a - mod) / b;
  div = select((mod != zero) & ((b < zero) ^ (mod < zero)), div - like(a, 1), div);
  V whole = floor(div);
  whole = select(div - whole > like(a, 0.5), whole + like(a, 1), whole);
  return select(b == zero, a / b, select(div == zero, copysign(zero, a / b), whole));
}

}  // namespace tessera::codegen
