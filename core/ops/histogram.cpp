// SPDX-License-Identifier: Apache-2.0
// histc(x, bins, min, max), whose range comes from the data if min equals max, and bincount(x,
// weights|none, size), which is an error at run time for values that a static size has no bin
// for. Threads count apart, integers are added, so the result is exact; weights are added in the
// order of the elements.
#include "kernels/histogram.h"

#include <algorithm>
#include <cmath>

#include "kernels/gather.h"
#include "ops/loops.h"
#include "ops/registry.h"
#include "ops/run_error.h"
#include "ops/widened.h"

namespace tessera {
namespace {

constexpr int64_t kSmall = 16384;  // elements below which one thread does it

// This thread's share of the elements in runs.
template <typename F>
void for_share(const RunCtx& c, const TensorRef& x, const Nest<1>& nest, F f) {
  const auto [begin, end] = thread_range(c, x.count(), 64);
  for_runs(nest, begin, end, [&](const auto& at, int64_t n) {
    f(kernels::CountRow{c.ptr<const std::byte>(x) + at[0] * size_of(x.dtype), nest.back().step[0],
                        n});
  });
}

// out[b] = sum of the threads' counts of b.
void add_counts(const RunCtx& c, const TensorRef& out, const int64_t* counts, int64_t bins) {
  const auto [begin, end] = thread_range(c, bins);
  const int64_t step = out.strides.empty() ? 1 : out.strides[0];
  for (int64_t b = begin; b < end; ++b) {
    int64_t total = 0;
    for (int t = 0; t < c.threads; ++t) total += counts[t * bins + b];
    if (out.dtype == DType::F32)
      c.ptr<float>(out)[b * step] = static_cast<float>(total);
    else if (out.dtype == DType::F64)
      c.ptr<double>(out)[b * step] = static_cast<double>(total);
    else
      c.ptr<int64_t>(out)[b * step] = total;
  }
}

class HistcKernel final : public Kernel {
 public:
  explicit HistcKernel(const StepDesc& d)
      : x_(d.inputs[d.args.operand(0)]),
        out_(d.outputs[0]),
        bins_(d.args.integer(1)),
        low_(d.args.real(2)),
        high_(d.args.real(3)),
        nest_(collapse(shared_loops<1>({&x_}))),
        fns_(kernels::histogram_fns(x_.dtype)) {
    user_check(fns_ != nullptr, "no histc kernel for {}", name_of(x_.dtype));
  }

  bool single_thread() const override { return x_.count() < kSmall; }
  bool may_fail() const override { return true; }
  int64_t scratch_bytes(int threads) const override {
    return threads * (bins_ * int64_t(sizeof(int64_t)) + int64_t(sizeof(Range)));
  }

  void run(const RunCtx& c) const override {
    auto* ranges = reinterpret_cast<Range*>(c.scratch);
    auto* counts = reinterpret_cast<int64_t*>(ranges + c.threads);
    double low = low_, high = high_;
    bool finite = true;
    if (low == high && x_.count() > 0) {
      Range& own = ranges[c.thread] = {HUGE_VAL, -HUGE_VAL, true};
      for_share(c, x_, nest_, [&](const kernels::CountRow& r) {
        own.finite = fns_->range(r, &own.low, &own.high) && own.finite;
      });
      c.barrier();
      low = HUGE_VAL;
      high = -HUGE_VAL;
      for (int t = 0; t < c.threads; ++t) {
        low = std::min(low, ranges[t].low);
        high = std::max(high, ranges[t].high);
        finite = finite && ranges[t].finite;
      }
      if (!finite && c.thread == 0)
        fail_run(c, "torch.histc: range of [{}, {}] is not finite", low, high);
    }
    if (low == high) {
      low -= 1;
      high += 1;
    }
    int64_t* own = counts + c.thread * bins_;
    std::fill(own, own + bins_, 0);
    if (finite)
      for_share(c, x_, nest_,
                [&](const kernels::CountRow& r) { fns_->count(r, low, high, bins_, own); });
    c.barrier();
    add_counts(c, out_, counts, bins_);
  }

 private:
  struct Range {
    alignas(64) double low;
    double high;
    bool finite;
  };
  TensorRef x_, out_;
  int64_t bins_;
  double low_, high_;
  Nest<1> nest_;
  const kernels::HistogramFns* fns_;
};

class BincountKernel final : public Kernel {
 public:
  explicit BincountKernel(const StepDesc& d)
      : x_(d.inputs[d.args.operand(0)]),
        out_(d.outputs[0]),
        weighted_(d.args.has(1)),
        bins_(d.args.integer(2)),
        nest_(collapse(shared_loops<1>({&x_}))) {
    if (weighted_) weights_ = d.inputs[d.args.operand(1)];
  }

  bool single_thread() const override { return weighted_ || x_.count() < kSmall; }
  bool may_fail() const override { return true; }
  int64_t scratch_bytes(int threads) const override {
    return weighted_ ? 0 : threads * bins_ * int64_t(sizeof(int64_t));
  }

  void run(const RunCtx& c) const override {
    if (weighted_) {
      weights_.dtype == DType::F32 ? add_weights<float>(c) : add_weights<double>(c);
      return;
    }
    auto* counts = reinterpret_cast<int64_t*>(c.scratch);
    int64_t* own = counts + c.thread * bins_;
    std::fill(own, own + bins_, 0);
    for_share(c, x_, nest_, [&](const kernels::CountRow& r) {
      const int64_t done = kernels::count_values(r, x_.dtype, bins_, own);
      if (done < r.n)
        refuse(c, kernels::read_index(static_cast<const std::byte*>(r.x), done * r.step, x_.dtype));
    });
    c.barrier();
    add_counts(c, out_, counts, bins_);
  }

 private:
  void refuse(const RunCtx& c, int64_t value) const {
    if (value < 0)
      fail_run(c, "bincount only supports non-negative integers, not {}", value);
    else
      fail_run(c,
               "bincount: {} needs a longer result than minlength={}, which is the size of the "
               "result in a compiled program",
               value, bins_);
  }

  template <typename T>
  void add_weights(const RunCtx& c) const {
    T* out = c.ptr<T>(out_);
    const int64_t step = out_.strides[0];
    for (int64_t b = 0; b < bins_; ++b) out[b * step] = 0;
    const T* w = c.ptr<const T>(weights_);
    for (int64_t i = 0; i < x_.count(); ++i) {
      const int64_t v =
          kernels::read_index(c.ptr<const std::byte>(x_), i * x_.strides[0], x_.dtype);
      if (v < 0 || v >= bins_) {
        refuse(c, v);
        return;
      }
      out[v * step] += w[i * weights_.strides[0]];
    }
  }

  TensorRef x_, weights_, out_;
  bool weighted_;
  int64_t bins_;
  Nest<1> nest_;
};

}  // namespace

std::vector<TensorType> infer_histogram(const Graph& g, const Node& n) {
  const TensorType& x = g.type(n.arg_value(0));
  if (n.op == Op::Histc) {
    user_check(n.args.integer(1) > 0, "torch.histc(): bins must be > 0");
    user_check(n.args.real(2) <= n.args.real(3), "torch.histc(): max must be larger than min");
    return {{x.dtype, {n.args.integer(1)}, {}}};
  }
  user_check(x.rank() == 1 && is_int(x.dtype), "[bincount] wants a vector of integers");
  const DType out = n.args.has(1) ? g.type(n.arg_value(1)).dtype : DType::I64;
  user_check(out == DType::I64 || out == DType::F32 || out == DType::F64,
             "[bincount] weights of type {}", name_of(out));
  return {{out, {n.args.integer(2)}, {}}};
}

Work work_histogram(const Graph& g, const Node& n) {
  int64_t bytes = g.type(n.results[0]).bytes();
  for (ValueId v : n.operands) bytes += g.type(v).bytes();
  return {WorkKind::kReduce, g.type(n.arg_value(0)).count() * (n.op == Op::Histc ? 4 : 1), bytes};
}

KernelPtr make_histogram(const StepDesc& desc) {
  return make_widened(desc, [](const StepDesc& d) -> KernelPtr {
    if (d.op == Op::Histc) return std::make_unique<HistcKernel>(d);
    return std::make_unique<BincountKernel>(d);
  });
}

bool accepts_histogram(Op, int, const TensorRef&) {
  return true;
}

}  // namespace tessera
