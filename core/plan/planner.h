// SPDX-License-Identifier: Apache-2.0
// Graph to program: order of execution, which values share memory, where each buffer lies.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <unordered_map>

#include "ir/graph.h"
#include "plan/partition.h"
#include "plan/program.h"

namespace tessera {

// Memory given to one buffer: alive from step `first` to step `last`, both included.
struct Lifetime {
  int64_t bytes = 0;
  int first = 0, last = 0;
};

// Offsets (multiples of 64) such that buffers alive at the same time do not overlap; returns the
// size of the arena.
int64_t assign_offsets(const std::vector<Lifetime>& buffers, std::vector<int64_t>& offsets);

// Execution order of the graph's nodes that keeps the peak of live bytes small. `before` lists
// extra edges (first node must run before second).
std::vector<int> schedule(const Graph& g, const std::vector<std::pair<int, int>>& before);

using StateIndex = std::unordered_map<std::string, int>;  // into Program::states

// The state that a source stands for, behind all others if it is new.
StateDesc& add_state(const Source& s, const TensorType& t, Program& p, StateIndex& states);

// Plans one graph. `frozen`: the program never writes what the section reads of the state; `micro`:
// its outputs are those of the program.
void plan_section(Graph& g, Program& p, StateIndex& states, bool frozen, bool micro, Section& out);

// Plans `micro` and, if given, `update` over one state.
Program plan_program(Graph& micro, Graph* update);

// Plans the tasks of `whole`, each in the arena of its IPU, and `update` over one state.
Program plan_tasks(const Graph& whole, Partition partition, Graph* update);

}  // namespace tessera
