// SPDX-License-Identifier: Apache-2.0
// What the runtime takes as given of a program that the planner made, checked of one that was read:
// every tensor lies within its memory, every call is one that its op accepts, no step writes what
// it may not. A program that passes may compute nonsense, but touches no memory of others.
#pragma once

#include "plan/program.h"

namespace tessera {

// Throws Damaged.
void check_program(const Program& program);

}  // namespace tessera
