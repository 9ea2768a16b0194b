// SPDX-License-Identifier: Apache-2.0
// Runs a kernel written for f32 on half-precision tensors: operands are widened into scratch,
// results rounded once on the way out. Steps whose tensors can be cut along a dim go piece by
// piece, so that the f32 copies stay in cache; kernels that work row by row do it themselves with
// widen_row.
#pragma once

#include <vector>

#include "ops/kernel.h"

namespace tessera {

// How a step falls into independent pieces: per tensor the dim that is cut, or one of these.
// Without entries the step is one piece.
struct Pieces {
  static constexpr int kWhole = -1;   // an operand that every piece reads
  static constexpr int kUnread = -2;  // an operand of which only the shape counts
  static constexpr int kSum = -3;     // a result that is the sum over the pieces
  static constexpr int kOwn = -4;     // a tensor that the kernel converts itself
  std::vector<int> inputs, outputs;
  int64_t grain = 1;  // pieces are multiples of it

  // The same dim of all tensors.
  static Pieces along(const StepDesc& desc, int dim, int64_t grain = 1);
};

// The kernel of `desc` with every f16 and bf16 tensor replaced by a dense f32 one in scratch;
// `make` itself if there is none.
KernelPtr make_widened(const StepDesc& desc, KernelPtr (*make)(const StepDesc&),
                       const Pieces& pieces = {});

// Whether a tensor is kept in 16 bits, f16 or bf16.
bool is_half(const TensorRef& t);

// `n` elements of f32, f16 or bf16, `step` apart, to dense f32 and back.
void widen_row(const std::byte* from, DType dtype, int64_t step, float* to, int64_t n);
void narrow_row(const float* from, std::byte* to, DType dtype, int64_t step, int64_t n);

}  // namespace tessera
