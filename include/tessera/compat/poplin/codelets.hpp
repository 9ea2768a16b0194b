// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../poplar/Graph.hpp"

namespace poplin {

// The functions of this library need no codelets here.
inline void addCodelets(poplar::Graph&) {}

}  // namespace poplin
