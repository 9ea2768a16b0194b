// SPDX-License-Identifier: Apache-2.0
#include "executable/check_program.h"

#include <algorithm>
#include <span>
#include <unordered_set>

#include "executable/bytes.h"
#include "executable/check_step.h"

namespace tessera {
namespace {

constexpr int64_t kRngBytes = 16, kCountBytes = 4;  // of the ports that the engine fills

class Checker {
 public:
  explicit Checker(const Program& p) : p_(p) {}

  void check() {
    sound(!p_.tasks.empty() && !p_.ipus.empty(), "it has no tasks");
    check_ipus();
    check_states();
    check_channels();
    for (size_t i = 0; i < p_.tasks.size(); ++i) check_task(i);
    const int64_t first = std::max(p_.ipus.front().arena_bytes, p_.update_arena_bytes);
    check_section(p_.update, {{first, true}, {p_.state_bytes, true}});
  }

 private:
  void check_index(int64_t index, size_t count, const char* what) const {
    sound(index >= 0 && index < static_cast<int64_t>(count), "{} {} of {}", what, index, count);
  }

  static void check_inside(int64_t offset, int64_t bytes, int64_t room, const char* what) {
    sound(offset >= 0 && bytes <= room && offset <= room - bytes, "{}: bytes {} to {} of {}", what,
          offset, offset + bytes, room);
    sound(offset % 64 == 0, "{} begins at byte {}", what, offset);
  }

  // Sums of sizes, none of which is large, do not wrap.
  void check_ipus() const {
    sound(p_.ipus.size() <= 4096, "it has {} IPUs", p_.ipus.size());
    int64_t bytes = 0;
    for (const IpuDesc& i : p_.ipus)
      bytes += i.arena_bytes + i.channel_bytes + i.staging_bytes + i.streaming_channel_bytes;
    bytes += std::max<int64_t>(p_.update_arena_bytes - p_.ipus.front().arena_bytes, 0);
    sound(bytes == p_.arena_bytes, "its IPUs have {} bytes, stated are {}", bytes, p_.arena_bytes);
  }

  void check_states() const {
    std::unordered_set<std::string_view> names;
    int random = 0;
    for (const StateDesc& s : p_.states) {
      sound(names.insert(s.name).second, "two states are called {}", s.name);
      sound(s.source.kind != SourceKind::kInput, "state {} is an input", s.name);
      const std::string_view type = missing_type(s.source.kind, {s.dtype, s.shape, {}});
      sound(type.empty(), "state {} is not of type {}", s.name, type);
      random += s.source.kind == SourceKind::kRandom;
      check_index(s.ipu, p_.ipus.size(), "IPU");
      check_inside(s.offset, s.bytes(), p_.state_bytes, "a state");
      sound(s.shards >= 1, "state {} has no shards", s.name);
    }
    sound(random <= 1, "it has {} random states", random);
    has_random_ = random == 1;
    std::vector<std::pair<int64_t, int64_t>> parts;
    for (const StateDesc& s : p_.states) parts.emplace_back(s.offset, s.offset + s.bytes());
    std::sort(parts.begin(), parts.end());
    for (size_t i = 1; i < parts.size(); ++i)
      sound(parts[i - 1].second <= parts[i].first, "two states are in one place");
  }

  void check_channels() const {
    for (const ChannelDesc& c : p_.channels) {
      check_index(c.from, p_.tasks.size(), "task");
      for (int reader : c.readers) check_index(reader, p_.tasks.size(), "task");
      check_index(c.ipu, p_.ipus.size(), "IPU");
      const IpuDesc& ipu = p_.ipus[static_cast<size_t>(c.ipu)];
      int64_t bytes = 0;
      sound(c.slots >= 1 && !__builtin_mul_overflow(c.slots, c.slot_bytes(), &bytes),
            "a channel has {} slots", c.slots);
      check_inside(c.offset, bytes, c.off_chip ? ipu.streaming_channel_bytes : ipu.channel_bytes,
                   "a channel");
      int64_t group = 0;
      sound(c.exchange_size == 0 ||
                (c.exchange_size > 0 && c.exchange_stride > 0 &&
                 !__builtin_mul_overflow(c.exchange_size, c.exchange_stride, &group) &&
                 c.slots % group == 0),
            "groups of {} replicas exchange a channel of {} slots", c.exchange_size, c.slots);
    }
  }

  // What a task sees as a port, which must be where the engine looks for it.
  Region port(const TaskDesc& task, const TaskPort& p, bool output) const {
    const bool made = p.kind == PortKind::kRng || p.kind == PortKind::kCount;
    sound(output ? p.kind != PortKind::kInput && !made : p.kind != PortKind::kOutput,
          "a port of task {} is of a kind that it cannot be", task.name);
    sound(p.kind != PortKind::kRng || has_random_, "there is no random state");
    if (made) return {p.kind == PortKind::kRng ? kRngBytes : kCountBytes, false};
    int64_t bytes = 0;
    switch (p.kind) {
      case PortKind::kInput:
        check_index(p.index, p_.inputs.size(), "input");
        return {p_.inputs[static_cast<size_t>(p.index)].bytes(), false};
      case PortKind::kOutput:
        check_index(p.index, p_.outputs.size(), "output");
        return {p_.outputs[static_cast<size_t>(p.index)].bytes(), true};
      case PortKind::kChannel:
        check_index(p.index, p_.channels.size(), "channel");
        bytes = p_.channels[static_cast<size_t>(p.index)].bytes();
        break;
      default:
        check_index(p.index, p_.states.size(), "state");
        bytes = p_.states[static_cast<size_t>(p.index)].bytes();
    }
    sound(p.staging >= -1, "a port is at {}", p.staging);
    if (p.staging >= 0)
      check_inside(p.staging, bytes, p_.ipus[static_cast<size_t>(task.ipu)].staging_bytes,
                   "a port");
    return {bytes, output};
  }

  void check_task(size_t number) const {
    const TaskDesc& t = p_.tasks[number];
    check_index(t.ipu, p_.ipus.size(), "IPU");
    const int64_t arena = p_.ipus[static_cast<size_t>(t.ipu)].arena_bytes;
    sound(t.arena_bytes <= arena, "task {} has more memory than its IPU", t.name);
    std::vector<Region> regions{{arena, true}, {p_.state_bytes, true}};
    for (const TaskPort& p : t.inputs) regions.push_back(port(t, p, false));
    for (const TaskPort& p : t.outputs) regions.push_back(port(t, p, true));
    for (const CopyDesc& c : t.copies) {
      check_index(c.from, p_.channels.size(), "channel");
      check_index(c.to, p_.channels.size(), "channel");
      const ChannelDesc &from = p_.channels[static_cast<size_t>(c.from)],
                        &to = p_.channels[static_cast<size_t>(c.to)];
      sound(c.from != c.to && from.bytes() == to.bytes(), "a copy is between unlike channels");
    }
    // Waiting for what comes later would take forever.
    for (const WaitDesc& w : t.waits) {
      check_index(w.task, p_.tasks.size(), "task");
      sound(w.lag > 0 || w.task < static_cast<int64_t>(number), "task {} waits for a later one",
            t.name);
    }
    check_section(t.section, regions);
  }

  const Program& p_;
  mutable bool has_random_ = false;
};

}  // namespace

void check_program(const Program& program) {
  Checker(program).check();
}

}  // namespace tessera
