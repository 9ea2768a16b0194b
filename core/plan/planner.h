// SPDX-License-Identifier: Apache-2.0
// Graph to program: order of execution, which values share memory, where each buffer lies.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "ir/graph.h"
#include "passes/partition.h"
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

// The states of a program while it is being planned.
struct StateTable {
  std::vector<StateDesc> states;
  std::unordered_map<std::string, int> index;  // by state_key
  int64_t bytes = 0;

  // The state that a source stands for, after all others if it is new.
  StateDesc& add(const Source& s, const TensorType& t);

 private:
  std::unordered_set<std::string> names_;
};

// Plans one graph and returns the bytes of its arena. `frozen`: the program never writes what the
// section reads of the state.
int64_t plan_section(Graph& g, StateTable& states, bool frozen, Section& out);

// Plans the tasks of `whole`, each in the arena of its IPU, and `update`, if there is one, over one
// state.
Program plan_program(const Graph& whole, Partition partition, Graph* update);

// Text for people and for the cases of the planner: what lies where, and the steps in their order.
std::string print_program(const Program& p);

}  // namespace tessera
