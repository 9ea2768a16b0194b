// SPDX-License-Identifier: Apache-2.0
// Picks the scan kernels of this processor.
#include "kernels/scan.h"

#include "kernels/isa.h"

namespace tessera::kernels {
namespace v3 {
extern const ScanTable scan_table;
}
namespace v4 {
extern const ScanTable scan_table;
}

const ScanFns* scan_fns(ScanKind kind, DType dtype) {
  static const ScanTable& table = cpu_has_avx512() ? v4::scan_table : v3::scan_table;
  return table.find(kind, dtype);
}

}  // namespace tessera::kernels
