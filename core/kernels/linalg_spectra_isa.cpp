// SPDX-License-Identifier: Apache-2.0
// Eigenvalues and singular values: reduction to a band by reflectors, then implicit QR steps on the
// band (Golub and Reinsch); see linalg.h.
#include <cmath>

#include "kernels/linalg.h"
#include "kernels/plain_tile.h"

namespace tessera::kernels::TESSERA_ISA {
namespace {

constexpr double kEps = 0x1p-52;
// Squares below this are noise of noise, which a matrix of low rank leaves: reflectors made of it
// would not be orthogonal.
constexpr double kNegligible = 1e-250;
constexpr int kMaxSteps = 80;  // per value; a few are usual

TESSERA_INLINE double dot(const double* x, const double* y, int64_t n) {
  using W = Wide<double>;
  W::Vector s0{}, s1{};
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    s0 += W::load(x + i) * W::load(y + i);
    s1 += W::load(x + i + 8) * W::load(y + i + 8);
  }
  double tail = 0;
  for (; i < n; ++i) tail += x[i] * y[i];
  s0 += s1;
  return (((s0[0] + s0[1]) + (s0[2] + s0[3])) + ((s0[4] + s0[5]) + (s0[6] + s0[7]))) + tail;
}

// y += f x
TESSERA_INLINE void add(double f, const double* x, double* y, int64_t n) {
  using W = Wide<double>;
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) W::store(y + i, W::load(y + i) + f * W::load(x + i));
  for (; i < n; ++i) y[i] += f * x[i];
}

// z += f x + g y
TESSERA_INLINE void add_two(double f, const double* x, double g, const double* y, double* z,
                            int64_t n) {
  using W = Wide<double>;
  int64_t i = 0;
  for (; i + 8 <= n; i += 8)
    W::store(z + i, W::load(z + i) + f * W::load(x + i) + g * W::load(y + i));
  for (; i < n; ++i) z[i] += f * x[i] + g * y[i];
}

// (x, y) := (c x + s y, c y - s x)
TESSERA_INLINE void rotate(double* x, double* y, int64_t n, double c, double s) {
  using W = Wide<double>;
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const auto u = W::load(x + i), v = W::load(y + i);
    W::store(x + i, c * u + s * v);
    W::store(y + i, c * v - s * u);
  }
  for (; i < n; ++i) {
    const double u = x[i], v = y[i];
    x[i] = c * u + s * v;
    y[i] = c * v - s * u;
  }
}

TESSERA_INLINE double length(double x, double y) {
  return std::sqrt(x * x + y * y);
}

TESSERA_INLINE void swap_rows(double* x, double* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const double t = x[i];
    x[i] = y[i];
    y[i] = t;
  }
}

TESSERA_INLINE void fill(double* x, int64_t n, double value) {
  for (int64_t i = 0; i < n; ++i) x[i] = value;
}

// Index of the largest of sign * x.
TESSERA_INLINE int64_t top(const double* x, int64_t n, double sign) {
  int64_t best = 0;
  for (int64_t i = 1; i < n; ++i)
    if (sign * x[i] > sign * x[best]) best = i;
  return best;
}

// Makes v the reflector (first element 1) that takes v to (result, 0, ...); returns tau.
double make_reflector(double* v, int64_t n, double& result) {
  const double below = n > 1 ? dot(v + 1, v + 1, n - 1) : 0.0, alpha = v[0];
  result = alpha;
  if (!(below > kNegligible)) return 0;
  result = -std::copysign(std::sqrt(alpha * alpha + below), alpha);
  for (int64_t i = 1; i < n; ++i) v[i] /= alpha - result;
  v[0] = 1;
  return (result - alpha) / result;
}

// Implicit QL steps on a symmetric tridiagonal matrix: d the diagonal, e[i] between i and i + 1.
// The rotations are applied to the rows of vt.
void tridiagonal_values(double* d, double* e, int64_t n, double* vt, int64_t ldv) {
  for (int64_t l = 0; l < n; ++l)
    for (int step = 0; step < kMaxSteps; ++step) {
      int64_t m = l;
      while (m + 1 < n && std::abs(e[m]) > kEps * (std::abs(d[m]) + std::abs(d[m + 1]))) ++m;
      if (m == l) break;
      // Shift: the eigenvalue of the leading 2 by 2 block that is nearer to d[l].
      const double half = (d[l + 1] - d[l]) / (2 * e[l]), root = length(half, 1.0);
      double g = d[m] - d[l] + e[l] / (half + std::copysign(root, half));
      double c = 1, s = 1, p = 0;
      int64_t i = m - 1;
      for (; i >= l; --i) {
        const double f = s * e[i], b = c * e[i], r = length(f, g);
        e[i + 1] = r;
        if (r == 0) {
          d[i + 1] -= p;
          e[m] = 0;
          break;
        }
        s = f / r;
        c = g / r;
        g = d[i + 1] - p;
        const double t = (d[i] - g) * s + 2 * c * b;
        p = s * t;
        d[i + 1] = g + p;
        g = c * t - b;
        if (vt) rotate(vt + (i + 1) * ldv, vt + i * ldv, n, c, s);
      }
      if (i >= l) continue;
      d[l] -= p;
      e[l] = g;
      e[m] = 0;
    }
}

void eigenvalues(double* a, int64_t lda, int64_t n, double* values, double* vt, int64_t ldv,
                 double* work) {
  double *e = work, *w = work + n, *tau = work + 2 * n;
  for (int64_t k = 0; k + 1 < n; ++k) {
    const int64_t rest = n - k - 1;
    values[k] = a[k * lda + k];
    double* v = a + k * lda + k + 1;  // the reflector stays in the row it clears
    tau[k] = make_reflector(v, rest, e[k]);
    if (tau[k] == 0) continue;
    // A := H A H = A - v w^T - w v^T
    double* sub = a + (k + 1) * lda + k + 1;
    for (int64_t i = 0; i < rest; ++i) w[i] = tau[k] * dot(sub + i * lda, v, rest);
    add(-0.5 * tau[k] * dot(w, v, rest), v, w, rest);
    for (int64_t i = 0; i < rest; ++i) {
      add_two(-v[i], w, -w[i], v, sub + i * lda, rest);
    }
  }
  if (n == 0) return;
  values[n - 1] = a[(n - 1) * lda + n - 1];
  e[n - 1] = 0;
  if (vt) {
    for (int64_t i = 0; i < n; ++i) {
      fill(vt + i * ldv, n, 0.0);
      vt[i * ldv + i] = 1;
    }
    for (int64_t k = n - 1; k-- > 0;)
      if (tau[k] != 0)
        for (int64_t r = k + 1; r < n; ++r) {
          double* x = vt + r * ldv + k + 1;
          const double* v = a + k * lda + k + 1;
          add(-tau[k] * dot(x, v, n - k - 1), v, x, n - k - 1);
        }
  }
  tridiagonal_values(values, e, n, vt, ldv);
  // By selection: vectors move with their values.
  for (int64_t i = 0; i < n; ++i) {
    const int64_t best = i + top(values + i, n - i, -1);
    if (best == i) continue;
    swap_rows(values + i, values + best, 1);
    if (vt) swap_rows(vt + i * ldv, vt + best * ldv, n);
  }
}

// The bidiagonal matrix with diagonal d and e[i] above d[i] (e[0] unused), and where its rotations
// are collected.
struct Bidiagonal {
  double *d, *e;
  int64_t n;
  double *ut, *vt;  // null: not wanted
  int64_t ldu, ldv, m;

  void left(int64_t i, int64_t j, double c, double s) const {
    if (ut) rotate(ut + i * ldu, ut + j * ldu, m, c, s);
  }
  void right(int64_t i, int64_t j, double c, double s) const {
    if (vt) rotate(vt + i * ldv, vt + j * ldv, n, c, s);
  }

  // d[l - 1] is zero: rotates e[l] away, so that the block from l on stands alone.
  void cancel(int64_t l, int64_t k, double small) const {
    double c = 0, s = 1;
    for (int64_t i = l; i <= k; ++i) {
      const double f = s * e[i];
      e[i] *= c;
      if (std::abs(f) <= small) break;
      const double g = d[i], h = length(f, g);
      d[i] = h;
      c = g / h;
      s = -f / h;
      left(l - 1, i, c, s);
    }
  }

  // One shifted QR step on the block l .. k.
  void sweep(int64_t l, int64_t k) const {
    const double z = d[k], y0 = d[k - 1], g0 = e[k - 1], h0 = e[k];
    double f = ((y0 - z) * (y0 + z) + (g0 - h0) * (g0 + h0)) / (2 * h0 * y0);
    const double root = std::copysign(length(f, 1.0), f);
    double x = d[l];
    f = ((x - z) * (x + z) + h0 * (y0 / (f + root) - h0)) / x;
    double c = 1, s = 1;
    for (int64_t j = l; j < k; ++j) {
      double g = c * e[j + 1], h = s * e[j + 1], y = d[j + 1];
      double r = length(f, h);
      e[j] = r;
      c = r == 0 ? 1 : f / r;
      s = r == 0 ? 0 : h / r;
      f = x * c + g * s;
      g = g * c - x * s;
      h = y * s;
      y *= c;
      right(j, j + 1, c, s);
      r = length(f, h);
      d[j] = r;
      c = r == 0 ? 1 : f / r;
      s = r == 0 ? 0 : h / r;
      f = c * g + s * y;
      x = c * y - s * g;
      left(j, j + 1, c, s);
    }
    e[l] = 0;
    e[k] = f;
    d[k] = x;
  }

  void diagonalise() const {
    double size = 0;
    for (int64_t i = 0; i < n; ++i)
      size = std::abs(d[i]) + std::abs(e[i]) > size ? std::abs(d[i]) + std::abs(e[i]) : size;
    const double small = kEps * size;
    for (int64_t k = n; k-- > 0;) {
      for (int step = 0; step < kMaxSteps; ++step) {
        int64_t l = k;
        bool zero = false;
        for (; l > 0 && std::abs(e[l]) > small; --l)
          if (std::abs(d[l - 1]) <= small) {
            zero = true;
            break;
          }
        if (zero) cancel(l, k, small);
        if (l == k) break;
        sweep(l, k);
      }
      if (d[k] < 0) {
        d[k] = -d[k];
        if (vt)
          for (int64_t i = 0; i < n; ++i) vt[k * ldv + i] = -vt[k * ldv + i];
      }
    }
  }
};

void singular_values(double* a, int64_t lda, int64_t m, int64_t n, double* values, bool vectors,
                     double* ut, int64_t ldu, double* vt, int64_t ldv, double* work) {
  double *e = work, *tau_left = work + m, *tau_right = work + 2 * m, *column = work + 3 * m,
         *sums = work + 4 * m;
  e[0] = 0;
  for (int64_t k = 0; k < n; ++k) {
    for (int64_t i = k; i < m; ++i) column[i] = a[i * lda + k];
    tau_left[k] = make_reflector(column + k, m - k, values[k]);
    if (tau_left[k] != 0) {
      fill(sums + k, n - k, 0.0);
      for (int64_t i = k; i < m; ++i) add(column[i], a + i * lda + k + 1, sums + k + 1, n - k - 1);
      for (int64_t i = k; i < m; ++i)
        add(-tau_left[k] * column[i], sums + k + 1, a + i * lda + k + 1, n - k - 1);
    }
    for (int64_t i = k; i < m; ++i) a[i * lda + k] = column[i];
    tau_right[k] = 0;
    if (k + 1 >= n) continue;
    double* row = a + k * lda + k + 1;
    const int64_t rest = n - k - 1;
    tau_right[k] = make_reflector(row, rest, e[k + 1]);
    if (tau_right[k] != 0)
      for (int64_t i = k + 1; i < m; ++i) {
        double* x = a + i * lda + k + 1;
        add(-tau_right[k] * dot(x, row, rest), row, x, rest);
      }
  }
  if (vectors) {
    for (int64_t i = 0; i < n; ++i) {
      fill(ut + i * ldu, m, 0.0);
      fill(vt + i * ldv, n, 0.0);
      ut[i * ldu + i] = vt[i * ldv + i] = 1;
    }
    for (int64_t k = n; k-- > 0;) {
      if (tau_left[k] != 0) {
        for (int64_t i = k; i < m; ++i) column[i] = a[i * lda + k];
        for (int64_t r = k; r < n; ++r) {
          double* x = ut + r * ldu + k;
          add(-tau_left[k] * dot(x, column + k, m - k), column + k, x, m - k);
        }
      }
      if (tau_right[k] != 0) {
        const double* row = a + k * lda + k + 1;
        const int64_t rest = n - k - 1;
        for (int64_t r = k + 1; r < n; ++r) {
          double* x = vt + r * ldv + k + 1;
          add(-tau_right[k] * dot(x, row, rest), row, x, rest);
        }
      }
    }
  }
  Bidiagonal{values, e, n, vectors ? ut : nullptr, vectors ? vt : nullptr, ldu, ldv, m}
      .diagonalise();
  // Descending, by selection: vectors move with their values.
  for (int64_t i = 0; i < n; ++i) {
    const int64_t best = i + top(values + i, n - i, 1);
    if (best == i) continue;
    swap_rows(values + i, values + best, 1);
    if (!vectors) continue;
    swap_rows(ut + i * ldu, ut + best * ldu, m);
    swap_rows(vt + i * ldv, vt + best * ldv, n);
  }
}

}  // namespace

const SpectraKernels spectra_table{eigenvalues, singular_values};

}  // namespace tessera::kernels::TESSERA_ISA
