// SPDX-License-Identifier: Apache-2.0
// Part of dce: loops and branches without what nothing needs of them.
#pragma once

#include <vector>

#include "passes/pass.h"

namespace tessera {

// Drops results of a loop or branch that are not live, carries that only make themselves, and
// operands that no body reads; what is left in the bodies is trimmed in turn. Says whether anything
// was dropped.
bool trim_bodies(Node& n, const std::vector<bool>& live, const PassContext& ctx);

// Gives a loop or branch other operands: `kept` says which of them stay, by index.
void keep_operands(Node& n, const std::vector<bool>& kept);

}  // namespace tessera
