// SPDX-License-Identifier: Apache-2.0
// Updates of states once per weight update, see update_once.cpp.
#pragma once

#include "ir/graph.h"
#include "ops/op.h"

namespace tessera {

bool has_updates_once(const Graph& g);
// To the graph of the update; `there` appends to it.
void move_updates_once(Graph& g, Graph& update, Builder& there);

}  // namespace tessera
