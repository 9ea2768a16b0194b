// SPDX-License-Identifier: Apache-2.0
// Runs loaded sections: with all threads of the team together, or whole on one of them. Knows when
// to stop: data that a kernel refuses, or a caller who wants no more.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <functional>

#include "base/arena.h"
#include "ops/run_error.h"
#include "runtime/barrier.h"
#include "runtime/loaded_section.h"

namespace tessera {

// Asked every few milliseconds, on the calling thread; true stops the run.
using Poll = std::function<bool()>;

class TeamRun : RunControl {
 public:
  explicit TeamRun(int threads);

  // Scratch memory for all of `sections`; `alone`: also for one section per thread.
  void reserve(const std::vector<const LoadedSection*>& sections, bool alone);

  // Before a run: nothing has failed, and the team has as many threads as it can have now.
  void begin();
  int threads() const { return team_; }

  // All threads together, one launch per stretch of steps.
  void run_section(const LoadedSection& loaded, std::byte* const* bases, const Poll& poll);
  // All steps on this thread.
  void run_alone(const LoadedSection& loaded, std::byte* const* bases, int thread,
                 const Poll& poll);

  void interrupt() { stop_.store(true); }
  bool stopped() const { return stop_.load(std::memory_order_relaxed) || errors_.any(); }
  // Asks the caller too, on the calling thread.
  bool asked_to_stop(int thread, const Poll& poll);
  // Throws what ended the run.
  void check_errors();

  // While on, steps run one after another with barriers between them and their best times are kept.
  void set_profiling(bool on) { profiling_ = on; }
  int64_t scratch_bytes() const { return scratch_.bytes(); }

 private:
  bool stop(const RunCtx& ctx) override;
  void launch(const RunCtx& ctx, const std::function<void(const RunCtx&)>& work) override;
  RunCtx context(int thread, int threads, std::byte* const* bases, std::byte* scratch);
  void run_stretch(const LoadedSection& loaded, const Stretch& stretch, int threads,
                   std::byte* const* bases, const Poll& poll);

  const int most_threads_;
  const pid_t process_;         // that the threads of the team belong to
  int team_ = 1;                // threads of this run
  const Poll* poll_ = nullptr;  // of the section that runs
  Barrier barrier_;
  Arena scratch_;
  int64_t scratch_per_thread_ = 0;
  std::atomic<bool> stop_{false};
  bool leave_ = false;  // written by the last thread at a barrier, read by all after it
  RunErrors errors_;
  bool profiling_ = false;
};

}  // namespace tessera
