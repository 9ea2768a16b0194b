// SPDX-License-Identifier: Apache-2.0
// The steps of a section that was read, against the memory that they see.
#pragma once

#include <vector>

#include "plan/program.h"

namespace tessera {

// What a section sees under a number.
struct Region {
  int64_t bytes = 0;
  bool writable = false;
};

// Throws Damaged.
void check_section(const Section& section, const std::vector<Region>& regions);

}  // namespace tessera
