// SPDX-License-Identifier: Apache-2.0
// Programs on several IPUs: memory per IPU, tasks of a pipeline and of one phase side by side,
// shards and phases one after the other.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "base/error.h"
#include "runtime/clock.h"
#include "runtime/denormals.h"
#include "runtime/engine.h"
#include "runtime/team.h"

namespace tessera {
namespace {

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

void Engine::load_tasks() {
  for (const IpuDesc& ipu : program_.ipus) {
    Memory m;
    m.arena = Arena(std::max<int64_t>(ipu.arena_bytes, 64));
    m.channels = Arena(std::max<int64_t>(ipu.channel_bytes, 64));
    m.staging = Arena(std::max<int64_t>(ipu.staging_bytes, 64));
    m.streaming = Arena(std::max<int64_t>(ipu.streaming_channel_bytes, 64));
    ipus_.push_back(std::move(m));
  }
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
  auto group = groups_.begin();
  for (size_t i = 0; i < tasks.size(); ++i) {
    if (i == group->end) ++group;
    OneThreadPerKernel one(group->schedule != nullptr);
    const TaskDesc& desc = tasks[i];
    loading_arena_ = ipus_[desc.ipu].arena.data();
    Task task;
    task.loaded = load(desc.section);
    task.bases.assign(kFirstInputRegion + desc.inputs.size() + desc.outputs.size(), nullptr);
    task.bases[kArenaRegion] = loading_arena_;
    task.bases[kStateRegion] = state_.data();
    task.own = Arena(2 * kOwnBytes);
    if (task.bases.size() > bases_.size()) bases_.resize(task.bases.size());
    tasks_.push_back(std::move(task));
  }
  loading_arena_ = arena_.data();
  traces_.resize(static_cast<size_t>(config_.threads));
  // Said before the first call has trained anything.
  if (!config_.trace.empty())
    user_check(std::ofstream(config_.trace, std::ios::app).good(),
               "TESSERA_TRACE: cannot write {}: {}", config_.trace, std::strerror(errno));
}

std::byte* Engine::channel_slot(int channel, int64_t micro) const {
  const ChannelDesc& c = program_.channels[channel];
  const Memory& ipu = ipus_[c.ipu];
  return (c.off_chip ? ipu.streaming : ipu.channels).data() + c.offset +
         micro % c.slots * c.slot_bytes();
}

// Where the value of a port lies between tasks, and its size.
std::pair<std::byte*, int64_t> Engine::port_home(const TaskPort& p, const Micro& m) const {
  if (p.kind == PortKind::kChannel) {
    const ChannelDesc& c = program_.channels[p.index];
    return {channel_slot(p.index, m.order), c.bytes()};
  }
  const StateDesc& s = program_.states[p.index];
  return {replicas_.place(s, m.replica), s.bytes()};
}

// Where a task sees a port: in staging memory, if it lies off chip.
std::byte* Engine::port_base(const TaskDesc& desc, const TaskPort& p, const Micro& m) const {
  return p.staging < 0 ? port_home(p, m).first : ipus_[desc.ipu].staging.data() + p.staging;
}

// Sets the bases of a task for one micro-batch, and brings on chip what it needs.
void Engine::bind_task(int index, const Micro& m) {
  const TaskDesc& desc = program_.tasks[index];
  Task& task = tasks_[index];
  std::byte** base = task.bases.data() + kFirstInputRegion;
  for (const TaskPort& p : desc.inputs) {
    switch (p.kind) {
      case PortKind::kInput:
        *base++ = input_at(p.index, m.step, m.replica);
        break;
      case PortKind::kRng: {
        std::memcpy(task.own.data(), state_.data() + rng_offset_, 2 * sizeof(int64_t));
        reinterpret_cast<int64_t*>(task.own.data())[1] += m.random;
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
                  ? output_at(static_cast<size_t>(p.index), m.step, m.replica)
                  : port_base(desc, p, m);
}

// What is left to do when the steps of a task are done.
void Engine::finish_task(int index, const Micro& m) {
  const TaskDesc& desc = program_.tasks[index];
  std::byte* const* base = tasks_[index].bases.data() + kFirstInputRegion + desc.inputs.size();
  for (size_t i = 0; i < desc.outputs.size(); ++i) {
    const TaskPort& p = desc.outputs[i];
    if (p.kind == PortKind::kOutput) {
      add_to_sum(static_cast<size_t>(p.index), m.step, m.replica, base[i]);
    } else if (p.staging >= 0) {
      const auto [home, bytes] = port_home(p, m);
      std::memcpy(home, base[i], static_cast<size_t>(bytes));
    }
  }
  for (const CopyDesc& c : desc.copies) {
    const ChannelDesc& from = program_.channels[c.from];
    std::memcpy(channel_slot(c.to, m.order), channel_slot(c.from, m.order),
                static_cast<size_t>(from.bytes()));
  }
}

// Asks the caller, on the calling thread.
bool Engine::asked_to_stop(int thread, const std::function<bool()>& poll) {
  if (thread == 0 && poll && poll()) stop_.store(true);
  return stop_.load(std::memory_order_relaxed) || errors_.any();
}

// All steps of a section on this thread.
void Engine::run_alone(const Loaded& loaded, std::byte* const* bases, int thread,
                       const std::function<bool()>& poll) {
  FlushDenormals flush;
  RunCtx ctx;
  ctx.bases = bases;
  ctx.scratch = scratch_.data() + thread * scratch_per_thread_;
  ctx.errors = &errors_;
  for (const Step& s : loaded.steps) {
    if (s.check_before && asked_to_stop(thread, poll)) return;
    ctx.where = s.where;
    if (!profiling_) {
      s.kernel->run(ctx);
      continue;
    }
    const auto start = std::chrono::steady_clock::now();
    s.kernel->run(ctx);
    keep_best(s.best_us, start);
  }
}

void Engine::run_tasks(const std::function<bool()>& poll) {
  times_.resize(static_cast<size_t>(config_.steps() * config_.replicas));
  const int64_t batch = update_.steps.empty() ? config_.steps() : config_.gradient_accumulation;
  for (int64_t first = 0; first < config_.steps(); first += batch) {
    if (!program_.pipelined) {
      run_in_turn(first, batch, poll);
    } else if (replicas_.take_turns()) {
      for (int64_t r = 0; r < config_.replicas; ++r) {
        replicas_.enter(r);
        run_pipeline(first, batch, r, 1, poll);
        replicas_.leave(r);
      }
    } else {
      run_pipeline(first, batch, 0, config_.replicas, poll);
    }
    if (rng_offset_ >= 0)
      reinterpret_cast<int64_t*>(state_.data() + rng_offset_)[1] += batch * config_.replicas;
    if (update_.steps.empty()) continue;
    const double start = seconds_since(loaded_);
    bases_[kArenaRegion] = arena_.data();
    replicas_.update([&] { run_section(update_, poll); });
    if (!config_.trace.empty()) traces_[0].push_back({-1, first, 0, start, seconds_since(loaded_)});
  }
  if (!config_.trace.empty()) write_trace();
}

// A task of one micro-batch on this thread.
void Engine::run_task(int index, const Micro& m, int thread, const std::function<bool()>& poll) {
  MicroTimes& times = times_[m.step * config_.replicas + m.replica];
  const double start = seconds_since(loaded_);
  if (index == 0) times.input = times.input_complete = start;
  bind_task(index, m);
  run_alone(tasks_[index].loaded, tasks_[index].bases.data(), thread, poll);
  if (stop_.load(std::memory_order_relaxed) || errors_.any()) return;
  finish_task(index, m);
  const double end = seconds_since(loaded_);
  if (index + 1 == static_cast<int>(tasks_.size())) times.output = times.output_complete = end;
  if (!config_.trace.empty()) traces_[thread].push_back({index, m.step, m.replica, start, end});
}

void Engine::run_group(const Group& group, int64_t count,
                       const std::function<Micro(int64_t)>& micro,
                       const std::function<bool()>& poll) {
  auto run = [&](int task, int64_t k, int thread) {
    run_task(static_cast<int>(group.begin) + task, micro(k), thread, poll);
  };
  auto stop = [&](int thread) { return asked_to_stop(thread, poll); };
  group.schedule->run(count, team_, run, stop);
  check_errors();
}

// `lanes` replicas from `replica` on, which take turns in the pipeline.
void Engine::run_pipeline(int64_t first, int64_t batch, int64_t replica, int64_t lanes,
                          const std::function<bool()>& poll) {
  auto micro = [&](int64_t k) {
    Micro m;
    m.step = first + k / lanes;
    m.replica = replica + k % lanes;
    m.order = k;
    m.order_in_update = replica * batch + k;
    m.random = (m.step - first) * config_.replicas + m.replica;
    return m;
  };
  run_group(groups_.front(), batch * lanes, micro, poll);
}

// Micro-batches one after the other, each through all groups.
void Engine::run_in_turn(int64_t first, int64_t batch, const std::function<bool()>& poll) {
  for (int64_t k = 0; k < batch * config_.replicas; ++k) {
    const Micro m{first + k / config_.replicas, k % config_.replicas, 0, k, k};
    MicroTimes& times = times_[first * config_.replicas + k];
    times.input = times.input_complete = seconds_since(loaded_);
    replicas_.enter(m.replica);
    for (const Group& group : groups_) {
      if (group.schedule) {
        run_group(
            group, 1, [&](int64_t) { return m; }, poll);
        continue;
      }
      for (size_t t = group.begin; t < group.end; ++t) {
        const double start = seconds_since(loaded_);
        bind_task(static_cast<int>(t), m);
        std::copy(tasks_[t].bases.begin(), tasks_[t].bases.end(), bases_.begin());
        run_section(tasks_[t].loaded, poll);
        finish_task(static_cast<int>(t), m);
        if (!config_.trace.empty())
          traces_[0].push_back(
              {static_cast<int>(t), m.step, m.replica, start, seconds_since(loaded_)});
      }
    }
    replicas_.leave(m.replica);
    times.output = times.output_complete = seconds_since(loaded_);
  }
}

// As the trace viewers of Chrome and Perfetto read it: a process per replica, a row per IPU.
void Engine::write_trace() {
  std::ofstream out(config_.trace);
  out << "{\"traceEvents\": [\n";
  const int ipus = static_cast<int>(ipus_.size());
  for (int64_t r = 0; r < config_.replicas; ++r)
    for (int i = 0; i < ipus; ++i)
      out << fmt::format(
          "{{\"ph\": \"M\", \"name\": \"thread_name\", \"pid\": {}, \"tid\": {}, \"args\": "
          "{{\"name\": \"IPU {}\"}}}},\n",
          r, i, r * ipus + i);
  const char* comma = "";
  for (size_t thread = 0; thread < traces_.size(); ++thread) {
    for (const TraceEvent& e : traces_[thread]) {
      const bool update = e.task < 0;
      const TaskDesc* t = update ? nullptr : &program_.tasks[e.task];
      out << comma
          << fmt::format(
                 "{{\"ph\": \"X\", \"name\": \"{}\", \"cat\": \"{}\", \"pid\": {}, \"tid\": {}, "
                 "\"ts\": {:.3f}, \"dur\": {:.3f}, \"args\": {{\"micro_batch\": {}, \"thread\": "
                 "{}}}}}",
                 update ? "update" : t->name,
                 update        ? "update"
                 : t->backward ? "bwd"
                               : "fwd",
                 e.replica, update ? 0 : t->ipu, 1e6 * e.start, 1e6 * (e.end - e.start), e.step,
                 thread);
      comma = ",\n";
    }
    traces_[thread].clear();
  }
  out << "\n]}\n";
  user_check(out.flush().good(), "TESSERA_TRACE: cannot write {}", config_.trace);
}

}  // namespace tessera
