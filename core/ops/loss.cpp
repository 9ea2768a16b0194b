// SPDX-License-Identifier: Apache-2.0
// nll_loss_forward(logp, target, weight, reduction, ignore_index) -> loss, total weight, and its
// gradient (grad, logp, target, weight, reduction, ignore_index, total weight). Targets are checked
// at run time.
#include <cmath>

#include "kernels/gather.h"
#include "ops/registry.h"
#include "ops/run_error.h"
#include "ops/widened.h"

namespace tessera {
namespace {

enum Reduction : int64_t { kNone = 0, kMean = 1, kSum = 2 };

struct NllArgs {
  TensorRef logp, target, weight;
  bool has_weight = false;
  int64_t reduction, ignore, samples, classes;
  int64_t sample_step, class_step, target_step;

  // `first` is the position of logp among the arguments.
  NllArgs(const StepDesc& d, size_t first)
      : logp(d.inputs[d.args.operand(first)]),
        target(d.inputs[d.args.operand(first + 1)]),
        reduction(d.args.integer(first + 3)),
        ignore(d.args.integer(first + 4)) {
    const int w = d.args.operand(first + 2);
    if ((has_weight = w >= 0)) weight = d.inputs[w];
    const bool batched = logp.shape.size() == 2;
    samples = batched ? logp.shape[0] : 1;
    classes = logp.shape.back();
    sample_step = batched ? logp.strides[0] : 0;
    class_step = logp.strides.back();
    target_step = batched ? target.strides[0] : 0;
  }

  // Class of sample i; -1 to ignore it. A wrong class is reported and ignored.
  int64_t class_of_sample(const RunCtx& c, int64_t i) const {
    const int64_t t =
        kernels::read_index(c.ptr<const std::byte>(target), i * target_step, target.dtype);
    if (t == ignore) return -1;
    if (t >= 0 && t < classes) return t;
    fail_run(c,
             "[nll_loss] target {} is out of bounds for {} classes. Check the labels: they must be "
             "classes from 0 to {}, or ignore_index ({})",
             t, classes, classes - 1, ignore);
    return -1;
  }
  float weight_of(const RunCtx& c, int64_t t) const {
    return has_weight ? c.ptr<const float>(weight)[t * weight.strides[0]] : 1.0f;
  }
};

class NllLossKernel final : public Kernel {
 public:
  explicit NllLossKernel(const StepDesc& d) : a_(d, 0), loss_(d.outputs[0]), total_(d.outputs[1]) {}
  // A sample costs one element; sharing them never pays.
  bool single_thread() const override { return true; }
  bool may_fail() const override { return true; }

  void run(const RunCtx& c) const override {
    if (c.thread != 0) return;
    const float* x = c.ptr<const float>(a_.logp);
    float* loss = c.ptr<float>(loss_);
    const bool each = a_.reduction == kNone;
    const int64_t loss_step = loss_.strides.empty() ? 0 : loss_.strides[0];
    double sum = 0, total = 0;
    for (int64_t i = 0; i < a_.samples; ++i) {
      const int64_t t = a_.class_of_sample(c, i);
      const float w = t < 0 ? 0.0f : a_.weight_of(c, t);
      const float term = t < 0 ? 0.0f : -w * x[i * a_.sample_step + t * a_.class_step];
      if (each) loss[i * loss_step] = term;
      sum += term;
      total += w;
    }
    if (!each) *loss = static_cast<float>(a_.reduction == kMean ? sum / total : sum);
    *c.ptr<float>(total_) = each ? 0.0f : static_cast<float>(total);
  }

 private:
  NllArgs a_;
  TensorRef loss_, total_;
};

class NllLossGradKernel final : public Kernel {
 public:
  explicit NllLossGradKernel(const StepDesc& d)
      : a_(d, 1),
        grad_(d.inputs[d.args.operand(0)]),
        total_(d.inputs[d.args.operand(6)]),
        out_(d.outputs[0]) {}
  bool single_thread() const override { return out_.count() < 16384; }
  bool may_fail() const override { return true; }

  void run(const RunCtx& c) const override {
    const bool batched = out_.shape.size() == 2;
    const int64_t row = batched ? out_.strides[0] : 0, col = out_.strides.back();
    const auto [begin, end] = thread_range(c, a_.samples);
    std::byte* out = c.ptr<std::byte>(out_);
    if (col == 1) {
      if (begin < end) kernels::zero_bytes(out + begin * row * 4, (end - begin) * a_.classes * 4);
    } else {
      const auto [b, e] = thread_range(c, out_.count(), 16);
      kernels::zero_bytes(out + b * 4, (e - b) * 4);
      c.barrier();
    }
    const float* g = c.ptr<const float>(grad_);
    const float scale = a_.reduction == kMean ? *c.ptr<const float>(total_) : 1.0f;
    const int64_t g_step = a_.reduction == kNone && batched ? grad_.strides[0] : 0;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t t = a_.class_of_sample(c, i);
      if (t < 0) continue;
      c.ptr<float>(out_)[i * row + t * col] = -a_.weight_of(c, t) * g[i * g_step] / scale;
    }
  }

 private:
  NllArgs a_;
  TensorRef grad_, total_, out_;
};

}  // namespace

std::vector<TensorType> infer_loss(const Graph& g, const Node& n) {
  const size_t first = n.op == Op::NllLossGrad ? 1 : 0;
  const TensorType& x = g.type(n.arg_value(first));
  const TensorType& t = g.type(n.arg_value(first + 1));
  user_check(x.rank() == 1 || x.rank() == 2, "[nll_loss] needs one or two dims, got {}", x.rank());
  user_check(is_float(x.dtype), "[nll_loss] needs a float tensor, got {}", name_of(x.dtype));
  user_check(is_int(t.dtype), "[nll_loss] needs integer targets, got {}", name_of(t.dtype));
  user_check(t.count() == (x.rank() == 2 ? x.shape[0] : 1), "[nll_loss] {} targets for {} samples",
             t.count(), x.rank() == 2 ? x.shape[0] : 1);
  const ValueId w = n.arg_value(first + 2);
  user_check(w == kNoValue || g.type(w).count() == x.shape.back(),
             "[nll_loss] weight has {} elements for {} classes",
             w == kNoValue ? 0 : g.type(w).count(), x.shape.back());
  if (n.op == Op::NllLossGrad) return {{x.dtype, x.shape, {}}};
  const bool each = n.args.integer(3) == kNone && x.rank() == 2;
  return {{x.dtype, each ? Dims{x.shape[0]} : Dims{}, {}}, {x.dtype, {}, {}}};
}

Work work_loss(const Graph& g, const Node& n) {
  if (n.op == Op::NllLoss) {
    const TensorType& t = g.type(n.arg_value(1));
    return {WorkKind::kGather, 2 * t.count(), t.bytes() + t.count() * 4};
  }
  const TensorType& x = g.type(n.arg_value(1));
  return {WorkKind::kGather, x.count(), x.bytes()};
}

KernelPtr make_loss(const StepDesc& desc) {
  return make_widened(desc, [](const StepDesc& d) -> KernelPtr {
    invariant(d.outputs[0].dtype == DType::F32, "{} kernel cannot give {}", op_text(d.op),
              name_of(d.outputs[0].dtype));
    if (d.op == Op::NllLoss) return std::make_unique<NllLossKernel>(d);
    return std::make_unique<NllLossGradKernel>(d);
  });
}

bool accepts_loss(Op, int, const TensorRef&) {
  return true;
}

}  // namespace tessera
