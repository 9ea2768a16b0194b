// SPDX-License-Identifier: Apache-2.0
// Custom ops as capture asks about them: which there are, what a call gives, and what it is made
// of.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/attrs.h"
#include "ir/types.h"

namespace tessera {

struct CustomOpInfo {
  std::string domain, name;
  int version = 0;
  std::string library;         // file
  bool composes = false;       // else it computes
  bool has_gradients = false;  // ops of its own for them
};

// In the order of registration.
std::vector<CustomOpInfo> custom_ops();
// Ops of libraries that are not used, and why.
std::vector<std::string> custom_refused();

// A call of an op; `attributes` is a list of [name, value].
struct CustomSite {
  std::string domain, name;
  int64_t version = 0;
  std::vector<TensorType> inputs;
  Arg attributes;
};

std::vector<TensorType> custom_setup(const CustomSite& site);
// Whether the op takes a seed, i32[2], behind these inputs.
bool custom_wants_seed(const CustomSite& site);

// A composition, read and checked; values are numbered, the inputs first. So are those of a body.
struct Composition {
  struct Node {
    std::string op;
    Args args;  // operands are numbers of values
    std::vector<int64_t> results;
    std::vector<TensorType> types;
    int line = 0, column = 0;  // in the text
    std::vector<Composition> bodies;
  };
  std::vector<Node> nodes;
  std::vector<int64_t> outputs;
  std::vector<std::pair<int, int>> updates;  // input, tessera_update_kind; their values come last
};

// What ops may ask of the program that is being made.
void set_custom_facts(const std::vector<std::pair<std::string, int64_t>>& facts);

Composition custom_compose(const CustomSite& site);

struct CustomGradient {
  CustomSite op;                            // without inputs
  std::vector<std::pair<int, int>> inputs;  // tessera_gradient_source, index
  std::vector<int> outputs;                 // input of the op, or -1
};

std::vector<CustomGradient> custom_gradients(const CustomSite& site);

}  // namespace tessera
