// SPDX-License-Identifier: Apache-2.0
// Bessel and Airy functions from Boost.Math and the C library (docs/adr/0010-lapack-and-boost.md
// says which and why), and the orthogonal polynomials from their recurrences (Abramowitz and
// Stegun, chapter 22).
#include <boost/math/special_functions/airy.hpp>
#include <boost/math/special_functions/bessel.hpp>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numbers>

#include "codegen/special_math.h"
#include "codegen/special_policy.h"

namespace tessera::special {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kPi = 3.14159265358979323846;

// From here on the scaled functions are their asymptotic series; below, e^x is finite.
constexpr double kLarge = 700;

// 1 + sign (4 order^2 - 1) / (8 x) + ..., for x >= kLarge and order 0 or 1.
double asymptotic(int order, double x, double sign) {
  double term = 1, sum = 1;
  for (int k = 1; k < 8; ++k) {
    const double odd = 2 * k - 1;
    term *= sign * (4 * order - odd * odd) / (8 * k * x);
    sum += term;
  }
  return sum;
}

// I_order(x) and e^-x I_order(x) for x >= 0.
double modified_i(int order, double x) {
  return std::isinf(x) ? kInf : boost::math::cyl_bessel_i(order, x, Quiet());
}
double scaled_i(int order, double x) {
  if (x < kLarge) return std::exp(-x) * modified_i(order, x);
  return asymptotic(order, x, -1) / std::sqrt(2 * kPi * x);
}

// K_order(x) and e^x K_order(x).
double modified_k(int order, double x) {
  if (x == 0) return kInf;
  if (!(x > 0)) return kNan;
  return std::isinf(x) ? 0 : boost::math::cyl_bessel_k(order, x, Quiet());
}
double scaled_k(int order, double x) {
  if (!(x >= kLarge)) return modified_k(order, x) * std::exp(x);
  return asymptotic(order, x, 1) * std::sqrt(kPi / (2 * x));
}

}  // namespace

double i0(double x) {
  return std::isnan(x) ? x : modified_i(0, std::fabs(x));
}
double i0e(double x) {
  return std::isnan(x) ? x : scaled_i(0, std::fabs(x));
}
double i1(double x) {
  return std::isnan(x) ? x : std::copysign(modified_i(1, std::fabs(x)), x);
}
double i1e(double x) {
  return std::isnan(x) ? x : std::copysign(scaled_i(1, std::fabs(x)), x);
}

double modified_bessel_k0(double x) {
  return modified_k(0, x);
}
double modified_bessel_k1(double x) {
  return modified_k(1, x);
}
double scaled_modified_bessel_k0(double x) {
  return scaled_k(0, x);
}
double scaled_modified_bessel_k1(double x) {
  return scaled_k(1, x);
}

double bessel_j0(double x) {
  return ::j0(x);
}
double bessel_j1(double x) {
  return ::j1(x);
}
double bessel_y0(double x) {
  return x == 0 ? -kInf : x < 0 ? kNan : ::y0(x);
}
double bessel_y1(double x) {
  return x == 0 ? -kInf : x < 0 ? kNan : ::y1(x);
}

double spherical_bessel_j0(double x) {
  if (std::isinf(x)) return 0;
  return std::fabs(x) < 1e-4 ? 1 - x * x / 6 : std::sin(x) / x;
}

double airy_ai(double x) {
  if (std::isnan(x)) return x;
  if (x > 104) return 0;  // less than the smallest double
  if (std::isinf(x)) return kNan;
  if (std::fabs(x) >= 1.5) return boost::math::airy_ai(x, Quiet());
  // c1 f(x) - c2 g(x), two power series in x^3: Boost is slow here.
  const double cube = x * x * x;
  double f = 1, g = x, sum_f = f, sum_g = g;
  for (int k = 3; std::fabs(f) + std::fabs(g) > 1e-17; k += 3) {
    f *= cube / ((k - 1) * k);
    g *= cube / (k * (k + 1));
    sum_f += f;
    sum_g += g;
  }
  return 0.355028053887817239260 * sum_f - 0.258819403792806798405 * sum_g;
}

namespace {

// From this degree on the polynomials that neither overflow nor have a formula are what they tend
// to: a degree may be any number, and a turn a degree would not end.
constexpr int64_t kMostTurns = 1 << 20;

// p(0) = 1, p(1) = first, p(k + 1) = step(k, p(k), p(k - 1)).
template <typename F>
double recur(int64_t n, double first, F step) {
  if (n < 0) return 0;
  double before = 1, now = first;
  if (n == 0) return before;
  for (int64_t k = 1; k < n && !std::isnan(now); ++k) {
    const double next = step(static_cast<double>(k), now, before);
    before = now;
    now = next;
  }
  return now;
}

int64_t degree(double n) {
  return std::isnan(n) ? -1 : static_cast<int64_t>(n);
}

double chebyshev(double x, double n, double first) {
  return recur(degree(n), first, [x](double, double p, double q) { return 2 * x * p - q; });
}

double plus_or_minus(double n) {
  return degree(n) % 2 == 0 ? 1 : -1;
}

// J, or I, of order zero; I for large x as it tends to be.
double bessel_0(double x, bool modified) {
  if (!modified) return std::cyl_bessel_j(0, std::fabs(x));
  return x < 100 ? std::cyl_bessel_i(0, x)
                 : std::exp(x) / std::sqrt(2 * std::numbers::pi * x) * (1 + 1 / (8 * x));
}

}  // namespace

double chebyshev_polynomial_t(double x, double n) {
  if (degree(n) < 0) return 0;
  if (std::fabs(x) == 1) return x > 0 ? 1 : plus_or_minus(n);
  if (n > 6 && std::fabs(x) < 1) return std::cos(static_cast<double>(degree(n)) * std::acos(x));
  return chebyshev(x, n, x);
}
double chebyshev_polynomial_u(double x, double n) {
  if (degree(n) < 0) return 0;
  const auto m = static_cast<double>(degree(n));
  if (std::fabs(x) == 1) return (m + 1) * (x > 0 ? 1 : plus_or_minus(n));
  if (n > 8 && std::fabs(x) < 1 && std::sin(std::acos(x)) != 0)
    return std::sin((m + 1) * std::acos(x)) / std::sin(std::acos(x));
  return chebyshev(x, n, 2 * x);
}
double chebyshev_polynomial_v(double x, double n) {
  if (degree(n) < 0) return 0;
  const auto m = static_cast<double>(degree(n));
  if (x == 1) return 1;
  if (x == -1) return plus_or_minus(n) * (2 * m + 1);
  if (n > 8 && std::fabs(x) < 1)
    return std::cos((m + 0.5) * std::acos(x)) / std::cos(std::acos(x) / 2);
  return chebyshev(x, n, 2 * x - 1);
}
double chebyshev_polynomial_w(double x, double n) {
  if (degree(n) < 0) return 0;
  const auto m = static_cast<double>(degree(n));
  if (x == 1) return 2 * m + 1;
  if (x == -1) return plus_or_minus(n);
  if (n > 8 && std::fabs(x) < 1)
    return std::sin((m + 0.5) * std::acos(x)) / std::sin(std::acos(x) / 2);
  return chebyshev(x, n, 2 * x + 1);
}
double hermite_polynomial_h(double x, double n) {
  return recur(degree(n), 2 * x,
               [x](double k, double p, double q) { return 2 * x * p - 2 * k * q; });
}
double hermite_polynomial_he(double x, double n) {
  return recur(degree(n), x, [x](double k, double p, double q) { return x * p - k * q; });
}
double laguerre_polynomial_l(double x, double n) {
  if (degree(n) < 0) return 0;
  if (x == 0) return 1;
  if (degree(n) > kMostTurns)
    return std::exp(x / 2) *
           bessel_0(std::sqrt((4 * n + 2) * std::fabs(x)) * (1 - x / (24 * n)), x < 0);
  return recur(degree(n), 1 - x, [x](double k, double p, double q) {
    return ((2 * k + 1 - x) * p - k * q) / (k + 1);
  });
}
double legendre_polynomial_p(double x, double n) {
  if (degree(n) < 0) return 0;
  if (std::fabs(x) == 1) return x > 0 ? 1 : plus_or_minus(n);
  if (degree(n) > kMostTurns) {
    const double y = std::fabs(x);
    const double angle = y < 1 ? std::acos(y) : std::acosh(y);
    return std::sqrt(angle / (y < 1 ? std::sin(angle) : std::sinh(angle))) *
           bessel_0((n + 0.5) * angle, y > 1) * (x < 0 ? plus_or_minus(n) : 1);
  }
  return recur(degree(n), x, [x](double k, double p, double q) {
    return ((2 * k + 1) * x * p - k * q) / (k + 1);
  });
}

}  // namespace tessera::special
