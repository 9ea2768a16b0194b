// SPDX-License-Identifier: Apache-2.0
// Picks the normalisation kernels of this processor.
#include "kernels/norm.h"

#include "kernels/isa.h"

namespace tessera::kernels {
namespace v3 {
extern const NormKernels norm_table;
}
namespace v4 {
extern const NormKernels norm_table;
}

const NormKernels& norm_kernels() {
  static const NormKernels& t = cpu_has_avx512() ? v4::norm_table : v3::norm_table;
  return t;
}

}  // namespace tessera::kernels
