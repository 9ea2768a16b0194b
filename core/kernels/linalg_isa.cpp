// SPDX-License-Identifier: Apache-2.0
// Blocked triangular factorisations and solves, and Householder QR; see linalg.h. Work runs along
// rows: everything but the small diagonal blocks is a product with contiguous right operand.
#include <cmath>

#include "kernels/linalg.h"
#include "kernels/plain_tile.h"

namespace tessera::kernels::TESSERA_ISA {
namespace {

template <typename T>
TESSERA_INLINE int64_t whole(int64_t n) {
  constexpr int64_t width = Wide<T>::kWidth;
  return (n + width - 1) / width * width;
}

// c -= a b over n columns, rounded up to whole vectors.
template <typename T>
TESSERA_INLINE void subtract_product(T* c, int64_t ldc, const T* a, int64_t a_rs, int64_t a_cs,
                                     const T* b, int64_t ldb, int64_t m, int64_t n, int64_t k) {
  plain_product<T, true>(a, a_rs, a_cs, b, ldb, c, ldc, m, whole<T>(n), k);
}

template <typename T>
void solve_lower(const T* l, int64_t ldl, int64_t n, T* b, int64_t ldb, int64_t cols, bool unit) {
  using W = Wide<T>;
  for (int64_t j = 0; j < n; j += kLinalgBlock) {
    const int64_t nb = n - j < kLinalgBlock ? n - j : kLinalgBlock;
    for (int64_t i = j; i < j + nb; ++i) {
      T* row = b + i * ldb;
      subtract_product(row, ldb, l + i * ldl + j, ldl, int64_t{1}, b + j * ldb, ldb, int64_t{1},
                       cols, i - j);
      if (unit) continue;
      const T d = l[i * ldl + i];
      for (int64_t q = 0; q < cols; q += W::kWidth) W::store(row + q, W::load(row + q) / d);
    }
    const int64_t r = j + nb;
    subtract_product(b + r * ldb, ldb, l + r * ldl + j, ldl, int64_t{1}, b + j * ldb, ldb, n - r,
                     cols, nb);
  }
}

template <typename T>
int64_t cholesky(T* a, int64_t lda, int64_t n, T* work) {
  const int64_t ldw = pitch<T>(n);
  for (int64_t j = 0; j < n; j += kLinalgBlock) {
    const int64_t nb = n - j < kLinalgBlock ? n - j : kLinalgBlock, r = j + nb, rest = n - r;
    for (int64_t i = j; i < r; ++i)
      for (int64_t c = j; c <= i; ++c) {
        const T *x = a + i * lda, *y = a + c * lda;
        T sum = x[c];
        for (int64_t p = j; p < c; ++p) sum -= x[p] * y[p];
        if (c < i) {
          a[i * lda + c] = sum / y[c];
        } else {
          if (!(sum > 0)) return i + 1;
          a[i * lda + i] = std::sqrt(sum);
        }
      }
    // The rows below, transposed: what solves them along rows is also the right operand of the
    // update.
    for (int64_t p = 0; p < nb; ++p) {
      for (int64_t i = 0; i < rest; ++i) work[p * ldw + i] = a[(r + i) * lda + j + p];
      for (int64_t i = rest; i < whole<T>(rest); ++i) work[p * ldw + i] = 0;
    }
    solve_lower(a + j * lda + j, lda, nb, work, ldw, rest, false);
    for (int64_t i = 0; i < rest; ++i)
      for (int64_t p = 0; p < nb; ++p) a[(r + i) * lda + j + p] = work[p * ldw + i];
    for (int64_t i = 0; i < rest; i += kLinalgBlock) {
      const int64_t rows = rest - i < kLinalgBlock ? rest - i : kLinalgBlock;
      subtract_product(a + (r + i) * lda + r, lda, a + (r + i) * lda + j, lda, int64_t{1}, work,
                       ldw, rows, i + rows, nb);
    }
  }
  return 0;
}

template <typename T>
int64_t lu(T* a, int64_t lda, int64_t m, int64_t n, int32_t* pivots, bool pivot) {
  using W = Wide<T>;
  const int64_t k = m < n ? m : n;
  int64_t info = 0;
  for (int64_t j0 = 0; j0 < k; j0 += kLinalgBlock) {
    const int64_t nb = k - j0 < kLinalgBlock ? k - j0 : kLinalgBlock, j1 = j0 + nb;
    for (int64_t j = j0; j < j1; ++j) {
      int64_t best = j;
      if (pivot)
        for (int64_t i = j + 1; i < m; ++i)
          if (std::abs(a[i * lda + j]) > std::abs(a[best * lda + j])) best = i;
      pivots[j] = static_cast<int32_t>(best + 1);
      if (a[best * lda + j] == 0) {
        if (info == 0) info = j + 1;
        continue;
      }
      if (best != j)
        for (int64_t q = 0; q < n; q += W::kWidth) {
          T *x = a + j * lda + q, *y = a + best * lda + q;
          const auto t = W::load(x);
          W::store(x, W::load(y));
          W::store(y, t);
        }
      const T d = a[j * lda + j];
      for (int64_t i = j + 1; i < m; ++i) {
        T* row = a + i * lda;
        const T f = row[j] /= d;
        for (int64_t q = j + 1; q < j1; ++q) row[q] -= f * a[j * lda + q];
      }
    }
    if (j1 >= n) continue;
    solve_lower(a + j0 * lda + j0, lda, nb, a + j0 * lda + j1, lda, n - j1, true);
    subtract_product(a + j1 * lda + j1, lda, a + j1 * lda + j0, lda, int64_t{1}, a + j0 * lda + j1,
                     lda, m - j1, n - j1, nb);
  }
  return info;
}

// Applies 1 - tau v v^T from the left to the rows of c: v = (1, then m - 1 elements of a column).
template <typename T>
TESSERA_INLINE void reflect(const T* v, int64_t ldv, T tau, T* c, int64_t ldc, int64_t m, int64_t n,
                            T* work) {
  using W = Wide<T>;
  if (n <= 0) return;
  // work = -(v^T c), then tau times its negation.
  for (int64_t q = 0; q < n; q += W::kWidth) W::store(work + q, -W::load(c + q));
  subtract_product(work, int64_t{0}, v, int64_t{0}, ldv, c + ldc, ldc, int64_t{1}, n, m - 1);
  for (int64_t q = 0; q < n; q += W::kWidth) {
    W::store(work + q, W::load(work + q) * -tau);
    W::store(c + q, W::load(c + q) - W::load(work + q));
  }
  subtract_product(c + ldc, ldc, v, ldv, int64_t{0}, work, int64_t{0}, m - 1, n, int64_t{1});
}

template <typename T>
void qr(T* a, int64_t lda, int64_t m, int64_t n, T* tau, T* work) {
  const int64_t k = m < n ? m : n;
  for (int64_t j = 0; j < k; ++j) {
    double below = 0;
    for (int64_t i = j + 1; i < m; ++i)
      below += static_cast<double>(a[i * lda + j]) * static_cast<double>(a[i * lda + j]);
    tau[j] = 0;
    // Noise of noise, which a matrix of low rank leaves: a reflector of it would not be orthogonal.
    if (!(below > (sizeof(T) == 8 ? 1e-250 : 1e-60))) continue;
    const double alpha = a[j * lda + j];
    const double beta = -std::copysign(std::sqrt(alpha * alpha + below), alpha);
    tau[j] = static_cast<T>((beta - alpha) / beta);
    const T scale = static_cast<T>(1 / (alpha - beta));
    for (int64_t i = j + 1; i < m; ++i) a[i * lda + j] *= scale;
    reflect(a + (j + 1) * lda + j, lda, tau[j], a + j * lda + j + 1, lda, m - j, n - j - 1, work);
    a[j * lda + j] = static_cast<T>(beta);
  }
}

template <typename T>
void apply_q(const T* a, int64_t lda, const T* tau, int64_t k, T* q, int64_t ldq, int64_t m,
             int64_t n, bool identity, T* work) {
  if (identity)
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < n; ++j) q[i * ldq + j] = i == j ? T(1) : T(0);
  for (int64_t j = k; j-- > 0;) {
    // Columns before j of the identity are not reached by reflectors from j on.
    const int64_t first = identity ? j : 0;
    reflect(a + (j + 1) * lda + j, lda, tau[j], q + j * ldq + first, ldq, m - j, n - first, work);
  }
}

// out = x y
template <typename T>
TESSERA_INLINE void multiply(const T* x, const T* y, T* out, int64_t ld, int64_t n) {
  plain_product<T, false>(x, ld, int64_t{1}, y, ld, out, ld, n, whole<T>(n), n);
}

// Scaling and squaring: the Taylor polynomial of degree 11 is exact to 1e-12 for norms up to 1/2.
template <typename T>
void exponential(T* a, int64_t lda, int64_t n, T* work) {
  T *square = work, *cube = work + n * lda, *sum = cube + n * lda, *next = sum + n * lda;
  double norm = 0;
  for (int64_t i = 0; i < n; ++i) {
    double row = 0;
    for (int64_t j = 0; j < n; ++j) row += std::abs(static_cast<double>(a[i * lda + j]));
    norm = norm > row ? norm : row;
  }
  int halvings = 0;
  for (; norm > 0.5 && halvings < 64; norm /= 2) ++halvings;
  const T scale = static_cast<T>(std::ldexp(1.0, -halvings));
  for (int64_t i = 0; i < n * lda; ++i) a[i] *= scale;
  multiply(a, a, square, lda, n);
  multiply(square, a, cube, lda, n);
  double factor = 1.0 / 39916800;  // 1 / 11!
  // Horner in the cube: each step adds three terms.
  for (int64_t k = 9; k >= 0; k -= 3) {
    const double c0 = factor * static_cast<double>((k + 2) * (k + 1));
    for (int64_t i = 0; i < n; ++i) {
      T *to = sum + i * lda, *x = a + i * lda, *y = square + i * lda, *z = next + i * lda;
      for (int64_t j = 0; j < n; ++j)
        to[j] = (k == 9 ? T(0) : z[j]) + static_cast<T>(c0) * (i == j) +
                static_cast<T>(factor * static_cast<double>(k + 2)) * x[j] +
                static_cast<T>(factor) * y[j];
    }
    if (k > 0) {
      multiply(sum, cube, next, lda, n);
      factor = c0 * static_cast<double>(k);
    }
  }
  for (; halvings > 0; --halvings) {
    multiply(sum, sum, next, lda, n);
    T* t = sum;
    sum = next;
    next = t;
  }
  std::memcpy(a, sum, static_cast<size_t>(n * lda) * sizeof(T));
}

}  // namespace

extern const LinalgFns<float> linalg_table_f32;
extern const LinalgFns<double> linalg_table_f64;
const LinalgFns<float> linalg_table_f32{cholesky<float>, lu<float>,      solve_lower<float>,
                                        qr<float>,       apply_q<float>, exponential<float>};
const LinalgFns<double> linalg_table_f64{cholesky<double>, lu<double>,      solve_lower<double>,
                                         qr<double>,       apply_q<double>, exponential<double>};

}  // namespace tessera::kernels::TESSERA_ISA
