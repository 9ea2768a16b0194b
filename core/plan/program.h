// SPDX-License-Identifier: Apache-2.0
// A compiled program: plain data, no pointer into the compiler. Regions of memory are numbered: 0
// the arena, 1 the state (weights, buffers, optimizer state, constants), then one per input, then
// one per output.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "base/arena.h"
#include "base/work.h"
#include "ir/source.h"
#include "ir/task.h"
#include "ops/kernel.h"

namespace tessera {

constexpr int kArenaRegion = 0;
constexpr int kStateRegion = 1;
constexpr int kFirstInputRegion = 2;

struct StateDesc {
  std::string name;  // no other state has it
  DType dtype = DType::F32;
  Dims shape;
  int64_t offset = 0;  // bytes into the state region; row-major
  Source source;
  int ipu = 0;
  bool off_chip = false;  // in streaming memory
  int64_t shards = 1;     // replicas that each keep a part
  int64_t bytes() const { return product(shape) * size_of(dtype); }
  // No two states have one offset, not even empty ones.
  int64_t room() const { return whole_lines(std::max<int64_t>(bytes(), 1)); }
  // The parameter that a gradient or an optimizer state belongs to; a state of the model belongs to
  // itself.
  const std::string& owner() const { return source.param.empty() ? name : source.param; }
};

struct PortDesc {
  std::string name;
  DType dtype = DType::F32;
  Dims shape;  // of one micro-batch
  bool used = true;
  int64_t bytes() const { return product(shape) * size_of(dtype); }
};

// What the planner says of one buffer: for reports and for the test that no two live buffers
// overlap.
struct BufferInfo {
  int64_t offset = 0, bytes = 0;
  int first_step = 0, last_step = 0;
};

struct Section {
  std::vector<StepDesc> steps;
  std::vector<Work> work;           // per step
  std::vector<BufferInfo> buffers;  // in the arena
};

struct TaskDesc : TaskInfo {
  Section section;  // sees the arena of its IPU as region 0
  int64_t arena_bytes = 0, staging_bytes = 0;
};

// Memory of one IPU.
struct IpuDesc {
  int64_t arena_bytes = 0;    // shared by its tasks
  int64_t channel_bytes = 0;  // activations and gradients between tasks
  int64_t state_bytes = 0;    // weights and the like that its tasks use
  int64_t staging_bytes = 0;  // on chip, for what lies in streaming memory
  int64_t streaming_channel_bytes = 0, streaming_state_bytes = 0;
  // Where its states begin in the state region. They lie together, on pages of their own.
  int64_t state_offset = 0, streaming_state_offset = 0;
  int64_t on_chip_bytes() const {
    return arena_bytes + channel_bytes + state_bytes + staging_bytes;
  }
  int64_t off_chip_bytes() const { return streaming_channel_bytes + streaming_state_bytes; }
};

struct Program {
  std::string name;
  std::vector<StateDesc> states;
  std::vector<PortDesc> inputs, outputs;
  std::vector<TaskDesc> tasks;  // once per micro-batch
  Section update;  // once per weight update; empty if the tasks update the weights themselves
  int64_t arena_bytes = 0;  // of all IPUs
  int64_t state_bytes = 0;
  std::vector<ChannelDesc> channels;
  std::vector<IpuDesc> ipus;
  int64_t update_arena_bytes = 0;  // in the arena of the first IPU
  bool pipelined = false;          // tasks of several micro-batches run at the same time
};

}  // namespace tessera
