// SPDX-License-Identifier: Apache-2.0
// A loaded program: its memory, its kernels, and the loops over weight updates, micro-batches and
// replicas. Every program is a list of tasks; a model on one IPU is a program of one task. Nothing
// is allocated while it runs.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/arena.h"
#include "plan/program.h"
#include "runtime/call_ports.h"
#include "runtime/loaded_section.h"
#include "runtime/memory.h"
#include "runtime/replica_states.h"
#include "runtime/run_config.h"
#include "runtime/task_schedule.h"
#include "runtime/team_run.h"
#include "runtime/timeline.h"

namespace tessera {

// Seconds since the program was loaded, of one micro-batch.
struct MicroTimes {
  double input = 0, input_complete = 0, output = 0, output_complete = 0;
};

class Engine {
 public:
  Engine(Program program, RunConfig config);

  const Program& program() const { return program_; }
  const RunConfig& config() const { return config_; }

  // Shape of a state on the host: with the number of its groups in front, if it has some.
  Dims state_shape(const StateDesc& state) const { return replicas_.host_shape(state); }
  void write_state(const std::string& name, const void* from, int64_t bytes);
  void read_state(const std::string& name, void* to, int64_t bytes) const;

  // Host calls: addresses are fixed for the life of the engine.
  const std::vector<HostCallInfo>& host_calls() const { return hosts_.infos; }
  void set_host_call(int index, std::function<void()> fn) {
    hosts_.functions.at(index) = std::move(fn);
  }
  std::byte* address(const HostCallInfo& call, const TensorRef& t) const {
    return (t.region == kStateRegion ? memory_.state() : call.arena) + t.offset;
  }

  // `poll` is called every few milliseconds on the calling thread, between two steps; true stops
  // the run with Interrupted. Data that a kernel refuses ends in UserError, with the weights as
  // they were before the micro-batch.
  void run(const std::vector<const void*>& inputs, const std::vector<void*>& outputs,
           const Poll& poll);
  void interrupt() { team_.interrupt(); }

  int64_t scratch_bytes() const { return team_.scratch_bytes(); }
  // Of the last run, in the order of its micro-batches; empty before it.
  const std::vector<MicroTimes>& times() const { return times_; }
  double last_run_seconds() const { return last_run_seconds_; }

  // While on, steps run one after another with barriers between them and their best times are kept;
  // for reports, not for speed.
  void set_profiling(bool on) { team_.set_profiling(on); }
  // Best time of each step in microseconds, the steps of tasks then of the update; empty if never
  // profiled.
  std::vector<double> step_times() const;

 private:
  static constexpr int64_t kOwnBytes = 64;
  struct Task {
    LoadedSection loaded;
    std::vector<std::byte*> bases;
    Arena own;  // random state and count of its micro-batch
  };
  // Tasks [begin, end). With a schedule they run side by side, each on one thread; without, one
  // after the other, each by the whole team.
  struct Group {
    size_t begin = 0, end = 0;
    std::unique_ptr<TaskSchedule> schedule = nullptr;
  };
  struct Micro {
    int64_t step = 0, replica = 0;
    int64_t order = 0;            // in its pipeline: chooses the slots of channels
    int64_t order_in_update = 0;  // micro-batches of this update before it
    int64_t random = 0;           // draws since the random state was advanced
  };

  std::vector<const LoadedSection*> sections() const;
  const StateDesc& find_state(const std::string& name) const;
  double now() const;
  MicroTimes& times_of(const Micro& m) {
    return times_[static_cast<size_t>(m.step * config_.replicas + m.replica)];
  }

  void make_groups();
  void load_tasks();
  std::pair<std::byte*, int64_t> port_home(const TaskPort& p, const Micro& m) const;
  std::byte* port_base(const TaskDesc& desc, const TaskPort& p, const Micro& m) const;
  void bind_task(size_t index, const Micro& m);
  void finish_task(size_t index, const Micro& m);

  void run_task(size_t index, const Micro& m, int thread, const Poll& poll);
  void run_group(const Group& group, int64_t count, const std::function<Micro(int64_t)>& micro,
                 const Poll& poll);
  void run_pipelines(int64_t first, int64_t batch, const Poll& poll);
  void run_pipeline(int64_t first, int64_t batch, int64_t replica, int64_t replicas,
                    const Poll& poll);
  void run_in_turn(int64_t first, int64_t batch, const Poll& poll);
  void run_together(int64_t first, int64_t batch, const Poll& poll);
  void run_micro(const Micro& m, const Poll& poll);
  double run_part(const Micro& m, const Group& group, double start, const Poll& poll);
  void exchange(const Group& group);
  void run_update(int64_t step, const Poll& poll);
  void advance_random(int64_t draws);

  Program program_;
  RunConfig config_;
  ProgramMemory memory_;
  CallPorts ports_;
  ReplicaStates replicas_;
  HostCalls hosts_;
  std::vector<Group> groups_;
  bool exchanges_ = false;  // replicas exchange values between tasks
  std::vector<Task> tasks_;
  LoadedSection update_;
  std::vector<std::byte*> update_bases_;
  TeamRun team_;
  Timeline timeline_;
  int64_t* random_ = nullptr;  // key and counter, in the state; none if nothing is random
  std::vector<MicroTimes> times_;
  std::chrono::steady_clock::time_point loaded_ = std::chrono::steady_clock::now();
  double last_run_seconds_ = 0;
};

}  // namespace tessera
