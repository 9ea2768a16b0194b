// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine.h"

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "runtime/clock.h"
#include "runtime/denormals.h"
#include "runtime/team.h"

namespace tessera {
namespace {

RunConfig checked(RunConfig config) {
  config.threads = std::max(1, config.threads);
  return config;
}

// Throws before memory is asked for that the machine does not have.
const Program& fitting(const Program& program, const RunConfig& config) {
  const double bytes = static_cast<double>(program.arena_bytes) +
                       static_cast<double>(program.state_bytes) +
                       CallPorts::output_bytes(program, config) +
                       static_cast<double>(config.steps() * config.replicas) * sizeof(MicroTimes);
  check_memory(static_cast<int64_t>(std::min(bytes, 9e18)));
  return program;
}

// Libraries fix the number of their threads when a kernel is made.
class OneThreadPerKernel {
 public:
  explicit OneThreadPerKernel(bool on) : before_(on ? omp_get_max_threads() : 0) {
    if (on) omp_set_num_threads(1);
  }
  ~OneThreadPerKernel() {
    if (before_ > 0) omp_set_num_threads(before_);
  }

 private:
  int before_;
};

}  // namespace

Engine::Engine(Program program, RunConfig config)
    : program_(std::move(program)),
      config_(checked(std::move(config))),
      memory_(fitting(program_, config_)),
      ports_(program_, config_),
      replicas_(program_, config_, memory_.state()),
      update_bases_{memory_.arena(0), memory_.state()},
      team_(config_.threads),
      timeline_(config_.trace, config_.threads) {
  exchanges_ = std::any_of(program_.channels.begin(), program_.channels.end(),
                           [](const ChannelDesc& c) { return c.exchange_size > 0; });
  make_groups();
  load_tasks();
  update_ = load_section(program_.update, config_, memory_.arena(0), hosts_);
  team_.reserve(sections(), std::any_of(groups_.begin(), groups_.end(),
                                        [](const Group& g) { return g.schedule != nullptr; }));
  for (const StateDesc& s : program_.states) {
    if (s.source.kind == SourceKind::kRandom)
      random_ = reinterpret_cast<int64_t*>(memory_.state() + s.offset);
  }
  times_.reserve(static_cast<size_t>(config_.steps() * config_.replicas));
}

void Engine::make_groups() {
  const std::vector<TaskDesc>& tasks = program_.tasks;
  for (size_t begin = 0, end = 0; begin < tasks.size(); begin = end) {
    while (end < tasks.size() && (program_.pipelined || tasks[end].group == tasks[begin].group))
      ++end;
    // With few tasks for many threads, each does better on all of them.
    const size_t count = end - begin;
    const bool several = count > 1 && 2 * count > static_cast<size_t>(config_.threads);
    Group group{begin, end};
    if (program_.pipelined || several)
      group.schedule = std::make_unique<TaskSchedule>(std::span(tasks).subspan(begin, count),
                                                      program_.pipelined);
    groups_.push_back(std::move(group));
  }
}

void Engine::load_tasks() {
  for (const Group& group : groups_) {
    OneThreadPerKernel one(group.schedule != nullptr);
    for (size_t i = group.begin; i < group.end; ++i) {
      const TaskDesc& desc = program_.tasks[i];
      Task task;
      task.loaded = load_section(desc.section, config_, memory_.arena(desc.ipu), hosts_);
      task.bases.assign(kFirstInputRegion + desc.inputs.size() + desc.outputs.size(), nullptr);
      task.bases[kArenaRegion] = memory_.arena(desc.ipu);
      task.bases[kStateRegion] = memory_.state();
      task.own = Arena(2 * kOwnBytes);
      tasks_.push_back(std::move(task));
    }
  }
}

std::vector<const LoadedSection*> Engine::sections() const {
  std::vector<const LoadedSection*> out;
  for (const Task& t : tasks_) out.push_back(&t.loaded);
  out.push_back(&update_);
  return out;
}

const StateDesc& Engine::find_state(const std::string& name) const {
  for (const StateDesc& s : program_.states)
    if (s.name == name) return s;
  throw UserError(fmt::format("[state] the program has no state named \"{}\"", name));
}

void Engine::write_state(const std::string& name, const void* from, int64_t bytes) {
  const StateDesc& s = find_state(name);
  const int64_t need = product(state_shape(s)) * size_of(s.dtype);
  user_check(bytes == need, "[state] \"{}\" has {} bytes, {} were given", name, need, bytes);
  user_check(from || need == 0, "[memory] the value for \"{}\" has no memory on the CPU", name);
  replicas_.write(s, static_cast<const std::byte*>(from));
  for (const LoadedSection* l : sections())
    for (const LoadedStep& step : l->steps) step.kernel->state_written();
}

void Engine::read_state(const std::string& name, void* to, int64_t bytes) const {
  const StateDesc& s = find_state(name);
  const int64_t need = product(state_shape(s)) * size_of(s.dtype);
  user_check(bytes == need, "[state] \"{}\" has {} bytes, {} were asked", name, need, bytes);
  replicas_.read(s, static_cast<std::byte*>(to));
}

std::vector<double> Engine::step_times() const {
  std::vector<double> out;
  for (const LoadedSection* l : sections())
    for (const LoadedStep& s : l->steps) {
      if (s.best_us < 0) return {};
      out.push_back(s.best_us);
    }
  return out;
}

double Engine::now() const {
  return seconds_since(loaded_);
}

void Engine::run(const std::vector<const void*>& inputs, const std::vector<void*>& outputs,
                 const Poll& poll) {
  const auto start = std::chrono::steady_clock::now();
  std::optional<FlushDenormals> flush;  // torch computes host calls, as it does elsewhere
  if (hosts_.infos.empty()) flush.emplace();
  ports_.bind(inputs, outputs);
  team_.begin();
  times_.assign(static_cast<size_t>(config_.steps() * config_.replicas), {});
  const int64_t batch = update_.steps.empty() ? config_.steps() : config_.gradient_accumulation;
  for (int64_t first = 0; first < config_.steps(); first += batch) {
    if (program_.pipelined)
      run_pipelines(first, batch, poll);
    else if (exchanges_)
      run_together(first, batch, poll);
    else
      run_in_turn(first, batch, poll);
    if (!update_.steps.empty()) run_update(first, poll);
  }
  timeline_.write(program_, config_.replicas);
  last_run_seconds_ = seconds_since(start);
}

// Micro-batches one after the other.
void Engine::run_in_turn(int64_t first, int64_t batch, const Poll& poll) {
  Micro m;
  for (m.step = first; m.step < first + batch; ++m.step)
    for (m.replica = 0; m.replica < config_.replicas; ++m.replica, ++m.order_in_update)
      run_micro(m, poll);
}

// All replicas do a part of the program before any does the next, and exchange values in between.
void Engine::run_together(int64_t first, int64_t batch, const Poll& poll) {
  const int64_t replicas = config_.replicas;
  Micro m;
  for (m.step = first; m.step < first + batch; ++m.step) {
    for (const Group& group : groups_) {
      for (int64_t r = 0; r < replicas; ++r) {
        m.replica = m.order = m.random = r;
        m.order_in_update = (m.step - first) * replicas + r;
        MicroTimes& times = times_of(m);
        if (&group == &groups_.front()) times.input = times.input_complete = now();
        replicas_.enter(r);
        run_part(m, group, now(), poll);
        replicas_.leave(r);
        times.output = times.output_complete = now();
      }
      exchange(group);
    }
    advance_random(replicas);
  }
}

// Part j of the i-th replica of a group and part i of the j-th change places.
void Engine::exchange(const Group& group) {
  for (const ChannelDesc& c : program_.channels) {
    const auto from = static_cast<size_t>(c.from);
    if (c.exchange_size == 0 || from < group.begin || from >= group.end) continue;
    const int64_t size = c.exchange_size, stride = c.exchange_stride, part = c.bytes() / size;
    for (int64_t r = 0; r < config_.replicas; ++r) {
      const int64_t i = r / stride % size;
      for (int64_t j = i + 1; j < size; ++j) {
        std::byte* a = memory_.channel_slot(c, r) + j * part;
        std::swap_ranges(a, a + part, memory_.channel_slot(c, r + (j - i) * stride) + i * part);
      }
    }
  }
}

// All groups of one micro-batch.
void Engine::run_micro(const Micro& m, const Poll& poll) {
  MicroTimes& times = times_of(m);
  double start = times.input = times.input_complete = now();
  replicas_.enter(m.replica);
  for (const Group& group : groups_) start = run_part(m, group, start, poll);
  replicas_.leave(m.replica);
  advance_random(1);
  times.output_complete = now();
}

// From `start`; returns when it has ended.
double Engine::run_part(const Micro& m, const Group& group, double start, const Poll& poll) {
  if (group.schedule) {
    run_group(
        group, 1, [&](int64_t) { return m; }, poll);
    return now();
  }
  MicroTimes& times = times_of(m);
  for (size_t t = group.begin; t < group.end; ++t) {
    bind_task(t, m);
    team_.run_section(tasks_[t].loaded, tasks_[t].bases.data(), poll);
    times.output = now();
    finish_task(t, m);
    timeline_.add(0, static_cast<int>(t), m.step, m.replica, start, times.output);
    start = times.output;
  }
  return start;
}

// Replicas take turns in one pipeline, unless each has states that have to be moved in and out.
void Engine::run_pipelines(int64_t first, int64_t batch, const Poll& poll) {
  if (!replicas_.take_turns()) {
    run_pipeline(first, batch, 0, config_.replicas, poll);
  } else {
    for (int64_t r = 0; r < config_.replicas; ++r) {
      replicas_.enter(r);
      run_pipeline(first, batch, r, 1, poll);
      replicas_.leave(r);
    }
  }
  advance_random(batch * config_.replicas);
}

// `replicas` of them, from `replica` on.
void Engine::run_pipeline(int64_t first, int64_t batch, int64_t replica, int64_t replicas,
                          const Poll& poll) {
  auto micro = [&](int64_t k) {
    Micro m;
    m.step = first + k / replicas;
    m.replica = replica + k % replicas;
    m.order = k;
    m.order_in_update = replica * batch + k;
    m.random = (m.step - first) * config_.replicas + m.replica;
    return m;
  };
  run_group(groups_.front(), batch * replicas, micro, poll);
}

void Engine::run_group(const Group& group, int64_t count,
                       const std::function<Micro(int64_t)>& micro, const Poll& poll) {
  auto run = [&](int task, int64_t k, int thread) {
    run_task(group.begin + static_cast<size_t>(task), micro(k), thread, poll);
  };
  auto stop = [&](int thread) { return team_.asked_to_stop(thread, poll); };
  group.schedule->run(count, team_.threads(), run, stop);
  team_.check_errors();
}

// A task of one micro-batch on this thread.
void Engine::run_task(size_t index, const Micro& m, int thread, const Poll& poll) {
  MicroTimes& times = times_of(m);
  const double start = now();
  if (index == 0) times.input = times.input_complete = start;
  bind_task(index, m);
  team_.run_alone(tasks_[index].loaded, tasks_[index].bases.data(), thread, poll);
  if (team_.stopped()) return;
  finish_task(index, m);
  const double end = now();
  if (index + 1 == tasks_.size()) times.output = times.output_complete = end;
  timeline_.add(thread, static_cast<int>(index), m.step, m.replica, start, end);
}

void Engine::run_update(int64_t step, const Poll& poll) {
  const double start = now();
  replicas_.update([&] { team_.run_section(update_, update_bases_.data(), poll); });
  timeline_.add(0, Timeline::kUpdate, step, 0, start, now());
}

void Engine::advance_random(int64_t draws) {
  if (random_ != nullptr) random_[1] += draws;
}

}  // namespace tessera
