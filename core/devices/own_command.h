// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>

namespace tessera {

// How this process was started: its program without folders, and its arguments.
std::string own_command(size_t longest);

}  // namespace tessera
