// SPDX-License-Identifier: Apache-2.0
#include "kernels/gemm_plain.h"

#include "kernels/isa.h"

namespace tessera::kernels {

namespace v3 {
extern const PlainGemmTable plain_gemm_table;
}
namespace v4 {
extern const PlainGemmTable plain_gemm_table;
}

PlainGemmFn plain_gemm(DType dtype) {
  const PlainGemmTable& table = cpu_has_avx512() ? v4::plain_gemm_table : v3::plain_gemm_table;
  switch (dtype) {
    case DType::F64:
      return table.f64;
    case DType::I64:
      return table.i64;
    case DType::I32:
      return table.i32;
    case DType::I16:
      return table.i16;
    case DType::I8:
    case DType::U8:
      return table.i8;  // the same bits modulo 2^8
    default:
      return nullptr;
  }
}

int64_t plain_gemm_scratch(const PlainGemm& g) {
  // A panel of B of two vectors, and four rows of C beside it.
  return (g.k + 4) * 128;
}

}  // namespace tessera::kernels
