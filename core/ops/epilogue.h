// SPDX-License-Identifier: Apache-2.0
// How a pointwise region runs on the blocks of a matrix product while they are in cache. The ops
// layer does not know codegen/, so the region comes in through this interface.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/tensor.h"
#include "ops/kernel.h"

namespace tessera {

// A compiled region over an [outer, inner] iteration space. `ptrs` are the base addresses of its
// inputs, then of its outputs; run_box applies it to outer indices [o0, o1) and inner indices [i0,
// i1). Called by several threads at once on disjoint boxes.
struct Epilogue {
  virtual ~Epilogue() = default;
  virtual void run_box(std::byte* const* ptrs, int64_t o0, int64_t o1, int64_t i0,
                       int64_t i1) const = 0;
};

// The product as the region must see it: f32 [M, N] (bmm: [B*M, N]) with the strides of the scratch
// block. Absolute indices work because the base pointer given to run_box is shifted accordingly.
TensorRef matmul_epilogue_product(const StepDesc& desc);

// A matmul step with a body: inputs[0] and inputs[1] are the matrices, the body's first input is
// the product, its other inputs are inputs[2..], its outputs are all outputs of the step, each of
// shape [M, N] (bmm: B*M rows). An output may share memory with an input of the body, not with a
// matrix.
KernelPtr make_matmul_with_epilogue(const StepDesc& desc, std::unique_ptr<Epilogue> epilogue);

}  // namespace tessera
