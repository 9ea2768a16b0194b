// SPDX-License-Identifier: Apache-2.0
// A step that reports numbers which its kernel makes from good ones: a NaN from operands without,
// an infinity from finite operands.
#pragma once

#include "ops/kernel.h"

namespace tessera {

KernelPtr make_checked(const StepDesc& desc, KernelPtr kernel);

}  // namespace tessera
