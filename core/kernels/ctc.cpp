// SPDX-License-Identifier: Apache-2.0
// Picks the CTC kernels of this processor.
#include "kernels/ctc.h"

#include "kernels/isa.h"

namespace tessera::kernels {
namespace v3 {
extern const CtcKernels ctc_table;
}
namespace v4 {
extern const CtcKernels ctc_table;
}

const CtcKernels& ctc_kernels() {
  static const CtcKernels& t = cpu_has_avx512() ? v4::ctc_table : v3::ctc_table;
  return t;
}

}  // namespace tessera::kernels
