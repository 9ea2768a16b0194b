// SPDX-License-Identifier: Apache-2.0
// All threads run all turns, each its share of every step, and meet only where a step needs what
// another thread wrote. Bodies of steps that one thread runs make the loop one thread's step;
// bodies with steps at top level make it a step at top level, which launches the team for the
// others.
#include "runtime/flow_kernel.h"

#include <algorithm>
#include <cstring>

#include "base/arena.h"
#include "base/error.h"
#include "ops/flow.h"

namespace tessera {
namespace {

// A body as one thread runs it.
class LoadedBody {
 public:
  LoadedBody(LoadedSection loaded, const Section& section)
      : loaded_(std::move(loaded)), seconds_(seconds_of(section)) {}

  template <typename F>
  bool all(const F& holds) const {
    return std::all_of(loaded_.steps.begin(), loaded_.steps.end(),
                       [&](const LoadedStep& s) { return holds(*s.kernel); });
  }
  bool empty() const { return loaded_.steps.empty(); }
  bool single_thread() const {
    return all([](const Kernel& k) { return k.single_thread() && !k.top_level(); });
  }
  bool top_level() const {
    return !all([](const Kernel& k) { return !k.top_level(); });
  }
  bool may_fail() const {
    return !all([](const Kernel& k) { return !k.may_fail(); });
  }
  int64_t scratch_bytes(int threads) const {
    int64_t most = 0;
    for (const LoadedStep& s : loaded_.steps)
      most = std::max(most, s.kernel->scratch_bytes(s.single ? 1 : threads));
    return most;
  }
  void state_written() {
    for (const LoadedStep& s : loaded_.steps) s.kernel->state_written();
  }
  // How long a turn takes, roughly.
  double seconds() const { return seconds_; }

  // All steps once; false if the run is to end. `team` is this thread's part of the team, `solo`
  // the same as a team of one.
  bool run(RunCtx& team, RunCtx& solo) const {
    if (!run_steps(0, loaded_.steps.size(), team, solo)) return false;
    if (loaded_.barrier_after) team.barrier();
    return true;
  }

  // The same from top level.
  bool run_stretches(const RunCtx& ctx) const {
    for (const Stretch& s : loaded_.stretches) {
      if (!s.team) {
        RunCtx own = ctx;
        own.where = loaded_.steps[s.begin].where;
        loaded_.steps[s.begin].kernel->run(own);
        continue;
      }
      auto work = [&](const RunCtx& c) {
        RunCtx team = c, solo = alone(c);
        run_steps(s.begin, s.end, team, solo);
      };
      if (s.alone || ctx.control == nullptr)
        work(ctx);
      else
        ctx.control->launch(ctx, work);
    }
    return true;
  }

  static RunCtx alone(const RunCtx& c) {
    RunCtx out = c;
    out.thread = 0;
    out.threads = 1;
    return out;
  }

 private:
  bool run_steps(size_t begin, size_t end, RunCtx& team, RunCtx& solo) const {
    for (size_t i = begin; i < end; ++i) {
      const LoadedStep& s = loaded_.steps[i];
      if (s.check_before && team.control != nullptr) [[unlikely]] {
        if (team.control->stop(team)) return false;
      } else if (s.barrier_before) {
        team.barrier();
      }
      team.where = solo.where = s.where;
      if (!s.single)
        s.kernel->run(team);
      else if (team.thread == 0)
        s.kernel->run(solo);
    }
    return true;
  }

  static double seconds_of(const Section& section) {
    constexpr double kPerSecond = 1e10, kPerStep = 1e-7, kPerHostCall = 1e-5;
    double seconds = kPerStep;
    for (size_t i = 0; i < section.steps.size(); ++i) {
      const Work& w = section.work[i];
      seconds += static_cast<double>(std::max(w.flops, w.bytes)) / kPerSecond +
                 (section.steps[i].op == Op::HostCall ? kPerHostCall : kPerStep);
    }
    return seconds;
  }

  LoadedSection loaded_;
  double seconds_;
};

// What loops and branches have in common: a table of the regions that their bodies see, one for
// each thread, in front of the scratch memory of the steps.
class FlowKernel : public Kernel {
 public:
  explicit FlowKernel(const StepDesc& desc)
      : inputs_(desc.inputs), outputs_(desc.outputs), workspace_(desc.workspace) {}

  int64_t scratch_bytes(int threads) const override {
    int64_t most = 0;
    for (const LoadedBody& b : bodies_) most = std::max(most, b.scratch_bytes(threads));
    return tables_bytes(threads) + most;
  }
  bool single_thread() const override {
    return std::all_of(bodies_.begin(), bodies_.end(),
                       [](const LoadedBody& b) { return b.single_thread(); });
  }
  bool top_level() const override {
    return std::any_of(bodies_.begin(), bodies_.end(),
                       [](const LoadedBody& b) { return b.top_level(); });
  }
  bool may_fail() const override {
    return std::any_of(bodies_.begin(), bodies_.end(),
                       [](const LoadedBody& b) { return b.may_fail(); });
  }
  void state_written() override {
    for (LoadedBody& b : bodies_) b.state_written();
  }

 protected:
  // Threads may lie on lines of their own.
  int64_t table_bytes() const {
    return whole_lines(static_cast<int64_t>(sizeof(std::byte*)) *
                       static_cast<int64_t>(kFirstInputRegion + inputs_.size() + outputs_.size()));
  }
  int64_t tables_bytes(int threads) const { return threads * table_bytes(); }

  // This thread's table, with what is the same for all bodies.
  std::byte** table(const RunCtx& ctx) const {
    auto** bases = reinterpret_cast<std::byte**>(ctx.scratch + ctx.thread * table_bytes());
    bases[kArenaRegion] = ctx.ptr<std::byte>(workspace_);
    bases[kStateRegion] = nullptr;
    return bases;
  }
  RunCtx inside(const RunCtx& ctx, std::byte** bases) const {
    RunCtx out = ctx;
    out.bases = bases;
    out.scratch = ctx.scratch + tables_bytes(ctx.threads);
    return out;
  }

  std::vector<TensorRef> inputs_, outputs_;
  TensorRef workspace_;
  std::vector<LoadedBody> bodies_;
};

// What loops have in common: carries, which begin where they end, and a look at whether to go on
// every few milliseconds.
class LoopKernel : public FlowKernel {
 public:
  LoopKernel(const StepDesc& desc, const RunConfig& config, std::byte* arena, HostCalls& hosts)
      : FlowKernel(desc), parts_(loop_parts(desc.op, desc.args)) {
    const Section& section = *desc.bodies[0];
    const int xs = kFirstInputRegion + static_cast<int>(parts_.carries);
    const int end = kFirstInputRegion +
                    static_cast<int>(desc.inputs.size() + desc.outputs.size() - parts_.carries);
    TensorRef tested;
    if (desc.op == Op::While) {
      tested = desc.outputs[0];
      tested.region = kFirstInputRegion;
      tested.offset = 0;
    }
    // Captures lie between xs and ys; they are only read.
    bodies_.emplace_back(load_turns(section, config, arena, hosts, xs, end,
                                    desc.op == Op::While ? &tested : nullptr),
                         section);
    constexpr double kCheckSeconds = 2e-3;
    const double turns = kCheckSeconds / bodies_[0].seconds();
    check_every_ = static_cast<int64_t>(std::clamp(turns, 1.0, 1e6));
  }

 protected:
  // Turns as long as `more(turn)` says; `prepare(turn)` comes before each.
  template <typename More, typename Prepare>
  void run_turns(const RunCtx& ctx, std::byte** bases, const More& more,
                 const Prepare& prepare) const {
    RunCtx team = inside(ctx, bases), solo = LoadedBody::alone(team);
    const bool top = top_level();
    const LoadedBody& body = bodies_[0];
    int64_t unchecked = 0;
    for (int64_t turn = 0; more(turn); ++turn) {
      if (++unchecked > check_every_) [[unlikely]] {
        unchecked = 1;
        if (ctx.control != nullptr && ctx.control->stop(ctx)) return;
      }
      prepare(turn);
      if (!(top ? body.run_stretches(team) : body.run(team, solo))) return;
    }
  }

  // This thread's table when the first turn begins.
  std::byte** begin(const RunCtx& ctx) const {
    std::byte** bases = table(ctx);
    copy_carries(ctx);
    for (size_t i = 0; i < inputs_.size(); ++i)
      bases[kFirstInputRegion + i] =
          ctx.ptr<std::byte>(parts_.is_carry(i) ? outputs_[i] : inputs_[i]);
    return bases;
  }

  LoopParts parts_;

 private:
  void copy_carries(const RunCtx& ctx) const {
    bool copied = false;
    for (size_t i = 0; i < parts_.carries; ++i) {
      const TensorRef &from = inputs_[i], &to = outputs_[i];
      if (from.region == to.region && from.offset == to.offset) continue;
      const auto [begin, end] = thread_range(ctx, to.bytes(), 4096);
      if (begin < end)
        std::memcpy(ctx.ptr<std::byte>(to) + begin, ctx.ptr<std::byte>(from) + begin,
                    static_cast<size_t>(end - begin));
      copied = true;
    }
    if (copied) ctx.barrier();
  }

  int64_t check_every_ = 1;
};

class ScanKernel final : public LoopKernel {
 public:
  ScanKernel(const StepDesc& desc, const RunConfig& config, std::byte* arena, HostCalls& hosts)
      : LoopKernel(desc, config, arena, hosts) {
    for (size_t i = 0; i < desc.inputs.size(); ++i)
      if (parts_.is_x(i))
        slices_.push_back(
            {i, desc.inputs[i], desc.inputs[i].strides[0] * size_of(desc.inputs[i].dtype)});
    for (size_t i = parts_.carries; i < desc.outputs.size(); ++i)
      slices_.push_back({desc.inputs.size() + i - parts_.carries, desc.outputs[i],
                         desc.outputs[i].strides[0] * size_of(desc.outputs[i].dtype)});
  }

  void run(const RunCtx& ctx) const override {
    std::byte** bases = begin(ctx);
    std::byte** base = bases + kFirstInputRegion;
    if (bodies_[0].empty()) return;
    run_turns(
        ctx, bases, [&](int64_t turn) { return turn < parts_.count; },
        [&](int64_t turn) {
          const int64_t at = parts_.slice(turn);
          for (const Slice& s : slices_)
            base[s.region] = ctx.ptr<std::byte>(s.tensor) + at * s.bytes;
        });
  }

 private:
  struct Slice {
    size_t region;  // after the first of an input
    TensorRef tensor;
    int64_t bytes;
  };

  std::vector<Slice> slices_;
};

// All threads see the same flag: the body has barriers between what writes it and what they read.
class WhileKernel final : public LoopKernel {
 public:
  using LoopKernel::LoopKernel;

  void run(const RunCtx& ctx) const override {
    std::byte** bases = begin(ctx);
    const auto* go = ctx.ptr<uint8_t>(outputs_[0]);
    run_turns(
        ctx, bases, [&](int64_t) { return *go != 0; }, [](int64_t) {});
  }
};

class BranchKernel final : public FlowKernel {
 public:
  BranchKernel(const StepDesc& desc, const RunConfig& config, std::byte* arena, HostCalls& hosts)
      : FlowKernel(desc) {
    for (const auto& section : desc.bodies)
      bodies_.emplace_back(load_section(*section, config, arena, hosts), *section);
  }

  void run(const RunCtx& ctx) const override {
    std::byte** bases = table(ctx);
    std::byte** base = bases + kFirstInputRegion;
    for (size_t i = 1; i < inputs_.size(); ++i) *base++ = ctx.ptr<std::byte>(inputs_[i]);
    for (const TensorRef& t : outputs_) *base++ = ctx.ptr<std::byte>(t);
    const LoadedBody& body = bodies_[*ctx.ptr<uint8_t>(inputs_[0]) != 0 ? 0 : 1];
    RunCtx team = inside(ctx, bases), solo = LoadedBody::alone(team);
    if (top_level())
      body.run_stretches(team);
    else
      body.run(team, solo);
  }
};

}  // namespace

KernelPtr make_flow(const StepDesc& desc, const RunConfig& config, std::byte* arena,
                    HostCalls& hosts) {
  std::byte* own = arena + desc.workspace.offset;
  if (desc.op == Op::Scan) return std::make_unique<ScanKernel>(desc, config, own, hosts);
  if (desc.op == Op::While) return std::make_unique<WhileKernel>(desc, config, own, hosts);
  return std::make_unique<BranchKernel>(desc, config, own, hosts);
}

}  // namespace tessera
