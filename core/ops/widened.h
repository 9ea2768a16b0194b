// SPDX-License-Identifier: Apache-2.0
// Runs a kernel written for f32 on half-precision tensors: operands are widened into scratch,
// results rounded once on the way out. Whole tensors with make_widened; kernels that work row by
// row do better with the rows.
#pragma once

#include "ops/kernel.h"

namespace tessera {

// The kernel of `desc` with every f16 and bf16 tensor replaced by a dense f32 one in scratch;
// `make` itself if there is none.
KernelPtr make_widened(const StepDesc& desc, KernelPtr (*make)(const StepDesc&));

// `n` elements of f32, f16 or bf16, `step` apart, to dense f32 and back.
void widen_row(const std::byte* from, DType dtype, int64_t step, float* to, int64_t n);
void narrow_row(const float* from, std::byte* to, DType dtype, int64_t step, int64_t n);

}  // namespace tessera
