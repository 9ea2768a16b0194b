// SPDX-License-Identifier: Apache-2.0
// The binary that this code is part of.
#pragma once

#include <cstdint>
#include <string>

namespace tessera {

struct Binary {
  uintptr_t base = 0;  // where it was loaded
  std::string build;   // ID that the linker gave it: the same for the same code; empty if none
};

const Binary& this_binary();

}  // namespace tessera
