// SPDX-License-Identifier: Apache-2.0
// A compiled program: plain data, no pointer into the compiler. Regions of memory are numbered: 0
// the arena, 1 the state (weights, buffers, optimizer state, constants), then one per input, then
// one per output.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "base/arena.h"
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
  int ipu = 0;
  bool off_chip = false;  // in streaming memory
  int64_t shards = 1;     // replicas that each keep a part
  int64_t bytes() const { return product(shape) * size_of(dtype); }
  // No two states lie at one place, not even empty ones.
  int64_t room() const { return whole_lines(std::max<int64_t>(bytes(), 1)); }
  // Gradients and optimizer states are named "<what>:<parameter>"; those of the model have no
  // colon.
  std::string_view owner() const { return std::string_view(name).substr(name.find(':') + 1); }
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

// A program on several IPUs is a list of tasks in an order in which they may run. A task is what
// one IPU does of a micro-batch in one go: a pipeline stage forward or backward, a shard, a phase.
// Its section sees the arena of its IPU as region 0; what its inputs and outputs are is said by
// ports.
enum class PortKind : uint8_t {
  kInput,    // of the program
  kOutput,   // of the program
  kChannel,  // a value of another task, or for one
  kRng,      // random state of this micro-batch
  kCount,    // how many micro-batches of this update came before
  kState,    // a state in streaming memory, or one of which each replica has its own
};

struct TaskPort {
  PortKind kind = PortKind::kInput;
  int index = 0;  // of the input, output, channel or state
  // What lies in streaming memory is on chip only while its task runs, at this place of the staging
  // memory of the IPU.
  int64_t staging = -1;
  std::string state = {};
};

// A value on its way from one task to later ones on one IPU; `slots` micro-batches have a place of
// their own in that IPU's memory.
struct ChannelDesc {
  int from = 0;
  std::vector<int> readers;  // tasks
  int ipu = 0;
  DType dtype = DType::F32;
  Dims shape;
  int64_t slots = 1;
  int64_t offset = 0;  // into the channels of the IPU, on chip or off; slots lie one after another
  int64_t bytes() const { return product(shape) * size_of(dtype); }
  int64_t slot_bytes() const { return whole_lines(bytes()); }
  bool off_chip = false;  // in streaming memory
};

// From the memory of one IPU to that of another, at the end of a task.
struct CopyDesc {
  int from = 0, to = 0;  // channels
};

// A task may start micro-batch m when `task` has finished m - `behind`.
struct WaitDesc {
  int task = 0;
  int64_t behind = 0;
};

struct TaskDesc {
  std::string name;
  int ipu = 0, stage = 0, phase = -1;
  bool backward = false;
  int group = 0;  // neighbours of one group may run at the same time
  std::vector<TaskPort> inputs, outputs;
  std::vector<CopyDesc> copies;
  std::vector<WaitDesc> waits;
  Section section;
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
  Section micro;   // once per micro-batch
  Section update;  // once per weight update; empty if `micro` updates the weights itself
  int64_t arena_bytes = 0;
  int64_t state_bytes = 0;
  std::vector<BufferInfo> buffers;  // of `micro`
  // Instead of `micro`, if the program runs on several IPUs.
  std::vector<TaskDesc> tasks;
  std::vector<ChannelDesc> channels;
  std::vector<IpuDesc> ipus;
  int64_t update_arena_bytes = 0;
  bool pipelined = false;  // tasks of several micro-batches run at the same time

  const std::vector<const Section*> micro_sections() const {
    std::vector<const Section*> out;
    if (tasks.empty()) out.push_back(&micro);
    for (const TaskDesc& t : tasks) out.push_back(&t.section);
    return out;
  }
};

}  // namespace tessera
