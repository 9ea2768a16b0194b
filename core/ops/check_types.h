// SPDX-License-Identifier: Apache-2.0
// Calls that make no sense, and results that are not what their text says, end here and not in a
// pass or a kernel. Run once on a graph that was read from text; what passes make of it is ours.
#pragma once

#include "ir/graph.h"

namespace tessera {

// Throws UserError, with line and column of the text and the user's line, for a call that its op
// refuses and for results that are not of the stated types.
void check_types(const Graph& g);

// Parts of it: one pointwise node of a graph, and the body of a fused region or an epilogue.
void check_pointwise(const Graph& g, const Node& n);
void check_body(const Graph& g, const Node& n);

}  // namespace tessera
