// SPDX-License-Identifier: Apache-2.0
#include "kernels/grid.h"

#include "kernels/isa.h"

namespace tessera::kernels {

namespace v3 {
extern const GridKernels grid_table;
}
namespace v4 {
extern const GridKernels grid_table;
}

const GridKernels& grid_kernels() {
  static const GridKernels& t = cpu_has_avx512() ? v4::grid_table : v3::grid_table;
  return t;
}

const GridKernels& grid_kernels_v3() {
  return v3::grid_table;
}

}  // namespace tessera::kernels
