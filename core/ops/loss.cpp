// SPDX-License-Identifier: Apache-2.0
// nll_loss_forward(logp, target, weight, reduction, ignore_index) -> loss, total weight, and its
// gradient (grad, logp, target, weight, reduction, ignore_index, total weight). logp is [classes],
// [batch, classes] or [batch, classes, positions]. Targets are checked at run time.
#include <algorithm>

#include "kernels/gather.h"
#include "ops/registry.h"
#include "ops/run_error.h"
#include "ops/widened.h"

namespace tessera {
namespace {

enum Reduction : int64_t { kNone = 0, kMean = 1, kSum = 2 };

// Samples are numbered batch by batch; a tensor has them at two steps.
struct SampleSteps {
  int64_t batch = 0, position = 0;
  SampleSteps() = default;
  // `classes`: the tensor has their dim too, before that of the positions.
  SampleSteps(const TensorRef& t, bool classes) {
    const size_t rank = t.shape.size();
    const size_t second = classes ? 2 : 1;
    if (rank > (classes ? 1 : 0)) batch = t.strides[0];
    if (rank > second) position = t.strides[second];
  }
  int64_t at(int64_t sample, int64_t positions) const {
    return positions == 1 ? sample * batch
                          : sample / positions * batch + sample % positions * position;
  }
};

// One element of f32, f16 or bf16.
float value_at(const RunCtx& c, const TensorRef& t, int64_t i) {
  float v;
  widen_row(c.ptr<std::byte>(t) + i * size_of(t.dtype), t.dtype, 1, &v, 1);
  return v;
}
void put_at(const RunCtx& c, const TensorRef& t, int64_t i, float v) {
  narrow_row(&v, c.ptr<std::byte>(t) + i * size_of(t.dtype), t.dtype, 1, 1);
}

struct NllArgs {
  TensorRef logp, target, weight;
  bool has_weight = false;
  int64_t reduction, ignore, samples, classes, positions = 1, class_step;
  SampleSteps logp_at, target_at;

  // `first` is the position of logp among the arguments.
  NllArgs(const StepDesc& d, size_t first)
      : logp(d.inputs[d.args.operand(first)]),
        target(d.inputs[d.args.operand(first + 1)]),
        reduction(d.args.integer(first + 3)),
        ignore(d.args.integer(first + 4)),
        logp_at(logp, true),
        target_at(target, false) {
    const int w = d.args.operand_or_none(first + 2);
    if ((has_weight = w >= 0)) weight = d.inputs[w];
    const size_t class_dim = logp.shape.size() == 1 ? 0 : 1;
    classes = logp.shape[class_dim];
    class_step = logp.strides[class_dim];
    if (logp.shape.size() == 3) positions = logp.shape[2];
    samples = (class_dim == 1 ? logp.shape[0] : 1) * positions;
  }

  // Class of sample i; -1 to ignore it. A wrong class is reported and ignored.
  int64_t class_of_sample(const RunCtx& c, int64_t i) const {
    const int64_t t = kernels::read_index(c.ptr<const std::byte>(target),
                                          target_at.at(i, positions), target.dtype);
    if (t == ignore) return -1;
    if (t >= 0 && t < classes) return t;
    fail_run(c,
             "[nll_loss] target {} is out of bounds for {} classes. Check the labels: they must be "
             "classes from 0 to {}, or ignore_index ({})",
             t, classes, classes - 1, ignore);
    return -1;
  }
  float weight_of(const RunCtx& c, int64_t t) const {
    return has_weight ? value_at(c, weight, t * weight.strides[0]) : 1.0f;
  }
};

class NllLossKernel final : public Kernel {
 public:
  explicit NllLossKernel(const StepDesc& d)
      : a_(d, 0), loss_(d.outputs[0]), total_(d.outputs[1]), loss_at_(loss_, false) {}
  // A sample costs one element; sharing them pays late.
  bool single_thread() const override { return a_.samples <= kBlock; }
  bool may_fail() const override { return true; }
  int64_t scratch_bytes(int) const override {
    return blocks() * static_cast<int64_t>(sizeof(Sums));
  }

  void run(const RunCtx& c) const override {
    auto* sums = reinterpret_cast<Sums*>(c.scratch);
    const auto [begin, end] = thread_range(c, blocks());
    for (int64_t b = begin; b < end; ++b)
      sums[b] = block(c, b * kBlock, std::min(a_.samples, (b + 1) * kBlock));
    c.barrier();
    if (c.thread != 0) return;
    Sums all;
    for (int64_t b = 0; b < blocks(); ++b) {
      all.loss += sums[b].loss;
      all.weight += sums[b].weight;
    }
    const bool each = a_.reduction == kNone;
    if (!each)
      put_at(c, loss_, 0,
             static_cast<float>(a_.reduction == kMean ? all.loss / all.weight : all.loss));
    put_at(c, total_, 0, each ? 0.0f : static_cast<float>(all.weight));
  }

 private:
  static constexpr int64_t kBlock = 8192;  // samples that are added up together
  struct Sums {
    double loss = 0, weight = 0;
  };
  int64_t blocks() const { return (a_.samples + kBlock - 1) / kBlock; }

  Sums block(const RunCtx& c, int64_t begin, int64_t end) const {
    Sums out;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t t = a_.class_of_sample(c, i);
      const float w = t < 0 ? 0.0f : a_.weight_of(c, t);
      const int64_t at = a_.logp_at.at(i, a_.positions) + t * a_.class_step;
      const float term = t < 0 ? 0.0f : -w * value_at(c, a_.logp, at);
      if (a_.reduction == kNone) put_at(c, loss_, loss_at_.at(i, a_.positions), term);
      out.loss += term;
      out.weight += w;
    }
    return out;
  }

  NllArgs a_;
  TensorRef loss_, total_;
  SampleSteps loss_at_;
};

class NllLossGradKernel final : public Kernel {
 public:
  explicit NllLossGradKernel(const StepDesc& d)
      : a_(d, 1),
        grad_(d.inputs[d.args.operand(0)]),
        total_(d.inputs[d.args.operand(6)]),
        out_(d.outputs[0]),
        out_at_(out_, true),
        grad_at_(grad_, false) {}
  bool single_thread() const override { return out_.count() < 16384; }
  bool may_fail() const override { return true; }

  void run(const RunCtx& c) const override {
    const int64_t col = out_.strides[out_.shape.size() == 1 ? 0 : 1], size = size_of(out_.dtype);
    const auto [begin, end] = thread_range(c, a_.samples);
    std::byte* out = c.ptr<std::byte>(out_);
    if (col == 1 && a_.positions == 1) {  // each thread has rows of its own
      if (begin < end)
        kernels::zero_bytes(out + begin * out_at_.batch * size, (end - begin) * a_.classes * size);
    } else {
      const auto [b, e] = thread_range(c, out_.count(), 32);
      kernels::zero_bytes(out + b * size, (e - b) * size);
      c.barrier();
    }
    const float scale = a_.reduction == kMean ? value_at(c, total_, 0) : 1.0f;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t t = a_.class_of_sample(c, i);
      if (t < 0) continue;
      const float g = value_at(c, grad_, grad_at_.at(i, a_.positions));
      put_at(c, out_, out_at_.at(i, a_.positions) + t * col, -a_.weight_of(c, t) * g / scale);
    }
  }

 private:
  NllArgs a_;
  TensorRef grad_, total_, out_;
  SampleSteps out_at_, grad_at_;
};

}  // namespace

std::vector<TensorType> infer_loss(const Graph& g, const Node& n) {
  const size_t first = n.op == Op::NllLossGrad ? 1 : 0;
  const TensorType& x = g.type(n.arg_value(first));
  const TensorType& t = g.type(n.arg_value(first + 1));
  user_check(x.rank() >= 1 && x.rank() <= 3, "[nll_loss] needs one to three dims, got {}",
             x.rank());
  Dims samples = x.shape;
  const int64_t classes = x.rank() == 1 ? x.shape[0] : x.shape[1];
  samples.erase(samples.begin() + (x.rank() == 1 ? 0 : 1));
  user_check(is_float(x.dtype), "[nll_loss] needs a float tensor, got {}", name_of(x.dtype));
  user_check(is_int(t.dtype), "[nll_loss] needs integer targets, got {}", name_of(t.dtype));
  user_check(t.count() == product(samples), "[nll_loss] {} targets for {} samples", t.count(),
             product(samples));
  const ValueId w = n.arg_value_or_none(first + 2);
  user_check(w == kNoValue || g.type(w).count() == classes,
             "[nll_loss] weight has {} elements for {} classes",
             w == kNoValue ? 0 : g.type(w).count(), classes);
  const int64_t reduction = n.args.integer(first + 3);
  user_check(reduction >= 0 && reduction <= 2, "[nll_loss] there is no reduction {}", reduction);
  const bool each = reduction == kNone;
  if (n.op == Op::NllLossGrad) {
    const TensorType &gy = g.type(n.arg_value(0)), &total = g.type(n.arg_value(6));
    user_check(gy.count() == (each ? product(samples) : 1) && total.count() == 1,
               "[nll_loss] the gradient does not fit the loss");
    return {{x.dtype, x.shape, {}}};
  }
  return {{x.dtype, each ? samples : Dims{}, {}}, {x.dtype, {}, {}}};
}

Work work_loss(const Graph& g, const Node& n) {
  if (n.op == Op::NllLoss) {
    const TensorType& t = g.type(n.arg_value(1));
    return {WorkKind::kGather, 2 * t.count(), t.bytes() + t.count() * 4};
  }
  const TensorType& x = g.type(n.arg_value(1));
  return {WorkKind::kGather, x.count(), x.bytes()};
}

KernelPtr make_loss(const StepDesc& d) {
  user_check(d.outputs[0].dtype != DType::F64, "{} kernel cannot give f64", op_text(d.op));
  if (d.op == Op::NllLoss) return std::make_unique<NllLossKernel>(d);
  return std::make_unique<NllLossGradKernel>(d);
}

bool accepts_loss(Op, int, const TensorRef&) {
  return true;
}

}  // namespace tessera
