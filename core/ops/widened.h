// SPDX-License-Identifier: Apache-2.0
// Runs a kernel written for f32 on half-precision tensors: operands are widened into scratch,
// results rounded once on the way out.
#pragma once

#include "ops/kernel.h"

namespace tessera {

// The kernel of `desc` with every f16 and bf16 tensor replaced by a dense f32 one in scratch;
// `make` itself if there is none.
KernelPtr make_widened(const StepDesc& desc, KernelPtr (*make)(const StepDesc&));

}  // namespace tessera
