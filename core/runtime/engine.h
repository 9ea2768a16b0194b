// SPDX-License-Identifier: Apache-2.0
// A loaded program: its memory, its kernels, and the loops over device iterations and accumulated
// micro-batches. One launch of the thread team per stretch of steps; nothing is allocated while it
// runs.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/arena.h"
#include "ops/run_error.h"
#include "plan/program.h"
#include "runtime/barrier.h"
#include "runtime/replica_states.h"
#include "runtime/run_config.h"
#include "runtime/task_schedule.h"

namespace tessera {

// Seconds since the program was loaded, of one micro-batch.
struct MicroTimes {
  double input = 0, input_complete = 0, output = 0, output_complete = 0;
};

// A step that torch runs; the callback works on tensors that alias the program's memory.
struct HostCallInfo {
  int index = 0;
  StepDesc desc;
  std::byte* arena = nullptr;  // of its IPU
};

class Engine {
 public:
  Engine(Program program, RunConfig config);
  ~Engine();

  const Program& program() const { return program_; }
  const RunConfig& config() const { return config_; }

  // Shape of a state on the host: with the number of its groups in front, if it has some.
  Dims state_shape(const StateDesc& state) const { return replicas_.host_shape(state); }
  void write_state(const std::string& name, const void* from, int64_t bytes);
  void read_state(const std::string& name, void* to, int64_t bytes) const;

  // Host calls: addresses are fixed for the life of the engine.
  const std::vector<HostCallInfo>& host_calls() const { return host_calls_; }
  void set_host_call(int index, std::function<void()> fn) { host_fns_.at(index) = std::move(fn); }
  std::byte* address(const HostCallInfo& call, const TensorRef& t) const {
    return (t.region == kArenaRegion ? call.arena : fixed_bases_[t.region]) + t.offset;
  }

  // `poll` is called every few milliseconds on the calling thread, between two steps; true stops
  // the run with Interrupted. Data that a kernel refuses ends in UserError, with the weights as
  // they were before the micro-batch.
  void run(const std::vector<const void*>& inputs, const std::vector<void*>& outputs,
           const std::function<bool()>& poll);
  void interrupt() { stop_.store(true); }

  int64_t scratch_bytes() const { return scratch_.bytes(); }
  // Of the last run, in the order of its micro-batches; empty before it.
  const std::vector<MicroTimes>& times() const { return times_; }
  double last_run_seconds() const { return last_run_seconds_; }

  // While on, steps run one after another behind barriers and their best times are kept; for
  // reports, not for speed.
  void set_profiling(bool on) { profiling_ = on; }
  // Best time of each step in microseconds, `micro` steps then `update` steps; empty if never
  // profiled.
  std::vector<double> step_times() const;

 private:
  struct Step {
    KernelPtr kernel;
    bool barrier_before = false;
    bool check_before = false;  // with the barrier: whether to go on
    bool poll_before = false;   // with the check: whether the caller wants to
    std::string_view where;     // the user's line
    mutable double best_us = -1;
  };
  // Steps [begin, end) run by the team in one launch, or one top-level step.
  struct Stretch {
    size_t begin = 0, end = 0;
    bool team = true;
  };
  struct Loaded {
    std::vector<Step> steps;
    std::vector<Stretch> stretches;
  };

  struct Memory {  // of one IPU
    Arena arena, channels;
    Arena staging, streaming;  // on chip, off chip
  };
  static constexpr int64_t kOwnBytes = 64;
  struct Task {
    Loaded loaded;
    std::vector<std::byte*> bases;
    Arena own;  // random state and count of its micro-batch
  };
  // Tasks [begin, end) side by side, each on one thread; without a schedule one by one, each by the
  // whole team.
  struct Group {
    size_t begin = 0, end = 0;
    std::unique_ptr<TaskSchedule> schedule = nullptr;
  };
  struct Micro {
    int64_t step = 0, replica = 0;
    int64_t order = 0;            // in its pipeline: chooses the slots of channels
    int64_t order_in_update = 0;  // micro-batches of this update before it
    int64_t random = 0;           // draws of this update before it
  };
  struct TraceEvent {
    int task;  // -1: the update
    int64_t step, replica;
    double start, end;
  };

  Loaded load(const Section& section);
  void place_barriers(const Section& section, Loaded& loaded) const;
  void place_checks(const Section& section, Loaded& loaded) const;
  int team_size() const;
  void run_micro(int64_t step, int64_t replica, const std::function<bool()>& poll);
  void run_section(const Loaded& loaded, const std::function<bool()>& poll);
  void run_stretch(const Loaded& loaded, const Stretch& stretch, int threads,
                   const std::function<bool()>& poll);
  void check_errors();
  std::byte* input_at(int64_t input, int64_t step, int64_t replica) const;
  std::byte* output_at(size_t output, int64_t step, int64_t replica) const;
  void add_to_sum(size_t output, int64_t step, int64_t replica, const std::byte* from);
  std::byte* kept_output(size_t output, int64_t at, int64_t replica) const;
  std::vector<Loaded*> all_loaded();

  // Programs on several IPUs.
  void load_tasks();
  std::byte* channel_slot(int channel, int64_t micro) const;
  std::pair<std::byte*, int64_t> port_home(const TaskPort& p, const Micro& m) const;
  std::byte* port_base(const TaskDesc& desc, const TaskPort& p, const Micro& m) const;
  void bind_task(int index, const Micro& m);
  void finish_task(int index, const Micro& m);
  void run_alone(const Loaded& loaded, std::byte* const* bases, int thread,
                 const std::function<bool()>& poll);
  void run_task(int index, const Micro& m, int thread, const std::function<bool()>& poll);
  bool asked_to_stop(int thread, const std::function<bool()>& poll);
  void run_tasks(const std::function<bool()>& poll);
  void run_group(const Group& group, int64_t count, const std::function<Micro(int64_t)>& micro,
                 const std::function<bool()>& poll);
  void run_pipeline(int64_t first, int64_t batch, int64_t replica, int64_t lanes,
                    const std::function<bool()>& poll);
  void run_in_turn(int64_t first, int64_t batch, const std::function<bool()>& poll);
  void write_trace();
  const StateDesc& find_state(const std::string& name) const;

  Program program_;
  RunConfig config_;
  std::vector<OutputRule> rules_;
  Arena arena_, state_, scratch_, sums_;
  ReplicaStates replicas_;
  std::vector<MicroTimes> times_;
  std::chrono::steady_clock::time_point loaded_ = std::chrono::steady_clock::now();
  double last_run_seconds_ = 0;
  Loaded micro_, update_;
  std::vector<Memory> ipus_;
  std::vector<Task> tasks_;
  std::vector<Group> groups_;
  std::vector<std::vector<TraceEvent>> traces_;  // by thread
  std::byte* loading_arena_ = nullptr;
  int64_t scratch_per_thread_ = 0;
  std::vector<std::byte*> fixed_bases_, bases_;
  const std::vector<const void*>* inputs_ = nullptr;  // of this run
  const std::vector<void*>* outputs_ = nullptr;
  std::vector<int64_t> aside_;  // by output: where in sums_ what is not kept goes
  std::vector<HostCallInfo> host_calls_;
  std::vector<std::function<void()>> host_fns_;
  std::unique_ptr<Barrier> barrier_;
  std::atomic<bool> stop_{false};
  bool leave_ = false;  // written by the last thread at a barrier, read by all after it
  RunErrors errors_;
  pid_t process_;  // that the threads of the team belong to
  int team_ = 1;   // threads of this run
  int64_t rng_offset_ = -1;
  bool profiling_ = false;
};

// The kernel of a step; `host` makes the kernel of a host call.
KernelPtr make_step(const StepDesc& desc, const std::function<KernelPtr(const StepDesc&)>& host);

}  // namespace tessera
