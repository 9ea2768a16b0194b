// SPDX-License-Identifier: Apache-2.0
// Calls that make no sense, and results that are not what their text says, end here and not in a
// kernel.
#pragma once

#include "ir/graph.h"

namespace tessera {

// Throws UserError for a call that its op refuses, InternalError where an op's results are not of
// the stated types.
void check_types(const Graph& g);

}  // namespace tessera
