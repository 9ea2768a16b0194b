// SPDX-License-Identifier: Apache-2.0
// Picks the conversions of this processor.
#include "kernels/half.h"

#include "kernels/isa.h"

namespace tessera::kernels {
namespace v3 {
extern const HalfKernels half_table;
}
namespace v4 {
extern const HalfKernels half_table;
}

const HalfKernels& half_kernels() {
  static const HalfKernels& t = cpu_has_avx512() ? v4::half_table : v3::half_table;
  return t;
}

}  // namespace tessera::kernels
