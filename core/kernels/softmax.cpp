// SPDX-License-Identifier: Apache-2.0
// Picks the softmax kernels of this processor.
#include "kernels/softmax.h"

#include "kernels/isa.h"

namespace tessera::kernels {
namespace v3 {
extern const SoftmaxKernels softmax_table;
}
namespace v4 {
extern const SoftmaxKernels softmax_table;
}

const SoftmaxKernels& softmax_kernels() {
  static const SoftmaxKernels& t = cpu_has_avx512() ? v4::softmax_table : v3::softmax_table;
  return t;
}

}  // namespace tessera::kernels
