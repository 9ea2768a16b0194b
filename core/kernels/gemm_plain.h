// SPDX-License-Identifier: Apache-2.0
// Matrix products of integers (wrapping around, as torch does) and of f64, with any strides. The
// right operand is packed a few columns at a time.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "kernels/dispatch.h"

namespace tessera::kernels {

struct PlainGemm {
  int64_t m = 0, n = 0, k = 0;
  int64_t a_rs = 0, a_cs = 1, b_rs = 0, b_cs = 1, c_rs = 0, c_cs = 1;
};

// Rows [begin, end) of C; `scratch` is this thread's own.
using PlainGemmFn = void (*)(const PlainGemm&, const void* a, const void* b, void* c, int64_t begin,
                             int64_t end, void* scratch);

// Bytes of one thread: a panel of B of two vectors, and four rows of C beside it.
inline int64_t plain_gemm_scratch(const PlainGemm& g) {
  return (g.k + 4) * 128;
}

struct PlainGemmKernels {
  PlainGemmFn (*find)(DType);  // null for types without products
};
TESSERA_KERNELS(PlainGemmKernels, plain_gemm)

}  // namespace tessera::kernels
