// SPDX-License-Identifier: Apache-2.0
// Constant padding row by row, for results whose rows are rows of the operand with something put
// before and after.
#pragma once

#include "ops/element.h"
#include "ops/kernel.h"

namespace tessera {

// The box of `inside` elements at `first` in the result is copied from `from` on in x, the rest is
// `value`.
struct PadBox {
  Dims first, inside, from;
  Element value{};
};

// Nothing if rows are not contiguous in both tensors.
KernelPtr make_row_pad(const TensorRef& x, const TensorRef& out, PadBox box);

}  // namespace tessera
