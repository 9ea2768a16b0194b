// SPDX-License-Identifier: Apache-2.0
// What a task of a micro-batch reads and writes: inputs and outputs of the call, channels between
// tasks, its random state, and states that it does not see where they lie.
#include <cstring>

#include "runtime/engine.h"

namespace tessera {

// Where the value of a port lies between tasks, and its size.
std::pair<std::byte*, int64_t> Engine::port_home(const TaskPort& p, const Micro& m) const {
  if (p.kind == PortKind::kChannel) {
    const ChannelDesc& c = program_.channels[p.index];
    return {memory_.channel_slot(c, m.order), c.bytes()};
  }
  const StateDesc& s = program_.states[p.index];
  return {replicas_.address(s, m.replica), s.bytes()};
}

// Where a task sees a port: in staging memory, if it lies off chip.
std::byte* Engine::port_base(const TaskDesc& desc, const TaskPort& p, const Micro& m) const {
  return p.staging < 0 ? port_home(p, m).first : memory_.staging(desc.ipu) + p.staging;
}

// Sets the bases of a task for one micro-batch, and brings on chip what it needs.
void Engine::bind_task(size_t index, const Micro& m) {
  const TaskDesc& desc = program_.tasks[index];
  Task& task = tasks_[index];
  std::byte** base = task.bases.data() + kFirstInputRegion;
  for (const TaskPort& p : desc.inputs) {
    switch (p.kind) {
      case PortKind::kInput:
        *base++ = ports_.input_at(p.index, m.step, m.replica);
        break;
      case PortKind::kRng: {
        auto* own = reinterpret_cast<int64_t*>(task.own.data());
        own[0] = random_[0];
        own[1] = random_[1] + m.random;
        *base++ = task.own.data();
        break;
      }
      case PortKind::kCount: {
        const float before = static_cast<float>(m.order_in_update);
        std::memcpy(task.own.data() + kOwnBytes, &before, sizeof before);
        *base++ = task.own.data() + kOwnBytes;
        break;
      }
      default:
        *base++ = port_base(desc, p, m);
        if (p.staging >= 0) {
          const auto [home, bytes] = port_home(p, m);
          std::memcpy(base[-1], home, static_cast<size_t>(bytes));
        }
    }
  }
  for (const TaskPort& p : desc.outputs)
    *base++ = p.kind == PortKind::kOutput
                  ? ports_.output_at(static_cast<size_t>(p.index), m.step, m.replica)
                  : port_base(desc, p, m);
}

// What is left to do when the steps of a task are done.
void Engine::finish_task(size_t index, const Micro& m) {
  const TaskDesc& desc = program_.tasks[index];
  std::byte* const* base = tasks_[index].bases.data() + kFirstInputRegion + desc.inputs.size();
  for (size_t i = 0; i < desc.outputs.size(); ++i) {
    const TaskPort& p = desc.outputs[i];
    if (p.kind == PortKind::kOutput) {
      ports_.add_to_sum(static_cast<size_t>(p.index), m.step, m.replica, base[i]);
    } else if (p.staging >= 0) {
      const auto [home, bytes] = port_home(p, m);
      std::memcpy(home, base[i], static_cast<size_t>(bytes));
    }
  }
  for (const CopyDesc& c : desc.copies) {
    const ChannelDesc& from = program_.channels[c.from];
    std::memcpy(memory_.channel_slot(program_.channels[c.to], m.order),
                memory_.channel_slot(from, m.order), static_cast<size_t>(from.bytes()));
  }
}

}  // namespace tessera
