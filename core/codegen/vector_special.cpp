// SPDX-License-Identifier: Apache-2.0
// Special functions: f32 lanes of the common ones in vector code, everything else lane by lane
// through codegen/special_math.h, in double. Polynomials fitted as in vector_math.cpp.
#ifdef TESSERA_HAVE_LLVM

#include "codegen/vector_internal.h"

namespace tessera::codegen {
namespace {

constexpr double kPi = 3.14159265358979323846;
constexpr double kSqrtHalf = 0.70710678118654752440;

template <D1 F>
float narrow1(float x) {
  return static_cast<float>(F(x));
}
template <D2 F>
float narrow2(float x, float y) {
  return static_cast<float>(F(x, y));
}
template <D1 F>
Vector by_lanes(const Vector& a) {
  return library<narrow1<F>, F>(a);
}

// What gamma functions of f32 operands share, in f64: operands below zero are reflected to
// y = 1 - x, and Stirling's series is used at z >= 10, which is y or ten steps above it. The
// product of the ten numbers y, ..., y + 9 is one of five factors in t = y^2 + 9 y.
struct GammaParts {
  Vector x, y, z, below, steps;  // `steps`: z is ten above y
  Vector t;
  Vector r;  // x minus the next whole number

  explicit GammaParts(const Vector& a)
      : x(convert(a, DType::F64)),
        y(x),
        z(x),
        below(x < like(x, 0)),
        steps(below),
        t(x),
        r(x - rint(x)) {
    y = select(below, like(x, 1) - x, x);
    steps = y < like(x, 10);
    z = select(steps, y + like(x, 10), y);
    t = y * (y + like(x, 9));
  }
};

constexpr double kGammaFactors[] = {8, 14, 18, 20};

Vector sine_of_pi(const Vector& r) {
  return r * polynomial(r * r, {3.1415926535897927, -5.167712780049753, 2.5501640398597765,
                                -0.5992645287757096, 0.08214587825655155, -0.007370361071681464,
                                0.00046597761702783693, -2.1122952994421633e-05});
}
Vector cosine_of_pi(const Vector& r) {
  return polynomial(r * r, {0.9999999999999981, -4.934802200543689, 4.058712126333491,
                            -1.3352627661864722, 0.23533058836699297, -0.02580653229163095,
                            0.0019278709711234682, -0.00010041751384759295});
}

}  // namespace

Vector lgamma(const Vector& a) {
  if (a.type == DType::F64) return by_lanes<special::lgamma>(a);
  GammaParts g(a);
  Vector product = g.t;
  for (double f : kGammaFactors) product = product * (g.t + like(g.t, f));
  product = select(g.steps, product, like(product, 1));
  Vector mirror = like(g.x, kPi) / abs(sine_of_pi(g.r));
  product = select(g.below, product * mirror, product);
  Vector w = like(g.z, 1) / g.z;
  Vector series = w * polynomial(w * w, {1.0 / 12, -1.0 / 360, 1.0 / 1260, -1.0 / 1680, 1.0 / 1188,
                                         -691.0 / 360360});
  Vector stirling =
      fma(g.z - like(g.z, 0.5), wide_log(g.z), like(g.z, 0.91893853320467274178) - g.z);
  Vector y = stirling + series - wide_log(product);
  Vector r = convert(select(g.below, -y, y), DType::F32);
  Vector pole = isinf(a) | ((a <= like(a, 0)) & (floor(a) == a));
  r = select((a == like(a, 1)) | (a == like(a, 2)), like(a, 0), r);
  return select(a != a, a, select(pole, like(a, kInf), r));
}

Vector digamma(const Vector& a) {
  if (a.type == DType::F64) return by_lanes<special::digamma>(a);
  GammaParts g(a);
  // The sum of the ten reciprocals is the derivative of their product, by it.
  Vector product = g.t, slope = like(g.t, 1);
  for (double f : kGammaFactors) {
    Vector factor = g.t + like(g.t, f);
    slope = fma(slope, factor, product);
    product = product * factor;
  }
  Vector sum = slope * (g.y + g.y + like(g.y, 9)) / product;
  Vector w = like(g.z, 1) / g.z, square = w * w;
  Vector series = square * polynomial(square, {1.0 / 12, -1.0 / 120, 1.0 / 252, -1.0 / 240,
                                               1.0 / 132, -691.0 / 32760});
  Vector y = wide_log(g.z) - fma(w, like(w, 0.5), series);
  y = select(g.steps, y - sum, y);
  Vector mirror = like(g.x, kPi) * cosine_of_pi(g.r) / sine_of_pi(g.r);
  Vector r = convert(select(g.below, y - mirror, y), DType::F32);
  Vector zero = like(a, 0);
  r = select((a < zero) & (floor(a) == a), like(a, kNan), r);
  r = select(a == like(a, kInf), a, r);
  return select(a == zero, copysign(like(a, kInf), -a), select(a != a, a, r));
}

namespace {

// erfinv(x) / x as a function of w = -log(1 - x^2).
Vector erfinv_core(const Vector& w) {
  Vector near = polynomial(w - like(w, 2.5), {1.50140941, 0.24664028, -0.00417738687, -0.0012527419,
                                              0.000218344445, -4.96334451e-06, -3.4627044e-06,
                                              4.66169951e-07, 2.32326229e-08, -8.79100437e-09});
  Vector root = sqrt(w);
  Vector middle =
      polynomial(root - like(w, 3),
                 {2.83297682, 1.00167489, 0.00944519229, -0.00763695547, 0.00568780908,
                  -0.00359898759, 0.0014828532, -5.3763215e-05, -0.000307746552, 0.000113639471});
  Vector far =
      polynomial(root - like(w, 7),
                 {6.86901951, 1.00859547, -0.000512987084, 6.43747944e-06, 6.31629018e-06,
                  -1.68574752e-06, 2.44267056e-07, -4.11640428e-08, 1.584411e-08, -2.43706766e-09});
  return select(w < like(w, 5), near, select(w < like(w, 16), middle, far));
}

}  // namespace

Vector erfinv(const Vector& a) {
  if (a.type == DType::F64) return by_lanes<special::erfinv>(a);
  Vector one = like(a, 1), x = abs(a);
  Vector y = a * erfinv_core(-log((one - x) * (one + x)));
  return select(x == one, copysign(like(a, kInf), a), y);
}

Vector ndtri(const Vector& a) {
  if (a.type == DType::F64) return by_lanes<special::ndtri>(a);
  // sqrt(2) erfinv(2 p - 1), where 1 - (2 p - 1)^2 = 4 p (1 - p) keeps all digits of a small p.
  Vector one = like(a, 1), x = a + a - one;
  Vector w = -(log(a) + log(like(a, 4) * (one - a)));
  Vector y = x * like(a, 2 * kSqrtHalf) * erfinv_core(w);
  y = select(a == like(a, 0), like(a, -kInf), y);
  return select(a == one, like(a, kInf), y);
}

Vector log_ndtr(const Vector& a) {
  if (a.type == DType::F64) return by_lanes<special::log_ndtr>(a);
  // With q = e^(x^2/2) ndtr(-|x|): log(q) - x^2/2 below zero, log(1 - e^(-x^2/2) q) above.
  Vector x = abs(a), half = like(a, 0.5);
  Vector q = half * scaled_erfc(x * like(a, kSqrtHalf));
  Vector above = log1p(-(exp_of_square(clamp(x, 0, 20), -0.5) * q));
  return select(a < like(a, 0), log(q) - half * a * a, above);
}

namespace {

// e^-x I(x) for x >= 0, order 0, and order 1 divided by x: series in x^2 / 4 up to 8, beyond in
// 8/x.
Vector scaled_i(const Vector& x, int order) {
  Vector z = x * x * like(x, 0.25), t = like(x, 8) / x;
  Vector near, far;
  if (order == 0) {
    near =
        polynomial(z, {1, 1, 0.25000003, 0.0277777258, 0.00173614861, 6.94296104e-05, 1.9324923e-06,
                       3.88651173e-08, 6.59919175e-10, 5.22016545e-12, 1.42253952e-13});
    far = polynomial(t, {0.398942292, 0.00623342721, 0.000438981631, 5.32239974e-05, 2.0783451e-05,
                         -9.32770854e-06, 6.97222731e-06});
  } else {
    near =
        polynomial(z, {0.5, 0.25000003, 0.0416666046, 0.0034722928, 0.000173573528, 5.79799644e-06,
                       1.35916864e-07, 2.65064126e-09, 2.29674231e-11, 7.21012822e-13}) *
        x;
    far = polynomial(t, {0.398942292, -0.0187003668, -0.000731278735, -7.55058572e-05,
                         -2.52458631e-05, 1.03040356e-05, -7.91985349e-06});
  }
  return select(x <= like(x, 8), near * exp(-x), far / sqrt(x));
}

// The product in two halves: e^x overflows before the result does.
Vector unscaled(const Vector& y, const Vector& x) {
  Vector half = exp(x * like(x, 0.5));
  return y * half * half;
}

}  // namespace

Vector i0e(const Vector& a) {
  return a.type == DType::F64 ? by_lanes<special::i0e>(a) : scaled_i(abs(a), 0);
}
Vector i0(const Vector& a) {
  if (a.type == DType::F64) return by_lanes<special::i0>(a);
  Vector x = abs(a);
  return select(isinf(a), x, unscaled(scaled_i(x, 0), x));
}
Vector i1e(const Vector& a) {
  return a.type == DType::F64 ? by_lanes<special::i1e>(a) : copysign(scaled_i(abs(a), 1), a);
}
Vector i1(const Vector& a) {
  if (a.type == DType::F64) return by_lanes<special::i1>(a);
  Vector x = abs(a);
  return select(isinf(a), a, copysign(unscaled(scaled_i(x, 1), x), a));
}

#define TESSERA_ONE(name)              \
  Vector name(const Vector& a) {       \
    return by_lanes<special::name>(a); \
  }
#define TESSERA_TWO(name)                                        \
  Vector name(const Vector& a, const Vector& b) {                \
    return library<narrow2<special::name>, special::name>(a, b); \
  }
TESSERA_LANE_SPECIAL(TESSERA_ONE, TESSERA_TWO)
#undef TESSERA_ONE
#undef TESSERA_TWO

}  // namespace tessera::codegen

#endif  // TESSERA_HAVE_LLVM
