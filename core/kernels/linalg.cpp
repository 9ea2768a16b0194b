// SPDX-License-Identifier: Apache-2.0
// Which build of the dense factorisations and spectra this processor runs; see linalg.h.
#include "kernels/linalg.h"

#include "kernels/isa.h"

namespace tessera::kernels {

#define TESSERA_TABLES                             \
  extern const LinalgFns<float> linalg_table_f32;  \
  extern const LinalgFns<double> linalg_table_f64; \
  extern const SpectraFns spectra_table;
namespace v3 {
TESSERA_TABLES
}
namespace v4 {
TESSERA_TABLES
}

const LinalgFns<float>& linalg_f32() {
  return cpu_has_avx512() ? v4::linalg_table_f32 : v3::linalg_table_f32;
}
const LinalgFns<double>& linalg_f64() {
  return cpu_has_avx512() ? v4::linalg_table_f64 : v3::linalg_table_f64;
}

void eigenvalues(double* a, int64_t lda, int64_t n, double* values, double* vt, int64_t ldv,
                 double* work) {
  (cpu_has_avx512() ? v4::spectra_table : v3::spectra_table)
      .eigenvalues(a, lda, n, values, vt, ldv, work);
}

void singular_values(double* a, int64_t lda, int64_t m, int64_t n, double* values, bool vectors,
                     double* ut, int64_t ldu, double* vt, int64_t ldv, double* work) {
  (cpu_has_avx512() ? v4::spectra_table : v3::spectra_table)
      .singular_values(a, lda, m, n, values, vectors, ut, ldu, vt, ldv, work);
}

}  // namespace tessera::kernels
