// SPDX-License-Identifier: Apache-2.0
// Drives the compiled function of a region over all of its space: outer dims, threads, partial
// sums.
#pragma once

#include <memory>

#include "codegen/region.h"
#include "codegen/typed_code.h"

namespace tessera::codegen {

std::unique_ptr<Region> make_compiled_region(TypedCode code, const std::vector<TensorRef>& outputs,
                                             const RegionOptions& options);

}  // namespace tessera::codegen
