// SPDX-License-Identifier: Apache-2.0
// PopART's model of which tensors share memory. Nobody asks ops about it here.
#pragma once

#include "../../poprithms/memory/inplace/proposal.hpp"
#include "../names.hpp"

namespace popart {

class AliasModel {};

}  // namespace popart
