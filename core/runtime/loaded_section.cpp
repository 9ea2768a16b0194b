// SPDX-License-Identifier: Apache-2.0
#include "runtime/loaded_section.h"

#include <algorithm>
#include <atomic>

#include "base/error.h"
#include "ops/checked.h"
#include "runtime/flow_kernel.h"
#include "runtime/team.h"

namespace tessera {
namespace {

// A range of memory that a step touches.
struct Access {
  int region;
  int64_t begin, end;
  bool write, solo;
};

constexpr int kScratchRegion = -1;

Access access_of(const TensorRef& t, bool write, bool solo) {
  int64_t last = 0;
  for (size_t i = 0; i < t.shape.size(); ++i) last += (t.shape[i] - 1) * t.strides[i];
  int64_t end = t.count() == 0 ? t.offset : t.offset + (last + 1) * size_of(t.dtype);
  return {t.region, t.offset, end, write, solo};
}

bool conflict(const Access& a, const Access& b) {
  if (a.region != b.region || (!a.write && !b.write) || (a.solo && b.solo)) return false;
  return a.begin < b.end && b.begin < a.end;
}

// Calls back into the table of host functions.
class HostKernel final : public Kernel {
 public:
  HostKernel(const HostCalls* hosts, int index, std::string target)
      : hosts_(hosts), index_(index), target_(std::move(target)) {}
  void run(const RunCtx&) const override {
    const auto& fn = hosts_->functions[index_];
    invariant(static_cast<bool>(fn), "host call {} was never bound", target_);
    fn();
  }
  bool top_level() const override { return true; }

 private:
  const HostCalls* hosts_;
  int index_;
  std::string target_;
};

void make_kernels(const Section& section, const RunConfig& config, std::byte* arena,
                  HostCalls& hosts, LoadedSection& out) {
  auto host = [&](const StepDesc& desc) -> KernelPtr {
    int index = static_cast<int>(hosts.infos.size());
    hosts.infos.push_back({index, desc, arena});
    hosts.functions.emplace_back();
    return std::make_unique<HostKernel>(&hosts, index, desc.target);
  };
  std::vector<std::exception_ptr> failures(section.steps.size());
  auto make = [&](size_t i) {
    const StepDesc& d = section.steps[i];
    LoadedStep& step = out.steps[i];
    step.where = d.where;
    try {
      if (!d.bodies.empty()) {  // whose steps are checked one by one
        step.kernel = make_flow(d, config, arena, hosts);
        return;
      }
      step.kernel = make_step(d, host);
      if (config.check_floats) step.kernel = make_checked(d, std::move(step.kernel));
    } catch (const UserError& e) {
      failures[i] = std::make_exception_ptr(UserError(e.what(), d.where));
    } catch (const std::bad_alloc&) {
      failures[i] = std::current_exception();
    } catch (const std::exception& e) {
      failures[i] = std::make_exception_ptr(
          InternalError(fmt::format("{} [{}]", e.what(), op_text(d.op)), d.where));
    }
  };
  // Steps with a body are compiled, which takes milliseconds each and may go on side by side;
  // libraries that the other steps call depend on the thread they are called from.
  auto compiled = [&](size_t i) { return !section.steps[i].body.empty(); };
  std::atomic<size_t> next{0};
  run_team(config.threads, [&](int) {
    for (size_t i; (i = next.fetch_add(1)) < section.steps.size();)
      if (compiled(i)) make(i);
  });
  for (size_t i = 0; i < section.steps.size(); ++i)
    if (!compiled(i)) make(i);
  for (const std::exception_ptr& failure : failures)
    if (failure) std::rethrow_exception(failure);
}

// Weights must not be touched once a step has refused its data, and Ctrl-C must not wait for the
// end of a long section: at such points all threads check, together, whether to go on.
void place_checks(const Section& section, LoadedSection& loaded) {
  constexpr double kFlopsPerSecond = 1e11, kBytesPerSecond = 1e10, kPollSeconds = 0.02;
  bool doubtful = false;
  double seconds = 0;
  for (size_t i = 0; i < loaded.steps.size(); ++i) {
    LoadedStep& s = loaded.steps[i];
    bool keeps = false;
    for (const TensorRef& t : section.steps[i].outputs) keeps |= t.region == kStateRegion;
    if (!s.kernel->top_level()) {
      s.poll_before = seconds > kPollSeconds;
      s.check_before = s.poll_before || (doubtful && keeps);
    }
    if (s.poll_before || s.kernel->top_level()) seconds = 0;
    if (s.check_before || s.kernel->top_level()) doubtful = false;
    doubtful |= s.kernel->may_fail();
    const Work& w = section.work[i];
    seconds += std::max(static_cast<double>(w.flops) / kFlopsPerSecond,
                        static_cast<double>(w.bytes) / kBytesPerSecond);
  }
}

// What a step touches.
std::vector<Access> accesses_of(const StepDesc& desc, const Kernel& k, int threads) {
  const bool solo = k.single_thread();
  std::vector<Access> out;
  for (const TensorRef& t : desc.inputs) out.push_back(access_of(t, false, solo));
  for (const TensorRef& t : desc.outputs) out.push_back(access_of(t, true, solo));
  if (!desc.bodies.empty()) out.push_back(access_of(desc.workspace, true, solo));
  const int64_t scratch = k.scratch_bytes(solo ? 1 : threads);
  if (scratch > 0) out.push_back({kScratchRegion, 0, scratch, true, solo});
  return out;
}

// A barrier stands before a step that touches memory another thread may still be using: `pending`
// is what the steps before it do, and then what is left of them for the next ones.
void place_barriers(const Section& section, int threads, LoadedSection& loaded,
                    std::vector<Access>& pending) {
  for (size_t i = 0; i < loaded.steps.size(); ++i) {
    const Kernel& k = *loaded.steps[i].kernel;
    loaded.steps[i].single = k.single_thread();
    if (k.top_level()) {  // the launch around it is a barrier
      pending.clear();
      continue;
    }
    const std::vector<Access> mine = accesses_of(section.steps[i], k, threads);
    bool hazard = loaded.steps[i].check_before || loaded.steps[i].barrier_before;
    for (const Access& a : mine)
      for (const Access& p : pending) hazard |= conflict(a, p);
    if (hazard) {
      loaded.steps[i].barrier_before = true;
      pending.clear();
    }
    pending.insert(pending.end(), mine.begin(), mine.end());
  }
}

void cut_stretches(LoadedSection& loaded) {
  for (size_t i = 0; i < loaded.steps.size(); ++i) {
    const Kernel& k = *loaded.steps[i].kernel;
    const bool team = !k.top_level();
    if (team && !loaded.stretches.empty() && loaded.stretches.back().team) {
      loaded.stretches.back().end = i + 1;
      loaded.stretches.back().alone &= k.single_thread();
    } else {
      loaded.stretches.push_back({i, i + 1, team, team && k.single_thread()});
    }
  }
}

}  // namespace

LoadedSection load_section(const Section& section, const RunConfig& config, std::byte* arena,
                           HostCalls& hosts) {
  LoadedSection out;
  out.steps.resize(section.steps.size());
  make_kernels(section, config, arena, hosts, out);
  place_checks(section, out);
  std::vector<Access> pending;
  place_barriers(section, config.threads, out, pending);
  cut_stretches(out);
  return out;
}

LoadedSection load_turns(const Section& section, const RunConfig& config, std::byte* arena,
                         HostCalls& hosts, int first_slice, int last_slice,
                         const TensorRef* tested) {
  LoadedSection out;
  out.steps.resize(section.steps.size());
  make_kernels(section, config, arena, hosts, out);
  place_checks(section, out);
  std::vector<Access> pending;
  if (tested != nullptr) pending.push_back(access_of(*tested, false, false));
  place_barriers(section, config.threads, out, pending);
  std::erase_if(pending,
                [&](const Access& a) { return a.region >= first_slice && a.region < last_slice; });
  if (tested != nullptr) {
    const Access test = access_of(*tested, false, false);
    for (const Access& p : pending) out.barrier_after |= conflict(test, p);
    if (out.barrier_after) pending.clear();
    pending.push_back(test);
  }
  place_barriers(section, config.threads, out, pending);
  cut_stretches(out);
  return out;
}

}  // namespace tessera
