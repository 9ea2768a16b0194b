// SPDX-License-Identifier: Apache-2.0
// The memory of a loaded program: the states of all IPUs in one block, and for each IPU what its
// tasks work in.
#pragma once

#include <vector>

#include "base/arena.h"
#include "plan/program.h"

namespace tessera {

class ProgramMemory {
 public:
  explicit ProgramMemory(const Program& program);

  std::byte* state() const { return state_.data(); }
  std::byte* arena(int ipu) const { return ipus_[static_cast<size_t>(ipu)].arena.data(); }
  std::byte* staging(int ipu) const { return ipus_[static_cast<size_t>(ipu)].staging.data(); }
  // Where the value of a channel lies for a micro-batch.
  std::byte* channel_slot(const ChannelDesc& channel, int64_t micro) const;

 private:
  struct Ipu {
    Arena arena, channels;
    Arena staging, streaming;  // on chip, off chip
  };
  Arena state_;
  std::vector<Ipu> ipus_;
};

}  // namespace tessera
