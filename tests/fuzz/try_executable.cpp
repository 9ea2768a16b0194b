// SPDX-License-Identifier: Apache-2.0
#include "try_executable.h"

#include <algorithm>

#include "executable/check_program.h"
#include "executable/program_bytes.h"

namespace tessera::fuzz {
namespace {

constexpr int kMutants = 20;  // of one program

int64_t edge(Random& r) {
  constexpr int64_t kEdges[] = {0, 1, 2, 3, 64, 65536, int64_t{1} << 40, kMaxTensorBytes};
  return r.pick(kEdges);
}

void damage(int64_t& v, Random& r) {
  const int64_t moved = v + (r.one_in(2) ? 1 : 64) * (r.one_in(2) ? 1 : -1);
  v = r.one_in(2) && moved >= 0 ? moved : edge(r);
}

void damage(int& v, Random& r) {
  v = static_cast<int>(r.below(6)) - 1;
}

void damage(TensorRef& t, Random& r) {
  switch (r.below(5)) {
    case 0:
      return damage(t.region, r);
    case 1:
      return damage(t.offset, r);
    case 2:
      if (!t.shape.empty()) damage(t.shape[r.below(t.shape.size())], r);
      return;
    case 3:
      if (!t.strides.empty()) damage(t.strides[r.below(t.strides.size())], r);
      return;
    default:
      t.dtype = static_cast<DType>(r.below(kDTypes));
  }
}

void damage(Arg& a, Random& r) {
  if (a.kind == Arg::Kind::kList && !a.list.empty() && !r.one_in(4))
    return damage(a.list[r.below(a.list.size())], r);
  if (a.kind == Arg::Kind::kInt && !r.one_in(4)) return damage(a.i, r);
  a = r.one_in(2) ? Arg::integer(edge(r)) : Arg::operand(static_cast<int64_t>(r.below(4)));
}

void damage(Section& section, Random& r);

void damage(StepDesc& s, Random& r) {
  if (!s.bodies.empty() && r.one_in(2))
    return damage(const_cast<Section&>(*s.bodies[r.below(s.bodies.size())]), r);
  switch (r.below(8)) {
    case 0:
      if (!s.args.list.empty()) damage(s.args.list[r.below(s.args.list.size())], r);
      return;
    case 1:
      if (!s.inputs.empty()) s.inputs.erase(s.inputs.begin());
      return;
    case 2:
      if (!s.outputs.empty()) s.outputs.push_back(s.outputs[0]);
      return;
    case 3:
      if (!s.body.empty()) s.body[r.below(s.body.size())] = "0123456789f[],%"[r.below(15)];
      return;
    case 4:
      return damage(s.workspace, r);
    default: {
      auto& list = r.one_in(2) ? s.inputs : s.outputs;
      if (!list.empty()) damage(list[r.below(list.size())], r);
    }
  }
}

void damage(Section& section, Random& r) {
  if (section.steps.empty()) return;
  if (r.one_in(10) && !section.work.empty()) section.work.pop_back();
  damage(section.steps[r.below(section.steps.size())], r);
}

void damage(Program& p, Random& r) {
  TaskDesc& task = p.tasks[r.below(p.tasks.size())];
  switch (r.below(10)) {
    case 0:
      if (!p.states.empty()) damage(p.states[r.below(p.states.size())].offset, r);
      return;
    case 1:
      if (!p.states.empty())
        p.states[r.below(p.states.size())].source.kind = static_cast<SourceKind>(r.below(11));
      return;
    case 2: {
      auto& ports = r.one_in(2) ? task.inputs : task.outputs;
      if (ports.empty()) return;
      TaskPort& port = ports[r.below(ports.size())];
      if (r.one_in(3)) port.kind = static_cast<PortKind>(r.below(6));
      if (r.one_in(2)) damage(port.index, r);
      if (r.one_in(3)) damage(port.staging, r);
      return;
    }
    case 3:
      return damage(r.one_in(2) ? p.state_bytes : p.arena_bytes, r);
    case 4:
      return damage(p.ipus[r.below(p.ipus.size())].arena_bytes, r);
    case 5:
      if (!p.channels.empty()) {
        ChannelDesc& c = p.channels[r.below(p.channels.size())];
        int64_t* fields[] = {&c.offset, &c.slots, &c.exchange_size, &c.exchange_stride};
        damage(*fields[r.below(4)], r);
      }
      return;
    case 6:
      if (!task.waits.empty()) damage(task.waits[0].task, r);
      return;
    case 7:
      return damage(p.update, r);
    default:
      return damage(task.section, r);
  }
}

// Loops of many turns are sound and take their time.
bool runs_long(const Section& section) {
  for (const StepDesc& s : section.steps) {
    if (s.op == Op::Scan && s.args.integer(0) > 1000) return true;
    for (const auto& body : s.bodies)
      if (runs_long(*body)) return true;
  }
  return false;
}

bool runs_long(const Program& p) {
  return runs_long(p.update) || std::any_of(p.tasks.begin(), p.tasks.end(),
                                            [](const TaskDesc& t) { return runs_long(t.section); });
}

std::string mutant(const std::string& sound, Random& r) {
  if (r.one_in(3)) {
    std::string bytes = sound;
    for (size_t k = 1 + r.below(3); k > 0; --k)
      bytes[r.below(bytes.size())] ^= static_cast<char>(1u << r.below(8));
    if (r.one_in(4)) bytes.resize(r.below(bytes.size()));
    return bytes;
  }
  Program p = read_program(bytes_of(sound));
  for (size_t k = 1 + r.below(2); k > 0; --k) damage(p, r);
  return program_bytes(p);
}

}  // namespace

Result try_executable(const std::vector<std::string>& programs, Random& r) {
  Result best;
  std::string sound;
  RunConfig config;
  try {
    CompileOptions options;
    options.settings.set("training", Arg::boolean(true));
    config = options.run;
    sound = program_bytes(compile(r.pick(programs), options, nullptr).program);
  } catch (const UserError&) {
    return best;
  }
  try {
    check_program(read_program(bytes_of(sound)));
  } catch (const UserError& error) {
    return {Outcome::kBad, fmt::format("a sound program is refused: {}", error.what())};
  }
  for (int k = 0; k < kMutants; ++k) {
    try {
      Program p = read_program(bytes_of(mutant(sound, r)));
      check_program(p);
      if (runs_long(p)) continue;
      try {
        Engine engine(std::move(p), config);
        best.outcome =
            std::max(best.outcome, run_engine(engine, r) ? Outcome::kRan : Outcome::kCompiled);
      } catch (const InternalError&) {
        // The session says that the file is damaged.
      } catch (const Interrupted&) {
        // A loop that does not end.
      }
    } catch (const UserError&) {
    } catch (const std::bad_alloc&) {
    } catch (const std::exception& error) {
      return {Outcome::kBad, error.what()};
    }
  }
  return best;
}

}  // namespace tessera::fuzz
