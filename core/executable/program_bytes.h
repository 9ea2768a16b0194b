// SPDX-License-Identifier: Apache-2.0
// A program as bytes.
#pragma once

#include <string>

#include "executable/bytes.h"
#include "plan/program.h"

namespace tessera {

std::string program_bytes(const Program& program);

// Throws Damaged. Enumerations and counts are valid in what it returns, and sizes do not overflow;
// whether its parts fit each other is check_program's to say.
Program read_program(Bytes bytes);

}  // namespace tessera
