// SPDX-License-Identifier: Apache-2.0
#include "runtime/team_run.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "base/error.h"
#include "runtime/clock.h"
#include "runtime/denormals.h"
#include "runtime/team.h"

namespace tessera {
namespace {

// What a step at top level does itself, before and after the library that opens its own region.
void fork_team(const RunCtx& ctx, const std::function<void(const RunCtx&)>& work) {
#pragma omp parallel
  {
    RunCtx own = ctx;
    own.thread = omp_get_thread_num();
    own.threads = omp_get_num_threads();
    own.fork_fn = nullptr;
    work(own);
  }
}

// The run around the steps of a section that is on one thread.
class AloneControl final : public RunControl {
 public:
  AloneControl(TeamRun& run, int thread, const Poll& poll)
      : run_(run), thread_(thread), poll_(poll) {}
  bool stop(const RunCtx&) override { return run_.asked_to_stop(thread_, poll_); }
  void launch(const RunCtx& ctx, const std::function<void(const RunCtx&)>& work) override {
    work(ctx);
  }

 private:
  TeamRun& run_;
  int thread_;
  const Poll& poll_;
};

}  // namespace

TeamRun::TeamRun(int threads) : most_threads_(threads), process_(getpid()), barrier_(threads) {}

void TeamRun::reserve(const std::vector<const LoadedSection*>& sections, bool alone) {
  int64_t shared = 0;
  for (const LoadedSection* section : sections)
    for (const LoadedStep& s : section->steps) {
      scratch_per_thread_ = std::max(scratch_per_thread_, s.kernel->scratch_bytes(1));
      shared =
          std::max(shared, s.kernel->scratch_bytes(s.kernel->single_thread() ? 1 : most_threads_));
    }
  scratch_per_thread_ = whole_lines(scratch_per_thread_);
  if (alone) shared = std::max(shared, most_threads_ * scratch_per_thread_);
  scratch_ = Arena(std::max<int64_t>(shared, 64));
}

// OpenMP may give fewer threads than asked, and a forked child has none of its parent's: a barrier
// that waits for them would never open.
void TeamRun::begin() {
  const bool single = getpid() != process_ || omp_get_dynamic() ||
                      omp_get_active_level() >= omp_get_max_active_levels();
  team_ = single ? 1 : std::min(most_threads_, omp_get_thread_limit());
  barrier_.resize(team_);
  stop_.store(false);
  errors_.take();  // of a run that was interrupted
}

bool TeamRun::asked_to_stop(int thread, const Poll& poll) {
  if (thread == 0 && poll && poll()) stop_.store(true);
  return stopped();
}

void TeamRun::check_errors() {
  if (stop_.load(std::memory_order_relaxed))
    throw Interrupted("the run was interrupted; weights may be from the middle of a step");
  if (auto error = errors_.take()) throw UserError(error->message, error->where);
}

RunCtx TeamRun::context(int thread, int threads, std::byte* const* bases, std::byte* scratch) {
  RunCtx out{thread,    threads, bases, scratch, [](void* b) { static_cast<Barrier*>(b)->wait(); },
             &barrier_, &errors_};
  out.control = this;
  return out;
}

bool TeamRun::stop(const RunCtx& ctx) {
  if (ctx.thread == 0 && *poll_ && (*poll_)()) stop_.store(true);
  if (ctx.threads == 1) return stopped();
  barrier_.wait([this] { leave_ = stopped(); });
  return leave_;
}

void TeamRun::launch(const RunCtx& ctx, const std::function<void(const RunCtx&)>& work) {
  run_team(team_, [&](int thread) {
    FlushDenormals flush;
    work(context(thread, team_, ctx.bases, ctx.scratch));
  });
}

void TeamRun::run_stretch(const LoadedSection& loaded, const Stretch& stretch, int threads,
                          std::byte* const* bases, const Poll& poll) {
  auto decide = [&] { leave_ = stopped(); };
  auto body = [&](int thread) {
    FlushDenormals flush;
    RunCtx team = context(thread, threads, bases, scratch_.data());
    RunCtx solo = team;
    solo.thread = 0;
    solo.threads = 1;
    auto run_step = [&](const LoadedStep& s) {
      team.where = solo.where = s.where;
      if (!s.single)
        s.kernel->run(team);
      else if (thread == 0)
        s.kernel->run(solo);
    };
    for (size_t i = stretch.begin; i < stretch.end; ++i) {
      const LoadedStep& s = loaded.steps[i];
      if (s.check_before) [[unlikely]] {
        if (s.poll_before && thread == 0 && poll && poll()) stop_.store(true);
        if (threads == 1)
          decide();
        else
          barrier_.wait(decide);
        if (leave_) return;
      } else if ((s.barrier_before || profiling_) && threads > 1) {
        barrier_.wait();
      }
      if (!profiling_) {
        run_step(s);
        continue;
      }
      auto start = std::chrono::steady_clock::now();
      run_step(s);
      if (threads > 1) barrier_.wait();
      if (thread == 0) keep_best(s.best_us, start);
    }
  };
  run_team(threads, body);
}

void TeamRun::run_section(const LoadedSection& loaded, std::byte* const* bases, const Poll& poll) {
  poll_ = &poll;
  for (const Stretch& s : loaded.stretches) {
    const bool alone = team_ == 1 || s.alone;
    if (s.team) {
      run_stretch(loaded, s, alone ? 1 : team_, bases, poll);
    } else {
      RunCtx ctx = context(0, 1, bases, scratch_.data());
      ctx.where = loaded.steps[s.begin].where;
      if (!alone) ctx.fork_fn = fork_team;
      auto start = std::chrono::steady_clock::now();
      loaded.steps[s.begin].kernel->run(ctx);
      if (profiling_) keep_best(loaded.steps[s.begin].best_us, start);
    }
    if (poll && poll()) stop_.store(true);
    check_errors();
  }
}

void TeamRun::run_alone(const LoadedSection& loaded, std::byte* const* bases, int thread,
                        const Poll& poll) {
  FlushDenormals flush;
  RunCtx ctx;
  ctx.bases = bases;
  ctx.scratch = scratch_.data() + thread * scratch_per_thread_;
  ctx.errors = &errors_;
  AloneControl control(*this, thread, poll);
  ctx.control = &control;
  for (const LoadedStep& s : loaded.steps) {
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

}  // namespace tessera
