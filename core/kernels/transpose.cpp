// SPDX-License-Identifier: Apache-2.0
#include "kernels/transpose.h"

#include "kernels/isa.h"

namespace tessera::kernels {

namespace v3 {
extern const TransposeKernels transpose_table;
}
namespace v4 {
extern const TransposeKernels transpose_table;
}

const TransposeKernels& transpose_kernels() {
  static const TransposeKernels& table =
      cpu_has_avx512() ? v4::transpose_table : v3::transpose_table;
  return table;
}

}  // namespace tessera::kernels
