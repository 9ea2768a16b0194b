// SPDX-License-Identifier: Apache-2.0
// What runs: a program step described by plain data (StepDesc), and the kernel object made from it
// when a program is loaded. A kernel is run by all threads of the team at once (SPMD) and splits
// the work by thread index.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/arena.h"
#include "base/attrs.h"
#include "base/tensor.h"
#include "base/work.h"
#include "ops/op.h"

namespace tessera {

class RunErrors;
struct Section;

struct StepDesc {
  Op op = Op::HostCall;
  std::string target;              // of a host call
  Args args;                       // kOperand entries index `inputs`
  std::vector<TensorRef> inputs;   // physical: strides may be anything a view can make
  std::vector<TensorRef> outputs;  // dense, in the order the layout pass chose
  std::string body;                // text IR of a fused region or an epilogue
  std::string where;               // user's line and scope, for errors and reports
  // The filter of a convolution is state that this program never writes: a packed form of it may be
  // kept.
  bool fixed_weights = false;
  // The step is run for one piece after another in the same scratch: packed weights that lie there
  // are good until state_written().
  bool pieces = false;
  // Of a loop or a branch: the steps of its bodies. They see `workspace`, some bytes of the arena,
  // as region 0, then a region per input of the body and one per output that is no carry.
  std::vector<std::shared_ptr<const Section>> bodies = {};
  TensorRef workspace = {};
};

struct RunCtx;

// The run around a step, for steps that run others.
class RunControl {
 public:
  virtual ~RunControl() = default;
  // Whether to end early; asked by all threads of `ctx` together, now and then.
  virtual bool stop(const RunCtx& ctx) = 0;
  // From a step at top level: `work` by all threads of the team, which have barriers.
  virtual void launch(const RunCtx& ctx, const std::function<void(const RunCtx&)>& work) = 0;
};

// Per-thread view of one run. `barrier` is for kernels with phases: every thread of the team calls
// it equally often.
struct RunCtx {
  int thread = 0;
  int threads = 1;
  std::byte* const* bases = nullptr;  // by TensorRef::region
  std::byte* scratch =
      nullptr;  // Kernel::scratch_bytes(threads), shared by the team, 64-byte aligned
  void (*barrier_fn)(void*) = nullptr;
  void* barrier_arg = nullptr;
  RunErrors* errors = nullptr;  // for fail_run()
  std::string_view where{};     // StepDesc::where of the step that runs
  // Of a step at top level: runs work on a team of its own.
  void (*fork_fn)(const RunCtx&, const std::function<void(const RunCtx&)>&) = nullptr;
  RunControl* control = nullptr;

  template <typename T>
  T* ptr(const TensorRef& t) const {
    return reinterpret_cast<T*>(bases[t.region] + t.offset);
  }
  void barrier() const {
    if (threads > 1) barrier_fn(barrier_arg);
  }
  // Runs `work` on all threads: on the team that runs the step, or on one made for it.
  template <typename F>
  void fork(F work) const {
    if (fork_fn != nullptr)
      fork_fn(*this, work);
    else
      work(*this);
  }
};

class Kernel {
 public:
  virtual ~Kernel() = default;
  virtual void run(const RunCtx& ctx) const = 0;
  // State was written from outside: what was kept of it is stale.
  virtual void state_written() {}
  // Memory the team shares while this step runs.
  virtual int64_t scratch_bytes(int /*threads*/) const { return 0; }
  // True: called by one thread outside the parallel region (libraries that open their own, host
  // calls).
  virtual bool top_level() const { return false; }
  // True: too small to share; the engine lets one thread run it with threads == 1.
  virtual bool single_thread() const { return false; }
  // True: data may make it call fail_run(); nothing is written to the state after that.
  virtual bool may_fail() const { return false; }
};

using KernelPtr = std::unique_ptr<Kernel>;

// Contiguous slice [begin, end) of `n` items for this thread, cut at multiples of `grain`.
inline std::pair<int64_t, int64_t> thread_range(const RunCtx& c, int64_t n, int64_t grain = 1) {
  int64_t chunks = (n + grain - 1) / grain;
  int64_t b = chunks * c.thread / c.threads * grain,
          e = chunks * (c.thread + 1) / c.threads * grain;
  return {b < n ? b : n, e < n ? e : n};
}

// A kernel from a callable `void(const RunCtx&)`; for families with nothing to prepare.
template <typename F>
KernelPtr make_kernel(F run, int64_t scratch = 0, bool single = false) {
  struct Lambda final : Kernel {
    Lambda(F f, int64_t s, bool one) : f_(std::move(f)), scratch_(s), single_(one) {}
    void run(const RunCtx& c) const override { f_(c); }
    int64_t scratch_bytes(int) const override { return scratch_; }
    bool single_thread() const override { return single_; }
    F f_;
    int64_t scratch_;
    bool single_;
  };
  return std::make_unique<Lambda>(std::move(run), scratch, single);
}

}  // namespace tessera
