// SPDX-License-Identifier: Apache-2.0
// Picks the recurrent cells of this processor.
#include "kernels/recurrent.h"

#include "kernels/isa.h"

namespace tessera::kernels {
namespace v3 {
extern const RecurrentKernels recurrent_table;
}
namespace v4 {
extern const RecurrentKernels recurrent_table;
}

const RecurrentKernels& recurrent_kernels() {
  static const RecurrentKernels& t = cpu_has_avx512() ? v4::recurrent_table : v3::recurrent_table;
  return t;
}

}  // namespace tessera::kernels
