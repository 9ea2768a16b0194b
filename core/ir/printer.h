// SPDX-License-Identifier: Apache-2.0
// Parts of the text form that others print too.
#pragma once

#include <functional>
#include <string>

#include "base/attrs.h"

namespace tessera {

// One argument of a call; `operand` names the operands.
std::string print_arg(const Arg& a, const std::function<std::string(int64_t)>& operand);

}  // namespace tessera
