// SPDX-License-Identifier: Apache-2.0
// A literal argument as the element of a tensor.
#pragma once

#include <array>
#include <cstddef>

#include "base/attrs.h"
#include "base/dtype.h"

namespace tessera {

using Element = std::array<std::byte, 16>;

// The bytes of `number` in `dtype`; zero for none.
Element element_of(const Arg& number, DType dtype);

}  // namespace tessera
