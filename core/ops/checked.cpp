// SPDX-License-Identifier: Apache-2.0
// See checked.h.
#include "ops/checked.h"

#include <atomic>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "ops/loops.h"
#include "ops/op.h"
#include "ops/run_error.h"
#include "ops/widened.h"

namespace tessera {
namespace {

constexpr int kNan = 1, kInf = 2;

int kind_of(double v) {
  return std::isnan(v) ? kNan : std::isinf(v) ? kInf : 0;
}

// What this thread's share of a tensor holds.
int scan(const RunCtx& c, const TensorRef& t) {
  const auto [begin, end] = thread_range(c, t.count());
  const auto* base = c.ptr<std::byte>(t);
  int found = 0;
  for (int64_t i = begin; i < end; ++i) {
    int64_t rest = i, at = 0;
    for (size_t d = t.shape.size(); d-- > 0;) {
      at += rest % t.shape[d] * t.strides[d];
      rest /= t.shape[d];
    }
    if (t.dtype == DType::F64) {
      found |= kind_of(reinterpret_cast<const double*>(base)[at]);
    } else {
      float v;
      widen_row(base + at * size_of(t.dtype), t.dtype, 1, &v, 1);
      found |= kind_of(v);
    }
  }
  return found;
}

// The ops of a fused region, or the step's own.
std::string ops_of(const StepDesc& d) {
  std::string text = d.op == Op::Fused ? "" : std::string(op_text(d.op));
  for (size_t at = d.body.find(" = "); at != std::string::npos; at = d.body.find(" = ", at + 1)) {
    const size_t open = d.body.find('(', at);
    if (open == std::string::npos) break;
    const std::string name = d.body.substr(at + 3, open - at - 3);
    if (text.find(name) == std::string::npos) text += (text.empty() ? "" : ", ") + name;
  }
  return text;
}

bool has_infinite_literal(const StepDesc& d) {
  for (const Arg& a : d.args.list)
    if (a.kind == Arg::Kind::kFloat && std::isinf(a.f)) return true;
  return d.body.find("inf") != std::string::npos;
}

class CheckedKernel final : public Kernel {
 public:
  CheckedKernel(const StepDesc& d, KernelPtr kernel)
      : inner_(std::move(kernel)),
        inputs_(d.inputs),
        outputs_(d.outputs),
        ops_(ops_of(d)),
        infinite_(has_infinite_literal(d)) {}

  int64_t scratch_bytes(int threads) const override { return inner_->scratch_bytes(threads); }
  bool single_thread() const override { return inner_->single_thread(); }
  bool top_level() const override { return inner_->top_level(); }
  void state_written() override { inner_->state_written(); }
  bool may_fail() const override { return true; }

  void run(const RunCtx& ctx) const override {
    int before = infinite_ ? kInf : 0, after = 0;
    for (const TensorRef& t : inputs_)
      if (is_float(t.dtype)) before |= scan(ctx, t);
    seen_.fetch_or(before, std::memory_order_relaxed);
    ctx.barrier();  // the operands may be written over
    before = seen_.load(std::memory_order_relaxed);
    inner_->run(ctx);
    ctx.barrier();
    if (ctx.thread == 0) seen_.store(0, std::memory_order_relaxed);
    for (const TensorRef& t : outputs_)
      if (is_float(t.dtype)) after |= scan(ctx, t);
    if ((after & kNan) != 0 && (before & kNan) == 0)
      fail_run(ctx, "[{}] floating point exception: the result is not a number", ops_);
    else if ((after & kInf) != 0 && before == 0)
      fail_run(ctx, "[{}] floating point exception: overflow or division by zero", ops_);
  }

 private:
  KernelPtr inner_;
  std::vector<TensorRef> inputs_, outputs_;
  std::string ops_;
  bool infinite_;
  mutable std::atomic<int> seen_ = 0;
};

}  // namespace

KernelPtr make_checked(const StepDesc& desc, KernelPtr kernel) {
  bool any = false;
  for (const TensorRef& t : desc.outputs) any = any || is_float(t.dtype);
  return any ? std::make_unique<CheckedKernel>(desc, std::move(kernel)) : std::move(kernel);
}

}  // namespace tessera
