// SPDX-License-Identifier: Apache-2.0
// Operations and bytes of the nodes that the table of ops says nothing about: regions, host calls,
// loops and branches.
#pragma once

#include <vector>

#include "ir/graph.h"
#include "plan/program.h"

namespace tessera {

// Of a node, without what its bodies do.
Work work_of(const Graph& g, const Node& n);

// Of a scan its turns, of a while one of them, of a branch the longer of its two ways.
Work work_of_bodies(const Node& n, const std::vector<std::shared_ptr<Section>>& bodies);

}  // namespace tessera
