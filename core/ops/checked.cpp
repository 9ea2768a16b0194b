// SPDX-License-Identifier: Apache-2.0
// See checked.h.
#include "ops/checked.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ops/loops.h"
#include "ops/op.h"
#include "ops/run_error.h"
#include "ops/widened.h"

namespace tessera {
namespace {

constexpr int kNan = 1, kInf = 2, kInfDivisor = 4;

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

// The op of a region that holds one, or the step's own.
std::string op_of(const StepDesc& d) {
  const size_t at = d.op == Op::Fused ? d.body.find(" = ") : std::string::npos;
  if (at == std::string::npos) return std::string(op_text(d.op));
  return d.body.substr(at + 3, d.body.find('(', at) - at - 3);
}

bool is_one_of(const std::string& op, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), op) != names.end();
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
        op_(op_of(d)),
        infinite_(has_infinite_literal(d)),
        compares_(is_one_of(op_, {"lt", "le", "gt", "ge"})),
        divides_(is_one_of(op_, {"div", "reciprocal"})) {}

  int64_t scratch_bytes(int threads) const override { return inner_->scratch_bytes(threads); }
  bool single_thread() const override { return inner_->single_thread(); }
  bool top_level() const override { return inner_->top_level(); }
  void state_written() override { inner_->state_written(); }
  bool may_fail() const override { return true; }

  void run(const RunCtx& ctx) const override {
    int before = infinite_ ? kInf : 0, after = 0;
    for (const TensorRef& t : inputs_)
      if (is_float(t.dtype)) {
        const int found = scan(ctx, t);
        before |= found;
        if (divides_ && &t == &inputs_.back() && (found & kInf) != 0) before |= kInfDivisor;
      }
    seen_.fetch_or(before, std::memory_order_relaxed);
    ctx.barrier();  // the operands may be written over
    before = seen_.load(std::memory_order_relaxed);
    inner_->run(ctx);
    ctx.barrier();
    if (ctx.thread == 0) seen_.store(0, std::memory_order_relaxed);
    for (const TensorRef& t : outputs_)
      if (is_float(t.dtype)) after |= scan(ctx, t);
    if (compares_ && (before & kNan) != 0)
      fail_run(ctx, "[{}] floating point exception: comparison with not a number", op_);
    else if ((before & kInfDivisor) != 0)
      fail_run(ctx, "[{}] floating point exception: division by infinity", op_);
    else if ((after & kNan) != 0 && (before & kNan) == 0)
      fail_run(ctx, "[{}] floating point exception: the result is not a number", op_);
    else if ((after & kInf) != 0 && before == 0)
      fail_run(ctx, "[{}] floating point exception: overflow or division by zero", op_);
  }

 private:
  KernelPtr inner_;
  std::vector<TensorRef> inputs_, outputs_;
  std::string op_;
  bool infinite_, compares_, divides_;
  mutable std::atomic<int> seen_ = 0;
};

}  // namespace

KernelPtr make_checked(const StepDesc& desc, KernelPtr kernel) {
  bool any = false;
  for (const TensorRef& t : desc.inputs) any = any || is_float(t.dtype);
  for (const TensorRef& t : desc.outputs) any = any || is_float(t.dtype);
  return any ? std::make_unique<CheckedKernel>(desc, std::move(kernel)) : std::move(kernel);
}

}  // namespace tessera
