// SPDX-License-Identifier: Apache-2.0
// Matrix products of integers (wrapping around, as torch does) and of f64, with any strides. The
// right operand is packed a few columns at a time.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace tessera::kernels {

struct PlainGemm {
  int64_t m = 0, n = 0, k = 0;
  int64_t a_rs = 0, a_cs = 1, b_rs = 0, b_cs = 1, c_rs = 0, c_cs = 1;
};

// Rows [begin, end) of C; `scratch` is this thread's own.
using PlainGemmFn = void (*)(const PlainGemm&, const void* a, const void* b, void* c, int64_t begin,
                             int64_t end, void* scratch);

// Null for types without products.
PlainGemmFn plain_gemm(DType dtype);
int64_t plain_gemm_scratch(const PlainGemm& g);  // bytes of one thread

struct PlainGemmTable {
  PlainGemmFn f64, i64, i32, i16, i8;
};

}  // namespace tessera::kernels
