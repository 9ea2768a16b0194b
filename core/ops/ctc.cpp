// SPDX-License-Identifier: Apache-2.0
// CTC loss of each sample and its gradient; ops.def has the calls. Targets are one row per sample
// or all in a line. Lengths and labels are data: wrong ones are reported and the sample left out.
#include "kernels/ctc.h"

#include <algorithm>
#include <limits>

#include "kernels/gather.h"
#include "ops/registry.h"
#include "ops/run_error.h"
#include "ops/widened.h"

namespace tessera {
namespace {

bool is_grad(Op op) {
  return op == Op::CtcLossGrad;
}

class CtcKernel final : public Kernel {
 public:
  explicit CtcKernel(const StepDesc& d) : grad_(is_grad(d.op)) {
    const size_t first = grad_ ? 1 : 0;
    auto input = [&](size_t arg) { return d.inputs[d.args.operand(arg)]; };
    logp_ = input(first), targets_ = input(first + 1);
    input_lengths_ = input(first + 2), target_lengths_ = input(first + 3);
    if (grad_) {
      gy_ = input(0), loss_ = input(5), alpha_ = input(6), out_ = d.outputs[0];
    } else {
      loss_ = d.outputs[0], alpha_ = d.outputs[1];
    }
    blank_ = d.args.integer(grad_ ? 7 : 4);
    zero_infinity_ = d.args.boolean(grad_ ? 8 : 5);
    steps_ = logp_.shape[0], batch_ = logp_.shape[1], classes_ = logp_.shape[2];
    states_ = alpha_.shape[2];
    labels_bytes_ = whole_lines(states_ * 4);
    thread_bytes_ = labels_bytes_ + 4 * kernels::ctc_scratch_floats(states_);
  }

  bool single_thread() const override { return steps_ * batch_ * (states_ + classes_) < 4096; }
  int64_t scratch_bytes(int threads) const override { return threads * thread_bytes_; }
  bool may_fail() const override { return true; }

  void run(const RunCtx& c) const override {
    const auto [begin, end] = thread_range(c, batch_);
    int64_t at = 0;  // first target of a sample, where they are in a line
    for (int64_t b = 0; b < end; ++b) {
      const int64_t length = length_of(c, target_lengths_, b);
      if (b >= begin) sample(c, b, at, length);
      at += std::clamp<int64_t>(length, 0, states_);  // a longer one has failed
    }
  }

 private:
  static int64_t length_of(const RunCtx& c, const TensorRef& t, int64_t b) {
    return kernels::read_index(c.ptr<const std::byte>(t), b * t.strides[0], t.dtype);
  }

  // States of a sample, or nothing if its data make no sense.
  bool labels_of(const RunCtx& c, int64_t b, int64_t at, int64_t length, int32_t* labels) const {
    const bool rows = targets_.shape.size() == 2;
    if (length < 0 || length > (states_ - 1) / 2 || (!rows && at + length > targets_.shape[0])) {
      fail_run(c, "[ctc_loss] a target of length {} does not fit the {} targets of the call",
               length, rows ? targets_.shape[1] : targets_.shape[0]);
      return false;
    }
    labels[0] = static_cast<int32_t>(blank_);
    for (int64_t i = 0; i < length; ++i) {
      const int64_t offset =
          rows ? b * targets_.strides[0] + i * targets_.strides[1] : (at + i) * targets_.strides[0];
      const int64_t label =
          kernels::read_index(c.ptr<const std::byte>(targets_), offset, targets_.dtype);
      if (label < 0 || label >= classes_) {
        fail_run(c, "[ctc_loss] target {} is out of bounds for {} classes", label, classes_);
        return false;
      }
      labels[2 * i + 1] = static_cast<int32_t>(label);
      labels[2 * i + 2] = static_cast<int32_t>(blank_);
    }
    return true;
  }

  void sample(const RunCtx& c, int64_t b, int64_t at, int64_t length) const {
    std::byte* mine = c.scratch + c.thread * thread_bytes_;
    auto* labels = reinterpret_cast<int32_t*>(mine);
    auto* scratch = reinterpret_cast<float*>(mine + labels_bytes_);
    kernels::CtcSample x;
    x.steps = length_of(c, input_lengths_, b);
    bool good = labels_of(c, b, at, length, labels);
    if (x.steps < 0 || x.steps > steps_) {
      fail_run(c, "[ctc_loss] an input of length {} in a batch of {} steps", x.steps, steps_);
      good = false;
    }
    if (!good) x.steps = 0, length = 0;
    x.logp = c.ptr<const float>(logp_) + b * logp_.strides[1];
    x.logp_step = logp_.strides[0], x.classes = classes_;
    x.labels = labels, x.states = 2 * length + 1;
    float* alpha = c.ptr<float>(alpha_) + b * alpha_.strides[0];
    float* loss = c.ptr<float>(loss_) + b * loss_.strides[0];
    if (!grad_) {
      *loss = kernels::ctc_kernels().forward(x, alpha, alpha_.strides[1], scratch);
      return;
    }
    float* out = c.ptr<float>(out_) + b * out_.strides[1];
    const bool impossible = *loss == std::numeric_limits<float>::infinity();
    const float fill =
        impossible && !zero_infinity_ ? std::numeric_limits<float>::quiet_NaN() : 0.0f;
    for (int64_t t = impossible ? 0 : x.steps; t < steps_; ++t)
      std::fill_n(out + t * out_.strides[0], classes_, t < x.steps ? fill : 0.0f);
    if (!impossible)
      kernels::ctc_kernels().backward(x, alpha, alpha_.strides[1], *loss,
                                      c.ptr<const float>(gy_)[b * gy_.strides[0]], out,
                                      out_.strides[0], scratch);
  }

  bool grad_, zero_infinity_ = false;
  TensorRef logp_, targets_, input_lengths_, target_lengths_, gy_, loss_, alpha_, out_;
  int64_t blank_ = 0, steps_ = 0, batch_ = 0, classes_ = 0, states_ = 0;
  int64_t labels_bytes_ = 0, thread_bytes_ = 0;
};

}  // namespace

std::vector<TensorType> infer_ctc(const Graph& g, const Node& n) {
  const size_t first = is_grad(n.op) ? 1 : 0;
  const TensorType& x = g.type(n.arg_value(first));
  user_check(x.rank() == 3 && is_float(x.dtype), "[ctc_loss] needs floats of [time, batch, class]");
  const int64_t batch = x.shape[1];
  const int64_t blank = n.args.integer(is_grad(n.op) ? 7 : 4);
  user_check(blank >= 0 && blank < x.shape[2], "[ctc_loss] blank must be in label range");
  const TensorType& targets = g.type(n.arg_value(first + 1));
  user_check(is_int(targets.dtype) && (targets.rank() == 1 || targets.rank() == 2),
             "[ctc_loss] needs integer targets of one or two dims");
  user_check(targets.rank() == 1 || targets.shape[0] == batch,
             "[ctc_loss] {} rows of targets for {} samples", targets.shape[0], batch);
  for (size_t arg : {first + 2, first + 3}) {
    const TensorType& t = g.type(n.arg_value(arg));
    user_check(is_int(t.dtype) && t.shape == Dims{batch},
               "[ctc_loss] needs one length per sample, as integers");
  }
  if (is_grad(n.op)) {
    const TensorType& alpha = g.type(n.arg_value(6));
    user_check(g.type(n.arg_value(0)).shape == Dims{batch} &&
                   g.type(n.arg_value(5)).same_logical({x.dtype, {batch}, {}}) &&
                   alpha.dtype == DType::F32 && alpha.rank() == 3 && alpha.shape[0] == batch &&
                   alpha.shape[1] == x.shape[0] && alpha.shape[2] % 2 == 1 &&
                   (targets.rank() == 1 || alpha.shape[2] / 2 <= targets.shape[1]),
               "[ctc_loss] the gradient does not belong to this loss");
    return {{x.dtype, x.shape, {}}};
  }
  const int64_t longest = n.args.integer(6);
  user_check(longest >= 0 && (targets.rank() == 1 || longest <= targets.shape[1]),
             "[ctc_loss] targets of up to {} labels do not fit", longest);
  return {{x.dtype, {batch}, {}}, {DType::F32, {batch, x.shape[0], 2 * longest + 1}, {}}};
}

Work work_ctc(const Graph& g, const Node& n) {
  const TensorType& alpha = is_grad(n.op) ? g.type(n.arg_value(6)) : g.type(n.results[1]);
  Work w;
  w.kind = WorkKind::kReduce;
  w.flops = alpha.count() * (is_grad(n.op) ? 100 : 80);  // three exponentials and a logarithm
  if (is_grad(n.op)) w.flops += g.type(n.results[0]).count() * 20;
  for (ValueId v : n.operands) w.bytes += g.type(v).bytes();
  for (ValueId v : n.results) w.bytes += g.type(v).bytes();
  return w;
}

KernelPtr make_ctc(const StepDesc& desc) {
  return make_widened(
      desc, [](const StepDesc& d) -> KernelPtr { return std::make_unique<CtcKernel>(d); });
}

bool accepts_ctc(Op, int, const TensorRef& physical) {
  if (physical.contiguous()) return true;
  return physical.shape.size() == 3 && physical.strides[2] == 1;
}

}  // namespace tessera
