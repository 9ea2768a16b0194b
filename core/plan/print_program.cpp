// SPDX-License-Identifier: Apache-2.0
// A program as text. A step is written with the memory that it reads and writes: `arena+64`, a
// state by its name, an input or output of the call, a channel. What is written over itself is in
// place.
#include <fmt/ranges.h>

#include "ir/graph.h"
#include "ir/printer.h"
#include "ops/flow.h"
#include "plan/planner.h"

namespace tessera {
namespace {

// The memory that `bytes` describe, nothing if there is none.
std::string part(const char* what, int64_t bytes) {
  return bytes ? fmt::format(", {} {}", what, bytes) : "";
}

class Printer {
 public:
  explicit Printer(const Program& p) : p_(p) {}

  std::string text() {
    out_ = fmt::format("program \"{}\"{}\n", p_.name, p_.pipelined ? ", pipelined" : "");
    for (const StateDesc& s : p_.states)
      out_ += fmt::format("state \"{}\" : {} at {} on ipu {}{}{}\n", s.name,
                          to_string(TensorType{s.dtype, s.shape, {}}), s.offset, s.ipu,
                          s.off_chip ? ", streaming" : "", part("shards", s.shards - 1));
    for (size_t i = 0; i < p_.channels.size(); ++i) channel(i, p_.channels[i]);
    for (size_t i = 0; i < p_.ipus.size(); ++i) ipu(i, p_.ipus[i]);
    for (size_t i = 0; i < p_.tasks.size(); ++i) task(i, p_.tasks[i]);
    if (!p_.update.steps.empty()) {
      out_ += fmt::format("update{} {{\n", part("arena", p_.update_arena_bytes));
      for (const StepDesc& s : p_.update.steps) step(s, nullptr);
      out_ += "}\n";
    }
    return out_;
  }

 private:
  void channel(size_t i, const ChannelDesc& c) {
    out_ += fmt::format("channel {} : {} at {} on ipu {}{}{}, from task {}{}{}{}\n", i,
                        to_string(TensorType{c.dtype, c.shape, {}}), c.offset, c.ipu,
                        c.off_chip ? ", streaming" : "", c.slots > 1 ? part("slots", c.slots) : "",
                        c.from, c.readers.empty() ? "" : " to ", fmt::join(c.readers, ", "),
                        c.exchange_size == 0 ? ""
                                             : fmt::format(", exchanged by {} replicas, {} apart",
                                                           c.exchange_size, c.exchange_stride));
  }

  void ipu(size_t i, const IpuDesc& d) {
    out_ += fmt::format("ipu {}: {} bytes on chip{}{}{}{}{}{}\n", i, d.on_chip_bytes(),
                        part("arena", d.arena_bytes), part("states", d.state_bytes),
                        part("channels", d.channel_bytes), part("staging", d.staging_bytes),
                        part("streaming states", d.streaming_state_bytes),
                        part("streaming channels", d.streaming_channel_bytes));
  }

  void task(size_t i, const TaskDesc& t) {
    out_ +=
        fmt::format("task {} \"{}\" on ipu {}{}", i, t.name, t.ipu, part("arena", t.arena_bytes));
    for (const WaitDesc& w : t.waits)
      out_ += fmt::format(", after {}{}", w.task, w.lag ? fmt::format("[-{}]", w.lag) : "");
    out_ += " {\n";
    for (const StepDesc& s : t.section.steps) step(s, &t);
    for (const CopyDesc& c : t.copies)
      out_ += fmt::format("  channel {} = copy(channel {})\n", c.to, c.from);
    out_ += "}\n";
  }

  void step(const StepDesc& s, const TaskDesc* task) {
    std::vector<std::string> results, types, args;
    for (const TensorRef& t : s.outputs) {
      results.push_back(memory(t, task));
      types.push_back(to_string(TensorType{t.dtype, t.shape, {}}));
    }
    if (!s.target.empty()) args.push_back(s.target);
    auto operand = [&](int64_t i) { return memory(s.inputs[i], task); };
    for (const Arg& a : s.args.list) args.push_back(print_arg(a, operand));
    out_ +=
        fmt::format("{:{}}{} = {}{}({}) : {}", "", 2 + 2 * around_.size(), fmt::join(results, ", "),
                    op_text(s.op), body_ops(s), fmt::join(args, ", "), fmt::join(types, ", "));
    bodies(s, task);
    out_ += "\n";
  }

  // The bodies of a loop or a branch, with the part of the arena that is theirs.
  void bodies(const StepDesc& s, const TaskDesc* task) {
    if (s.bodies.empty()) return;
    if (const int64_t bytes = s.workspace.bytes(); bytes > 0)
      out_ += fmt::format(", {} bytes at {}", bytes, memory(s.workspace, task));
    for (const auto& body : s.bodies) {
      out_ += " {\n";
      around_.push_back(&s);
      for (const StepDesc& inner : body->steps) step(inner, task);
      around_.pop_back();
      out_ += fmt::format("{:{}}}}", "", 2 + 2 * around_.size());
    }
  }

  // A region of the innermost body.
  std::string input_of_body(int index) const {
    const StepDesc& s = *around_.back();
    const int inputs = static_cast<int>(s.inputs.size());
    if (s.op == Op::Branch)
      return index < inputs - 1 ? fmt::format("operand {}", index)
                                : fmt::format("result {}", index - inputs + 1);
    const LoopParts parts = loop_parts(s.op, s.args);
    const int carries = static_cast<int>(parts.carries), xs = static_cast<int>(parts.xs);
    if (index < carries) return fmt::format("carry {}", index);
    if (index < carries + xs) return fmt::format("x {}", index - carries);
    if (index < inputs) return fmt::format("capture {}", index - carries - xs);
    return fmt::format("y {}", index - inputs);
  }

  // The ops of a fused region or an epilogue.
  static std::string body_ops(const StepDesc& s) {
    if (s.body.empty()) return "";
    const auto body = parse_graph(s.body);
    std::vector<std::string_view> ops;
    for (const Node& n : body->nodes) ops.push_back(op_text(n.op));
    return fmt::format("{{{}}}", fmt::join(ops, ", "));
  }

  std::string memory(const TensorRef& t, const TaskDesc* task) const {
    std::string name;
    int64_t offset = t.offset;
    if (t.region == kArenaRegion)
      name = "arena";
    else if (t.region == kStateRegion)
      name = state(offset);
    else if (!around_.empty())
      name = input_of_body(t.region - kFirstInputRegion);
    else
      name = port(t.region - kFirstInputRegion, task);
    if (offset || t.region == kArenaRegion) name += fmt::format("+{}", offset);
    if (!t.contiguous()) name += fmt::format(" strides [{}]", fmt::join(t.strides, ","));
    return name;
  }

  // The state at an offset, which becomes one into that state.
  std::string state(int64_t& offset) const {
    for (const StateDesc& s : p_.states)
      if (s.offset <= offset && offset < s.offset + s.room()) {
        offset -= s.offset;
        return fmt::format("\"{}\"", s.name);
      }
    return "state";
  }

  std::string port(int index, const TaskDesc* task) const {
    invariant(task != nullptr, "an update section has no inputs and outputs");
    const int inputs = static_cast<int>(task->inputs.size());
    const TaskPort& p = index < inputs ? task->inputs[index] : task->outputs[index - inputs];
    switch (p.kind) {
      case PortKind::kInput:
        return fmt::format("input \"{}\"", p_.inputs[p.index].name);
      case PortKind::kOutput:
        return fmt::format("output {}", p.index);
      case PortKind::kChannel:
        return fmt::format("channel {}", p.index);
      case PortKind::kRng:
        return "rng";
      case PortKind::kCount:
        return "count";
      case PortKind::kState:
        return fmt::format("\"{}\"", p_.states[p.index].name);
    }
    return "";
  }

  const Program& p_;
  std::vector<const StepDesc*> around_;  // loops and branches
  std::string out_;
};

}  // namespace

std::string print_program(const Program& p) {
  return Printer(p).text();
}

}  // namespace tessera
