// SPDX-License-Identifier: Apache-2.0
// Names of the values of a graph, for users who want to see one of them.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "ir/graph.h"

namespace tessera {

// Sources have their own names, results "scope/op:index" of the module that made them, gradients
// "Gradient___" and the parameter's name. No name occurs twice.
std::vector<std::pair<std::string, ValueId>> tensor_names(const Graph& g);

// Appends copies of the named values to the outputs of `g`.
void add_anchors(Graph& g, const std::vector<std::string>& names);

}  // namespace tessera
