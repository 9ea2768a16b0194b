// SPDX-License-Identifier: Apache-2.0
#include "runtime/memory.h"

#include <algorithm>

namespace tessera {
namespace {

Arena some(int64_t bytes) {
  return Arena(std::max<int64_t>(bytes, 64));
}

}  // namespace

ProgramMemory::ProgramMemory(const Program& program) : state_(some(program.state_bytes)) {
  for (const IpuDesc& ipu : program.ipus) {
    // The update runs when no task does, in the memory of the first IPU.
    const int64_t arena =
        ipus_.empty() ? std::max(ipu.arena_bytes, program.update_arena_bytes) : ipu.arena_bytes;
    ipus_.push_back({some(arena), some(ipu.channel_bytes), some(ipu.staging_bytes),
                     some(ipu.streaming_channel_bytes)});
  }
}

std::byte* ProgramMemory::channel_slot(const ChannelDesc& c, int64_t micro) const {
  const Ipu& ipu = ipus_[static_cast<size_t>(c.ipu)];
  return (c.off_chip ? ipu.streaming : ipu.channels).data() + c.offset +
         micro % c.slots * c.slot_bytes();
}

}  // namespace tessera
