// SPDX-License-Identifier: Apache-2.0
// Programs as bytes, damaged, with every checksum right: what is read of them must be refused or
// run.
#pragma once

#include "try_program.h"

namespace tessera::fuzz {

// Mutants of one of the programs. Anything but success or a UserError is bad.
Result try_executable(const std::vector<std::string>& programs, Random& r);

}  // namespace tessera::fuzz
