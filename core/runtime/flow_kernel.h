// SPDX-License-Identifier: Apache-2.0
// Loops and branches: kernels that run the steps of their bodies.
#pragma once

#include "ops/kernel.h"
#include "runtime/loaded_section.h"

namespace tessera {

// The kernel of a loop or a branch. `arena` is the region 0 of the step; host calls of the bodies
// are added to `hosts`.
KernelPtr make_flow(const StepDesc& desc, const RunConfig& config, std::byte* arena,
                    HostCalls& hosts);

}  // namespace tessera
