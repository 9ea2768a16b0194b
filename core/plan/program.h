// SPDX-License-Identifier: Apache-2.0
// A compiled program: plain data, no pointer into the compiler. Regions of memory are numbered: 0
// the arena, 1 the state (weights, buffers, optimizer state, constants), then one per input, then
// one per output.
#pragma once

#include <string>
#include <vector>

#include "base/work.h"
#include "ops/kernel.h"

namespace tessera {

constexpr int kArenaRegion = 0;
constexpr int kStateRegion = 1;
constexpr int kFirstInputRegion = 2;

struct StateDesc {
  std::string name;
  DType dtype = DType::F32;
  Dims shape;
  int64_t offset = 0;  // bytes into the state region; row-major
  bool constant = false;
  bool trainable = false;
};

struct PortDesc {
  std::string name;
  DType dtype = DType::F32;
  Dims shape;  // of one micro-batch
  bool used = true;
  int64_t bytes() const { return product(shape) * size_of(dtype); }
};

struct Section {
  std::vector<StepDesc> steps;
  std::vector<Work> work;  // per step
};

// What the planner says of one buffer: for reports and for the test that no two live buffers
// overlap.
struct BufferInfo {
  int64_t offset = 0, bytes = 0;
  int first_step = 0, last_step = 0;
};

struct Program {
  std::string name;
  std::vector<StateDesc> states;
  std::vector<PortDesc> inputs, outputs;
  Section micro;   // once per micro-batch
  Section update;  // once per weight update; empty if `micro` updates the weights itself
  int64_t arena_bytes = 0;
  int64_t state_bytes = 0;
  std::vector<BufferInfo> buffers;  // of `micro`
};

}  // namespace tessera
