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
template <typename T, typename A>
TESSERA_INLINE void subtract_product(T* c, int64_t ldc, const A* a, int64_t a_rs, int64_t a_cs,
                                     const T* b, int64_t ldb, int64_t m, int64_t n, int64_t k) {
  plain_product<T, true>(a, a_rs, a_cs, b, ldb, c, ldc, m, whole<T>(n), k);
}

template <typename T, typename L>
void solve_lower(const L* l, int64_t rs, int64_t cs, int64_t n, T* b, int64_t ldb, int64_t cols,
                 bool unit) {
  using W = Wide<T>;
  for (int64_t j = 0; j < n; j += kLinalgBlock) {
    const int64_t nb = n - j < kLinalgBlock ? n - j : kLinalgBlock;
    for (int64_t i = j; i < j + nb; ++i) {
      T* row = b + i * ldb;
      if (i > j)
        subtract_product(row, ldb, l + i * rs + j * cs, rs, cs, b + j * ldb, ldb, int64_t{1}, cols,
                         i - j);
      if (unit) continue;
      const T d = static_cast<T>(l[i * rs + i * cs]);
      for (int64_t q = 0; q < cols; q += W::kWidth) W::store(row + q, W::load(row + q) / d);
    }
    const int64_t r = j + nb;
    if (r < n)
      subtract_product(b + r * ldb, ldb, l + r * rs + j * cs, rs, cs, b + j * ldb, ldb, n - r, cols,
                       nb);
  }
}

template <typename T>
int64_t cholesky(T* a, int64_t lda, int64_t n, T* work) {
  const int64_t ldw = pitch<T>(n);
  for (int64_t j = 0; j < n; j += kLinalgBlock) {
    const int64_t nb = n - j < kLinalgBlock ? n - j : kLinalgBlock, r = j + nb, rest = n - r;
    // Column by column within the block; one division each.
    for (int64_t c = j; c < r; ++c) {
      const T d = a[c * lda + c];
      if (!(d > 0)) return c + 1;
      const T root = std::sqrt(d), scale = T(1) / root;
      a[c * lda + c] = root;
      for (int64_t i = c + 1; i < r; ++i) a[i * lda + c] *= scale;
      for (int64_t i = c + 1; i < r; ++i) {
        const T f = a[i * lda + c];
        for (int64_t q = c + 1; q <= i; ++q) a[i * lda + q] -= f * a[q * lda + c];
      }
    }
    if (rest == 0) break;
    // The rows below, transposed: what solves them along rows is also the right operand of the
    // update.
    for (int64_t p = 0; p < nb; ++p) {
      for (int64_t i = 0; i < rest; ++i) work[p * ldw + i] = a[(r + i) * lda + j + p];
      for (int64_t i = rest; i < whole<T>(rest); ++i) work[p * ldw + i] = 0;
    }
    solve_lower(a + j * lda + j, lda, int64_t{1}, nb, work, ldw, rest, false);
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
    solve_lower(a + j0 * lda + j0, lda, int64_t{1}, nb, a + j0 * lda + j1, lda, n - j1, true);
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
void qr_unblocked(T* a, int64_t lda, int64_t m, int64_t n, T* tau, T* work) {
  for (int64_t j = 0; j < n && j < m; ++j) {
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

// The k reflectors of m rows in v are together 1 - V T V^T; fills the upper triangle T.
template <typename T>
TESSERA_INLINE void triangle_of(const T* v, int64_t ldv, int64_t m, int64_t k, const T* tau, T* t) {
  constexpr int64_t kBlock = kLinalgBlock;
  for (int64_t c = 0; c < k; ++c) {
    T dots[kBlock + Wide<T>::kWidth] = {};  // -(V^T v_c)
    for (int64_t p = 0; p < c; ++p) dots[p] = -v[c * ldv + p];
    if (c > 0 && m > c + 1)
      subtract_product(dots, int64_t{0}, v + (c + 1) * ldv + c, int64_t{0}, ldv, v + (c + 1) * ldv,
                       ldv, int64_t{1}, c, m - c - 1);
    for (int64_t p = 0; p < c; ++p) {
      T sum = 0;
      for (int64_t q = p; q < c; ++q) sum += t[p * kBlock + q] * dots[q];
      t[p * kBlock + c] = tau[c] * sum;
    }
    t[c * kBlock + c] = tau[c];
  }
}

// c := (1 - V T V^T) c for k reflectors of m rows, or with T^T; w has k rows of n.
template <bool kTransposed, typename T>
TESSERA_INLINE void reflect_block(const T* v, int64_t ldv, const T* t, int64_t m, int64_t k, T* c,
                                  int64_t ldc, int64_t n, T* w) {
  using W = Wide<T>;
  constexpr int64_t kBlock = kLinalgBlock;
  const int64_t ldw = pitch<T>(n);
  // w = -V^T c: V has ones on and zeros above its diagonal.
  for (int64_t p = 0; p < k; ++p) {
    T* row = w + p * ldw;
    for (int64_t q = 0; q < n; q += W::kWidth) W::store(row + q, -W::load(c + p * ldc + q));
    if (p + 1 < k)
      subtract_product(row, ldw, v + (p + 1) * ldv + p, int64_t{0}, ldv, c + (p + 1) * ldc, ldc,
                       int64_t{1}, n, k - p - 1);
  }
  if (m > k) subtract_product(w, ldw, v + k * ldv, int64_t{1}, ldv, c + k * ldc, ldc, k, n, m - k);
  // w = T V^T c: in an order in which each row finds those it needs as they were.
  for (int64_t i = 0; i < k; ++i) {
    const int64_t p = kTransposed ? k - 1 - i : i, others = k - 1 - i;
    T* row = w + p * ldw;
    for (int64_t q = 0; q < n; q += W::kWidth)
      W::store(row + q, W::load(row + q) * -t[p * kBlock + p]);
    if (others == 0) continue;
    if constexpr (kTransposed)
      subtract_product(row, ldw, t + p, int64_t{0}, kBlock, w, ldw, int64_t{1}, n, others);
    else
      subtract_product(row, ldw, t + p * kBlock + p + 1, int64_t{0}, int64_t{1}, row + ldw, ldw,
                       int64_t{1}, n, others);
  }
  for (int64_t p = 0; p < k; ++p) {
    T* row = c + p * ldc;
    for (int64_t q = 0; q < n; q += W::kWidth)
      W::store(row + q, W::load(row + q) - W::load(w + p * ldw + q));
    if (p > 0) subtract_product(row, ldc, v + p * ldv, ldv, int64_t{1}, w, ldw, int64_t{1}, n, p);
  }
  if (m > k) subtract_product(c + k * ldc, ldc, v + k * ldv, ldv, int64_t{1}, w, ldw, m - k, n, k);
}

template <typename T>
void qr(T* a, int64_t lda, int64_t m, int64_t n, T* tau, T* work) {
  constexpr int64_t kBlock = kLinalgBlock, kUnblockedBelow = 4 * kBlock;
  if (n < kUnblockedBelow) return qr_unblocked(a, lda, m, n, tau, work);
  const int64_t k = m < n ? m : n, ldv = pitch<T>(kBlock);
  T *t = work + kBlock * pitch<T>(n), *v = t + kBlock * kBlock;
  for (int64_t j = 0; j < k; j += kBlock) {
    // The panel is factored in a copy: its rows end where the columns to its right begin.
    const int64_t nb = k - j < kBlock ? k - j : kBlock, rows = m - j;
    T* panel = a + j * lda + j;
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t q = 0; q < nb; ++q) v[i * ldv + q] = panel[i * lda + q];
    qr_unblocked(v, ldv, rows, nb, tau + j, work);
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t q = 0; q < nb; ++q) panel[i * lda + q] = v[i * ldv + q];
    if (n - j - nb == 0) continue;
    triangle_of(v, ldv, rows, nb, tau + j, t);
    reflect_block<true>(v, ldv, t, rows, nb, panel + nb, lda, n - j - nb, work);
  }
}

template <typename T>
void apply_q(const T* a, int64_t lda, const T* tau, int64_t k, T* q, int64_t ldq, int64_t m,
             int64_t n, bool identity, T* work) {
  if (identity)
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < n; ++j) q[i * ldq + j] = i == j ? T(1) : T(0);
  constexpr int64_t kBlock = kLinalgBlock;
  if (k > kBlock) {
    const int64_t ldv = pitch<T>(kBlock);
    T *t = work + kBlock * pitch<T>(n), *v = t + kBlock * kBlock;
    for (int64_t j = (k - 1) / kBlock * kBlock; j >= 0; j -= kBlock) {
      const int64_t nb = k - j < kBlock ? k - j : kBlock, rows = m - j, first = identity ? j : 0;
      for (int64_t i = 0; i < rows; ++i)
        for (int64_t c = 0; c < nb; ++c) v[i * ldv + c] = a[(j + i) * lda + j + c];
      triangle_of(v, ldv, rows, nb, tau + j, t);
      reflect_block<false>(v, ldv, t, rows, nb, q + j * ldq + first, ldq, n - first, work);
    }
    return;
  }
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

const LinalgKernels<float> linalg_f32_table{
    cholesky<float>, lu<float>,      solve_lower<float, float>,
    qr<float>,       apply_q<float>, exponential<float>};
const LinalgKernels<double> linalg_f64_table{
    cholesky<double>, lu<double>,      solve_lower<double, float>,
    qr<double>,       apply_q<double>, exponential<double>};

}  // namespace tessera::kernels::TESSERA_ISA
