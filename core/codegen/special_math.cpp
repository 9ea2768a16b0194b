// SPDX-License-Identifier: Apache-2.0
// Gamma, zeta and error functions: recurrences and asymptotic series (Abramowitz and Stegun,
// chapters 6, 7 and 26), and Boost.Math's inverses of the error functions.
#include "codegen/special_math.h"

#include <boost/math/special_functions/erf.hpp>
#include <cmath>
#include <limits>

#include "codegen/special_policy.h"

namespace tessera::special {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kPi = 3.14159265358979323846;
constexpr double kSqrtPi = 1.77245385090551602730;
constexpr double kSqrtHalf = 0.70710678118654752440;
constexpr double kEpsilon = std::numeric_limits<double>::epsilon();

// B(2k) / (2k)!, k = 1, 2, ...
constexpr double kBernoulli[] = {1.0 / 12,
                                 -1.0 / 720,
                                 1.0 / 30240,
                                 -1.0 / 1209600,
                                 1.0 / 47900160,
                                 -691.0 / 1307674368000,
                                 1.0 / 74724249600,
                                 -3617.0 / 10670622842880000,
                                 43867.0 / 5109094217170944000};

}  // namespace

double lgamma(double x) {
  int sign = 0;
  return ::lgamma_r(x, &sign);
}

double digamma(double x) {
  if (x == 0) return std::copysign(kInf, -x);
  if (x < 0) {
    if (x == std::floor(x)) return kNan;
    // Reflection; the argument of the tangent is kept small, where it is exact.
    return digamma(1 - x) - kPi / std::tan(kPi * (x - std::trunc(x)));
  }
  double below = 0;
  for (; x < 10; x += 1) below += 1 / x;
  const double z = 1 / (x * x);
  const double series =
      z *
      (1.0 / 12 -
       z * (1.0 / 120 -
            z * (1.0 / 252 - z * (1.0 / 240 - z * (1.0 / 132 - z * (691.0 / 32760 - z / 12.0))))));
  return std::log(x) - 0.5 / x - series - below;
}

// Euler-Maclaurin from term 9 on: sum of (q + k)^-x.
double zeta(double x, double q) {
  if (x == 1) return kInf;
  if (x < 1) return kNan;
  if (q <= 0) {
    if (q == std::floor(q)) return kInf;
    if (x != std::floor(x)) return kNan;
  }
  if (std::isnan(x) || std::isnan(q)) return kNan;
  double sum = 0, a = q;
  for (int k = 0; k < 9 || a <= 9; ++k, a += 1) {
    const double term = std::pow(a, -x);
    sum += term;
    if (std::fabs(term) < kEpsilon * std::fabs(sum)) return sum;
  }
  double power = std::pow(a, -x);
  sum += power * a / (x - 1) + 0.5 * power;
  double factor = x;
  power /= a;
  for (int k = 0; k < 9; ++k) {
    const double term = kBernoulli[k] * factor * power;
    sum += term;
    if (std::fabs(term) < kEpsilon * std::fabs(sum)) break;
    factor *= (x + 2 * k + 1) * (x + 2 * k + 2);
    power /= a * a;
  }
  return sum;
}

double polygamma(double n, double x) {
  if (n == 0) return digamma(x);
  if (n == 1 && x < 0.5 && x != 0) {
    // At the poles torch has no infinity but what the rounding of pi in f32 leaves of the sine.
    const double angle =
        x == std::floor(x) ? static_cast<float>(kPi) * static_cast<float>(x) : kPi * x;
    const double s = kPi / std::sin(angle);
    return s * s - zeta(2, 1 - x);
  }
  const double value = std::exp(lgamma(n + 1)) * zeta(n + 1, x);
  return std::fmod(n, 2) == 0 ? -value : value;
}

double erfcx(double x) {
  if (x < -26.7) return kInf;
  if (x < 2) return std::exp(x * x) * std::erfc(x);
  // The continued fraction, from its end.
  double tail = 0;
  for (int k = x < 5 ? 120 : 40; k > 0; --k) tail = 0.5 * k / (x + tail);
  return 1 / (kSqrtPi * (x + tail));
}

double erfinv(double x) {
  if (!(std::fabs(x) <= 1)) return kNan;
  return std::fabs(x) == 1 ? std::copysign(kInf, x) : boost::math::erf_inv(x, Quiet());
}

double ndtri(double p) {
  if (p == 0) return -kInf;
  if (p == 1) return kInf;
  return p > 0 && p < 1 ? -boost::math::erfc_inv(2 * p, Quiet()) / kSqrtHalf : kNan;
}

double log_ndtr(double x) {
  const double t = x * kSqrtHalf;
  if (x < -1) return std::log(erfcx(-t) / 2) - t * t;
  return std::log1p(-std::erfc(t) / 2);
}

namespace {

// x^a e^-x / gamma(a)
double gamma_factor(double a, double x) {
  // For large a near x the logarithms cancel: with x = a (1 + u) they are a (log(1 + u) - u).
  if (a > 20 && std::fabs(x - a) < 0.4 * a) {
    const double u = (x - a) / a;
    double stirling = 1 / (12 * a) - 1 / (360 * a * a * a) + 1 / (1260 * std::pow(a, 5));
    return std::exp(a * (std::log1p(u) - u) - stirling) * std::sqrt(a / (2 * kPi));
  }
  return std::exp(a * std::log(x) - x - lgamma(a));
}

double gamma_series(double a, double x) {
  double term = 1 / a, sum = term;
  for (int k = 1; k < 20000; ++k) {
    term *= x / (a + k);
    sum += term;
    if (term < sum * kEpsilon) break;
  }
  return sum * gamma_factor(a, x);
}

// The continued fraction of the upper function (Lentz).
double gamma_fraction(double a, double x) {
  double b = x + 1 - a, c = 1e300, d = 1 / b, h = d;
  for (int k = 1; k < 20000; ++k) {
    const double an = -k * (k - a);
    b += 2;
    d = an * d + b;
    c = b + an / c;
    if (std::fabs(d) < 1e-300) d = 1e-300;
    if (std::fabs(c) < 1e-300) c = 1e-300;
    d = 1 / d;
    const double delta = d * c;
    h *= delta;
    if (std::fabs(delta - 1) < kEpsilon) break;
  }
  return h * gamma_factor(a, x);
}

}  // namespace

double igamma(double a, double x) {
  if (!(x >= 0) || !(a >= 0)) return kNan;
  if (a == 0) return x > 0 ? 1 : kNan;
  if (x == 0) return 0;
  if (std::isinf(a)) return std::isinf(x) ? kNan : 0;
  if (std::isinf(x)) return 1;
  return x < a + 1 ? gamma_series(a, x) : 1 - gamma_fraction(a, x);
}

double igammac(double a, double x) {
  if (!(x >= 0) || !(a >= 0)) return kNan;
  if (a == 0) return x > 0 ? 0 : kNan;
  if (x == 0) return 1;
  if (std::isinf(a)) return std::isinf(x) ? kNan : 1;
  if (std::isinf(x)) return 0;
  return x < a + 1 ? 1 - gamma_series(a, x) : gamma_fraction(a, x);
}

}  // namespace tessera::special
