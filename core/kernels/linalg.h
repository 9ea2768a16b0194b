// SPDX-License-Identifier: Apache-2.0
// Dense factorisations of one matrix, in place, in float or double. Matrices are row-major; a row
// of n elements has room for pitch<T>(n), what lies past its end may be read and overwritten.
// Conventions (pivots, signs of reflectors, what counts as failure) are LAPACK's, so that results
// are those of eager torch.
#pragma once

#include <cstdint>

#include "kernels/dispatch.h"

namespace tessera::kernels {

constexpr int64_t kLinalgBlock = 32;  // rows and columns that are factored at a time

// Distance of the rows of an n-column matrix: whole vectors from any start within the row.
template <typename T>
constexpr int64_t pitch(int64_t n) {
  constexpr int64_t width = 64 / sizeof(T);
  return (n + width - 1) / width * width + width;
}

// A block of transformed rows, a triangle, and a panel.
template <typename T>
constexpr int64_t qr_work(int64_t m, int64_t n) {
  return kLinalgBlock * (pitch<T>(n) + kLinalgBlock) + m * pitch<T>(kLinalgBlock);
}

template <typename T>
struct LinalgKernels {
  // Lower triangle of `a` becomes its Cholesky factor; the rest is lost. Returns 0, or the
  // order of the first leading minor that is not positive. `work` has kLinalgBlock rows of n.
  int64_t (*cholesky)(T* a, int64_t lda, int64_t n, T* work);
  // P A = L U with unit L. Row i was exchanged with pivots[i] - 1. Returns 0, or the first k with
  // U(k, k) = 0, counted from 1.
  int64_t (*lu)(T* a, int64_t lda, int64_t m, int64_t n, int32_t* pivots, bool pivot);
  // b := L^-1 b for an n by n lower triangle with any strides, also negative ones, and n rows of
  // `cols` columns.
  void (*solve_lower)(const float* l, int64_t rs, int64_t cs, int64_t n, T* b, int64_t ldb,
                      int64_t cols, bool unit);
  // Householder QR: R above, reflectors below the diagonal. `work` has qr_work(m, n) elements.
  void (*qr)(T* a, int64_t lda, int64_t m, int64_t n, T* tau, T* work);
  // q := H(0) ... H(k-1) q, m rows and n columns, reflectors stored as qr() leaves them. With
  // `identity`, q starts as the identity matrix, which saves half of the work. `work` is as qr()'s.
  void (*apply_q)(const T* a, int64_t lda, const T* tau, int64_t k, T* q, int64_t ldq, int64_t m,
                  int64_t n, bool identity, T* work);
  // a := exp(a), n by n. `work` has 4 n rows of n.
  void (*exponential)(T* a, int64_t lda, int64_t n, T* work);
};

TESSERA_KERNELS(LinalgKernels<float>, linalg_f32)
TESSERA_KERNELS(LinalgKernels<double>, linalg_f64)

struct SpectraKernels {
  // Eigenvalues, ascending, of the symmetric matrix `a` (both triangles filled, destroyed). Unless
  // vt is null, its row i is the vector of value i. `work` has 4 rows of n.
  void (*eigenvalues)(double* a, int64_t lda, int64_t n, double* values, double* vt, int64_t ldv,
                      double* work);
  // Singular values, descending, of `a` with m >= n (destroyed). With `vectors`, row i of ut (n
  // rows of m) and of vt (n rows of n) are the vectors of value i. `work` has 5 rows of m.
  void (*singular_values)(double* a, int64_t lda, int64_t m, int64_t n, double* values,
                          bool vectors, double* ut, int64_t ldu, double* vt, int64_t ldv,
                          double* work);
};
TESSERA_KERNELS(SpectraKernels, spectra)

}  // namespace tessera::kernels
