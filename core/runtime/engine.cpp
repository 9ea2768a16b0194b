// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "base/error.h"
#include "kernels/half.h"
#include "ops/checked.h"
#include "ops/run_error.h"
#include "runtime/clock.h"
#include "runtime/denormals.h"
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

using Widen = void (*)(const uint16_t*, float*, int64_t);
using Narrow = void (*)(const float*, uint16_t*, int64_t);

// Rounded after each addition, as a tensor of that type would be.
void add_half_in_place(void* sum, const void* x, int64_t count, Widen widen, Narrow narrow) {
  constexpr int64_t kBlock = 64;
  auto* s = static_cast<uint16_t*>(sum);
  auto* v = static_cast<const uint16_t*>(x);
  for (int64_t i = 0; i < count; i += kBlock) {
    const int64_t n = std::min(kBlock, count - i);
    float a[kBlock], b[kBlock];
    widen(s + i, a, n);
    widen(v + i, b, n);
    for (int64_t k = 0; k < n; ++k) a[k] += b[k];
    narrow(a, s + i, n);
  }
}

template <typename T>
void add_in_place(void* sum, const void* x, int64_t count) {
  auto* s = static_cast<T*>(sum);
  auto* v = static_cast<const T*>(x);
  for (int64_t i = 0; i < count; ++i) s[i] = static_cast<T>(s[i] + v[i]);
}

void accumulate_output(const PortDesc& port, void* sum, const void* x) {
  int64_t n = product(port.shape);
  const kernels::HalfKernels& half = kernels::half_kernels();
  switch (port.dtype) {
    case DType::F32:
      return add_in_place<float>(sum, x, n);
    case DType::F64:
      return add_in_place<double>(sum, x, n);
    case DType::F16:
      return add_half_in_place(sum, x, n, half.widen_f16, half.narrow_f16);
    case DType::BF16:
      return add_half_in_place(sum, x, n, half.widen_bf16, half.narrow_bf16);
    case DType::Bool:
      return add_in_place<bool>(sum, x, n);
    case DType::I64:
      return add_in_place<int64_t>(sum, x, n);
    case DType::I32:
      return add_in_place<int32_t>(sum, x, n);
    case DType::I16:
      return add_in_place<int16_t>(sum, x, n);
    case DType::I8:
      return add_in_place<int8_t>(sum, x, n);
    case DType::U8:
      return add_in_place<uint8_t>(sum, x, n);
    default:
      throw UserError(
          fmt::format("[output] OutputMode.Sum cannot add {} values; return them as float32 or use "
                      "OutputMode.All",
                      name_of(port.dtype)));
  }
}

// Calls back into the engine's table of host functions.
class HostKernel final : public Kernel {
 public:
  HostKernel(const std::vector<std::function<void()>>* fns, int index, std::string target)
      : fns_(fns), index_(index), target_(std::move(target)) {}
  void run(const RunCtx&) const override {
    const auto& fn = (*fns_)[index_];
    invariant(static_cast<bool>(fn), "host call {} was never bound", target_);
    fn();
  }
  bool top_level() const override { return true; }

 private:
  const std::vector<std::function<void()>>* fns_;
  int index_;
  std::string target_;
};

}  // namespace

Engine::Engine(Program program, RunConfig config)
    : program_(std::move(program)), config_(config), process_(getpid()) {
  config_.threads = std::max(1, config_.threads);
  rules_ = config_.outputs;
  rules_.resize(program_.outputs.size(), config_.output);
  double bytes =
      static_cast<double>(program_.arena_bytes) + static_cast<double>(program_.state_bytes);
  for (size_t i = 0; i < rules_.size(); ++i)
    bytes += static_cast<double>(program_.outputs[i].bytes()) *
             static_cast<double>(config_.replicas) *
             (rules_[i].mode == OutputMode::kAll ? static_cast<double>(config_.steps()) : 1.0);
  check_memory(static_cast<int64_t>(std::min(bytes, 9e18)));
  const bool several = !program_.tasks.empty();
  arena_ =
      Arena(std::max<int64_t>(several ? program_.update_arena_bytes : program_.arena_bytes, 64));
  state_ = Arena(std::max<int64_t>(program_.state_bytes, 64));
  barrier_ = std::make_unique<Barrier>(config_.threads);
  fixed_bases_.assign(kFirstInputRegion + program_.inputs.size() + program_.outputs.size(),
                      nullptr);
  fixed_bases_[kArenaRegion] = loading_arena_ = arena_.data();
  fixed_bases_[kStateRegion] = state_.data();
  bases_ = fixed_bases_;
  micro_ = load(program_.micro);
  if (several) load_tasks();
  update_ = load(program_.update);
  int64_t scratch = 0;
  for (const Loaded* l : all_loaded())
    for (const Step& s : l->steps) {
      scratch_per_thread_ = std::max(scratch_per_thread_, s.kernel->scratch_bytes(1));
      scratch = std::max(scratch,
                         s.kernel->scratch_bytes(s.kernel->single_thread() ? 1 : config_.threads));
    }
  scratch_per_thread_ = whole_lines(scratch_per_thread_);
  if (std::any_of(groups_.begin(), groups_.end(), [](const Group& g) { return !!g.schedule; }))
    scratch = std::max(scratch, config_.threads * scratch_per_thread_);
  scratch_ = Arena(std::max<int64_t>(scratch, 64));
  for (const StateDesc& s : program_.states)
    if (s.name == "rng") rng_offset_ = s.offset;
  int64_t aside = 0;
  for (size_t i = 0; i < rules_.size(); ++i) {
    aside_.push_back(aside);
    if (rules_[i].mode == OutputMode::kSum || rules_[i].mode == OutputMode::kEveryN)
      aside += whole_lines(program_.outputs[i].bytes());
  }
  if (aside > 0) sums_ = Arena(aside);
  replicas_ = ReplicaStates(program_, config_, state_.data());
  times_.reserve(static_cast<size_t>(config_.steps() * config_.replicas));
}

Engine::~Engine() = default;

Engine::Loaded Engine::load(const Section& section) {
  Loaded out;
  out.steps.resize(section.steps.size());
  auto host = [&](const StepDesc& desc) -> KernelPtr {
    int index = static_cast<int>(host_calls_.size());
    host_calls_.push_back({index, desc, loading_arena_});
    host_fns_.emplace_back();
    return std::make_unique<HostKernel>(&host_fns_, index, desc.target);
  };
  std::vector<std::exception_ptr> failures(section.steps.size());
  auto make = [&](size_t i) {
    const StepDesc& d = section.steps[i];
    out.steps[i].where = d.where;
    try {
      out.steps[i].kernel = make_step(d, host);
      if (config_.check_floats)
        out.steps[i].kernel = make_checked(d, std::move(out.steps[i].kernel));
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
  // libraries behind the other steps look at the thread they are called from.
  auto compiled = [&](size_t i) { return !section.steps[i].body.empty(); };
  std::atomic<size_t> next{0};
  run_team(config_.threads, [&](int) {
    for (size_t i; (i = next.fetch_add(1)) < section.steps.size();)
      if (compiled(i)) make(i);
  });
  for (size_t i = 0; i < section.steps.size(); ++i)
    if (!compiled(i)) make(i);
  for (const std::exception_ptr& failure : failures)
    if (failure) std::rethrow_exception(failure);
  place_checks(section, out);
  place_barriers(section, out);
  for (size_t i = 0; i < out.steps.size(); ++i) {
    bool team = !out.steps[i].kernel->top_level();
    if (team && !out.stretches.empty() && out.stretches.back().team)
      out.stretches.back().end = i + 1;
    else
      out.stretches.push_back({i, i + 1, team});
  }
  return out;
}

// Weights must not be touched once a step has refused its data, and Ctrl-C must not wait for the
// end of a long section: at such places all threads look, together, whether to go on.
void Engine::place_checks(const Section& section, Loaded& loaded) const {
  constexpr double kFlopsPerSecond = 1e11, kBytesPerSecond = 1e10, kPollSeconds = 0.02;
  bool doubtful = false;
  double seconds = 0;
  for (size_t i = 0; i < loaded.steps.size(); ++i) {
    Step& s = loaded.steps[i];
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

// A barrier stands before a step that touches memory another thread may still be using.
void Engine::place_barriers(const Section& section, Loaded& loaded) const {
  std::vector<Access> pending;
  for (size_t i = 0; i < loaded.steps.size(); ++i) {
    const Kernel& k = *loaded.steps[i].kernel;
    if (k.top_level()) {  // the launch around it is a barrier
      pending.clear();
      continue;
    }
    bool solo = k.single_thread();
    std::vector<Access> mine;
    for (const TensorRef& t : section.steps[i].inputs) mine.push_back(access_of(t, false, solo));
    for (const TensorRef& t : section.steps[i].outputs) mine.push_back(access_of(t, true, solo));
    int64_t scratch = k.scratch_bytes(solo ? 1 : config_.threads);
    if (scratch > 0) mine.push_back({kScratchRegion, 0, scratch, true, solo});
    bool hazard = loaded.steps[i].check_before;
    for (const Access& a : mine)
      for (const Access& p : pending) hazard |= conflict(a, p);
    if (hazard) {
      loaded.steps[i].barrier_before = true;
      pending.clear();
    }
    pending.insert(pending.end(), mine.begin(), mine.end());
  }
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
  for (Loaded* l : all_loaded())
    for (Step& step : l->steps) step.kernel->state_written();
}

void Engine::read_state(const std::string& name, void* to, int64_t bytes) const {
  const StateDesc& s = find_state(name);
  const int64_t need = product(state_shape(s)) * size_of(s.dtype);
  user_check(bytes == need, "[state] \"{}\" has {} bytes, {} were asked", name, need, bytes);
  user_check(to || need == 0, "[memory] there is no memory on the CPU for \"{}\"", name);
  replicas_.read(s, static_cast<std::byte*>(to));
}

void Engine::run_stretch(const Loaded& loaded, const Stretch& stretch, int threads,
                         const std::function<bool()>& poll) {
  auto decide = [&] { leave_ = stop_.load(std::memory_order_relaxed) || errors_.any(); };
  auto body = [&](int thread) {
    FlushDenormals flush;
    RunCtx team{thread,
                threads,
                bases_.data(),
                scratch_.data(),
                [](void* b) { static_cast<Barrier*>(b)->wait(); },
                barrier_.get(),
                &errors_};
    RunCtx solo = team;
    solo.thread = 0;
    solo.threads = 1;
    auto run_step = [&](const Step& s) {
      team.where = solo.where = s.where;
      if (!s.kernel->single_thread())
        s.kernel->run(team);
      else if (thread == 0)
        s.kernel->run(solo);
    };
    for (size_t i = stretch.begin; i < stretch.end; ++i) {
      const Step& s = loaded.steps[i];
      if (s.check_before) [[unlikely]] {
        if (s.poll_before && thread == 0 && poll && poll()) stop_.store(true);
        if (threads == 1)
          decide();
        else
          barrier_->wait(decide);
        if (leave_) return;
      } else if ((s.barrier_before || profiling_) && threads > 1) {
        barrier_->wait();
      }
      if (!profiling_) {
        run_step(s);
        continue;
      }
      auto start = std::chrono::steady_clock::now();
      run_step(s);
      if (threads > 1) barrier_->wait();
      if (thread == 0) keep_best(s.best_us, start);
    }
  };
  run_team(threads, body);
}

std::vector<Engine::Loaded*> Engine::all_loaded() {
  std::vector<Loaded*> out{&micro_};
  for (Task& t : tasks_) out.push_back(&t.loaded);
  out.push_back(&update_);
  return out;
}

std::vector<double> Engine::step_times() const {
  std::vector<double> out;
  size_t steps = 0;
  for (const Loaded* l : const_cast<Engine*>(this)->all_loaded()) {
    steps += l->steps.size();
    for (const Step& s : l->steps)
      if (s.best_us >= 0) out.push_back(s.best_us);
  }
  return out.size() == steps ? out : std::vector<double>{};
}

void Engine::check_errors() {
  if (stop_.load(std::memory_order_relaxed))
    throw Interrupted("the run was interrupted; weights may be from the middle of a step");
  if (auto error = errors_.take()) throw UserError(error->message, error->where);
}

// OpenMP may give fewer threads than asked, and a forked child has none of its parent's: a barrier
// that waits for them would never open.
int Engine::team_size() const {
  if (getpid() != process_ || omp_get_dynamic() ||
      omp_get_active_level() >= omp_get_max_active_levels())
    return 1;
  return std::min(config_.threads, omp_get_thread_limit());
}

// What a step at top level does itself, before and after the library that opens its own region.
static void fork_team(const RunCtx& ctx, const std::function<void(const RunCtx&)>& work) {
#pragma omp parallel
  {
    RunCtx own = ctx;
    own.thread = omp_get_thread_num();
    own.threads = omp_get_num_threads();
    own.fork_fn = nullptr;
    work(own);
  }
}

void Engine::run_section(const Loaded& loaded, const std::function<bool()>& poll) {
  for (const Stretch& s : loaded.stretches) {
    bool alone = team_ == 1;
    if (s.team && !alone) {
      alone = true;
      for (size_t i = s.begin; i < s.end && alone; ++i)
        alone = loaded.steps[i].kernel->single_thread();
    }
    if (s.team) {
      run_stretch(loaded, s, alone ? 1 : team_, poll);
    } else {
      RunCtx ctx{0, 1, bases_.data(), scratch_.data(), nullptr, nullptr, &errors_};
      if (!alone) ctx.fork_fn = fork_team;
      auto start = std::chrono::steady_clock::now();
      loaded.steps[s.begin].kernel->run(ctx);
      if (profiling_) keep_best(loaded.steps[s.begin].best_us, start);
    }
    if (poll && poll()) stop_.store(true);
    check_errors();
  }
}

void Engine::run(const std::vector<const void*>& inputs, const std::vector<void*>& outputs,
                 const std::function<bool()>& poll) {
  invariant(inputs.size() == program_.inputs.size() && outputs.size() == program_.outputs.size(),
            "run got {} inputs and {} outputs, the program has {} and {}", inputs.size(),
            outputs.size(), program_.inputs.size(), program_.outputs.size());
  for (size_t i = 0; i < inputs.size(); ++i)
    user_check(inputs[i] || program_.inputs[i].bytes() == 0,
               "[memory] input {} has no memory on the CPU", program_.inputs[i].name);
  for (size_t i = 0; i < outputs.size(); ++i)
    user_check(outputs[i] || program_.outputs[i].bytes() == 0,
               "[memory] there is no memory on the CPU for output {}", i);
  stop_.store(false);
  errors_.take();  // of a run that was interrupted
  team_ = team_size();
  barrier_->resize(team_);
  times_.clear();
  inputs_ = &inputs;
  outputs_ = &outputs;
  const auto start = std::chrono::steady_clock::now();
  if (!tasks_.empty()) {
    run_tasks(poll);
    last_run_seconds_ = seconds_since(start);
    return;
  }
  for (int64_t step = 0; step < config_.steps(); ++step) {
    for (int64_t r = 0; r < config_.replicas; ++r) run_micro(step, r, poll);
    const bool last = (step + 1) % config_.gradient_accumulation == 0;
    if (last && !update_.steps.empty()) replicas_.update([&] { run_section(update_, poll); });
  }
  last_run_seconds_ = seconds_since(start);
}

std::byte* Engine::input_at(int64_t input, int64_t step, int64_t replica) const {
  const int64_t groups = config_.replicas / config_.input_group;
  const int64_t group =
      replica_group(replica, config_.replicas, config_.input_group, config_.orthogonal_groups);
  return const_cast<std::byte*>(static_cast<const std::byte*>((*inputs_)[input])) +
         (step * groups + group) * program_.inputs[input].bytes();
}

std::byte* Engine::kept_output(size_t output, int64_t at, int64_t replica) const {
  return static_cast<std::byte*>((*outputs_)[output]) +
         (at * config_.replicas + replica) * program_.outputs[output].bytes();
}

// Where an output of a micro-batch is written.
std::byte* Engine::output_at(size_t output, int64_t step, int64_t replica) const {
  const auto [mode, period] = rules_[output];
  const int64_t iteration = step / config_.gradient_accumulation;
  switch (mode) {
    case OutputMode::kAll:
      return kept_output(output, step, replica);
    case OutputMode::kSum:
      return step > 0 ? sums_.data() + aside_[output] : kept_output(output, 0, replica);
    case OutputMode::kEveryN:
      if ((iteration + 1) % period != 0) return sums_.data() + aside_[output];
      return kept_output(
          output,
          iteration / period * config_.gradient_accumulation + step % config_.gradient_accumulation,
          replica);
    default:
      return kept_output(output, 0, replica);
  }
}

void Engine::add_to_sum(size_t output, int64_t step, int64_t replica, const std::byte* from) {
  if (rules_[output].mode == OutputMode::kSum && step > 0)
    accumulate_output(program_.outputs[output], kept_output(output, 0, replica), from);
}

void Engine::run_micro(int64_t step, int64_t replica, const std::function<bool()>& poll) {
  MicroTimes times;
  times.input = times.input_complete = seconds_since(loaded_);
  for (size_t i = 0; i < program_.inputs.size(); ++i)
    bases_[kFirstInputRegion + i] = input_at(static_cast<int64_t>(i), step, replica);
  std::byte** out = bases_.data() + kFirstInputRegion + program_.inputs.size();
  for (size_t i = 0; i < program_.outputs.size(); ++i) out[i] = output_at(i, step, replica);
  replicas_.enter(replica);
  run_section(micro_, poll);
  replicas_.leave(replica);
  times.output = seconds_since(loaded_);
  for (size_t i = 0; i < program_.outputs.size(); ++i) add_to_sum(i, step, replica, out[i]);
  if (rng_offset_ >= 0) ++reinterpret_cast<int64_t*>(state_.data() + rng_offset_)[1];
  times.output_complete = seconds_since(loaded_);
  times_.push_back(times);
}

}  // namespace tessera
