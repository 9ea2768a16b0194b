// SPDX-License-Identifier: Apache-2.0
// The other engine: evaluates typed code one element at a time. What the compiled code is tested
// against, and what runs where LLVM is not built in.
#pragma once

#include <memory>

#include "codegen/region.h"
#include "codegen/typed_code.h"

namespace tessera::codegen {

std::unique_ptr<Region> make_reference_region(TypedCode code,
                                              const std::vector<TensorRef>& outputs);

}  // namespace tessera::codegen
