// SPDX-License-Identifier: Apache-2.0
// Tasks of a program and what passes between them: plain data, made when a graph is partitioned and
// kept in the program.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/arena.h"
#include "base/tensor.h"

namespace tessera {

// A program is a list of tasks in an order in which they may run. A task is what one IPU does of a
// micro-batch in one go: the whole model, a pipeline stage forward or backward, a shard, a phase.
// What its inputs and outputs are is said by ports.
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
  // What lies in streaming memory is on chip only while its task runs, at this offset of the
  // staging memory of the IPU.
  int64_t staging = -1;
  std::string state = {};  // the state_key of its source
};

// A value on its way from one task to later ones on one IPU; `slots` micro-batches have a slot of
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
  // Parts that groups of so many replicas exchange, so far apart, before it is read; else 0.
  int64_t exchange_size = 0, exchange_stride = 0;
};

// From the memory of one IPU to that of another, at the end of a task.
struct CopyDesc {
  int from = 0, to = 0;  // channels
};

// A task may start micro-batch m when `task` has finished m - `lag`.
struct WaitDesc {
  int task = 0;
  int64_t lag = 0;
};

struct TaskInfo {
  std::string name;
  int ipu = 0, stage = 0, phase = -1;
  bool backward = false;
  int group = 0;  // neighbours of one group may run at the same time
  std::vector<TaskPort> inputs, outputs;
  std::vector<CopyDesc> copies;
  std::vector<WaitDesc> waits;
};

}  // namespace tessera
