// SPDX-License-Identifier: Apache-2.0
// Picks the reduction kernels of this processor.
#include "kernels/reduce.h"

#include "kernels/isa.h"

namespace tessera::kernels {
namespace v3 {
extern const ReduceTable reduce_table;
}
namespace v4 {
extern const ReduceTable reduce_table;
}

namespace {
const ReduceTable& table() {
  static const ReduceTable& t = cpu_has_avx512() ? v4::reduce_table : v3::reduce_table;
  return t;
}
}  // namespace

const ReduceFns* reduce_fns(ReduceKind kind, DType dtype) {
  return table().reduce(kind, dtype);
}
const ArgFns* arg_fns(DType dtype) {
  return table().arg(dtype);
}

}  // namespace tessera::kernels
