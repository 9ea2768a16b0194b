// SPDX-License-Identifier: Apache-2.0
// Batch norm, training and evaluation, and its gradient. The compiler usually rewrites it to
// reductions and fused pointwise regions; this is the kernel for what it leaves. Work is cut by
// channel, so no sum crosses threads.
#include <algorithm>
#include <cmath>

#include "kernels/norm.h"
#include "ops/norm_impl.h"

namespace tessera {
namespace {

using kernels::NormKernels;
using kernels::Walk;
using kernels::WalkStep;

constexpr int64_t kLanes = 16;

// How one tensor is walked per channel: as rows of contiguous elements, or position by position.
struct ChannelWalk {
  int64_t rows = 1, step = 0, len = 1;
  Walk walk;
  WalkStep at;

  ChannelWalk(const Planes& p, PlaneMode mode) {
    if (mode == PlaneMode::kRows) {
      rows = p.batch, step = p.n, len = p.spatial;
    } else if (mode == PlaneMode::kBatch) {
      rows = p.spatial, step = p.s, len = p.batch;
    }
    walk = {p.batch, p.spatial};
    at = {p.n, p.s};
  }
};

struct Optional {
  bool present = false;
  TensorRef ref;
  Optional(const StepDesc& d, size_t arg) {
    const int k = d.args.operand_or_none(arg);
    if ((present = k >= 0)) ref = d.inputs[k];
  }
  float at(const RunCtx& c, int64_t i, float otherwise) const {
    return present ? c.ptr<const float>(ref)[i] : otherwise;
  }
};

class BatchNormKernel final : public Kernel {
 public:
  explicit BatchNormKernel(const StepDesc& d)
      : eval_op_(d.op == Op::BatchNormEval),
        x_(d.inputs[d.args.operand(0)]),
        y_(d.outputs[0]),
        w_(d, 1),
        b_(d, 2),
        running_mean_(d, 3),
        running_var_(d, 4),
        training_(!eval_op_ && d.args.boolean(5)),
        momentum_(static_cast<float>(d.args.real(eval_op_ ? 5 : 6))),
        eps_(static_cast<float>(d.args.real(eval_op_ ? 6 : 7))),
        xp_(require_planes(x_)),
        yp_(require_planes(y_)),
        mode_(plane_mode({xp_, yp_})),
        xw_(xp_, mode_),
        yw_(yp_, mode_) {
    if (!eval_op_) stats_.assign(d.outputs.begin() + 1, d.outputs.end());
    lanes_ = mode_ == PlaneMode::kChannels ? kLanes : 1;
  }

  bool single_thread() const override { return x_.count() < kNormSmall; }
  void run(const RunCtx& c) const override {
    const auto [begin, end] = thread_range(c, xp_.channels, lanes_);
    for (int64_t ch = begin; ch < end; ch += lanes_) channels(c, ch, std::min(lanes_, end - ch));
  }

 private:
  bool in_rows() const { return mode_ == PlaneMode::kRows || mode_ == PlaneMode::kBatch; }

  void keep(const RunCtx& c, size_t i, int64_t channel, float v) const {
    if (i < stats_.size() && stats_[i].count() > 0) c.ptr<float>(stats_[i])[channel] = v;
  }

  void channels(const RunCtx& c, int64_t ch, int64_t count) const {
    const NormKernels& k = kernels::norm_kernels();
    const float* x = c.ptr<const float>(x_) + ch * xp_.c;
    float* y = c.ptr<float>(y_) + ch * yp_.c;
    const int n = static_cast<int>(count);
    alignas(64) float mean[kLanes] = {}, var[kLanes] = {}, a[kLanes] = {}, b[kLanes] = {};
    if (training_) {
      if (in_rows())
        k.row_moments(x, xw_.rows, xw_.step, xw_.len, mean, var);
      else
        k.lane_moments(x, xw_.walk, xw_.at, n, mean, var);
    } else {
      for (int i = 0; i < n; ++i) {
        mean[i] = running_mean_.at(c, ch + i, 0.0f);
        var[i] = running_var_.at(c, ch + i, 1.0f);
      }
    }
    const auto total = static_cast<float>(xp_.batch * xp_.spatial);
    for (int i = 0; i < n; ++i) {
      const float rstd = 1.0f / std::sqrt((training_ ? std::max(var[i], 0.0f) : var[i]) + eps_);
      a[i] = rstd * w_.at(c, ch + i, 1.0f);
      b[i] = b_.at(c, ch + i, 0.0f);
      const float old_mean = running_mean_.at(c, ch + i, 0.0f);
      const float old_var = running_var_.at(c, ch + i, 1.0f);
      keep(c, 0, ch + i, mean[i]);
      keep(c, 1, ch + i, rstd);
      // The running variance is the unbiased one, the normalisation uses the biased one.
      const float unbiased = var[i] * (total / (total - 1.0f));
      keep(c, 2, ch + i, training_ ? old_mean + momentum_ * (mean[i] - old_mean) : old_mean);
      keep(c, 3, ch + i, training_ ? old_var + momentum_ * (unbiased - old_var) : old_var);
    }
    if (in_rows())
      k.row_affine(x, xw_.step, y, yw_.step, xw_.rows, xw_.len, mean[0], a[0], b[0]);
    else
      k.lane_affine(x, xw_.at, y, yw_.at, xw_.walk, n, mean, a, b);
  }

  bool eval_op_;
  TensorRef x_, y_;
  Optional w_, b_, running_mean_, running_var_;
  bool training_;
  float momentum_, eps_;
  Planes xp_, yp_;
  PlaneMode mode_;
  ChannelWalk xw_, yw_;
  std::vector<TensorRef> stats_;  // save_mean, save_rstd, new running mean, new running variance
  int64_t lanes_ = 1;
};

class BatchNormGradKernel final : public Kernel {
 public:
  explicit BatchNormGradKernel(const StepDesc& d)
      : g_(d.inputs[d.args.operand(0)]),
        x_(d.inputs[d.args.operand(1)]),
        w_(d, 2),
        running_mean_(d, 3),
        running_var_(d, 4),
        save_mean_(d, 5),
        save_rstd_(d, 6),
        training_(d.args.boolean(7)),
        eps_(static_cast<float>(d.args.real(8))),
        gp_(require_planes(g_)),
        xp_(require_planes(x_)) {
    const auto mask = d.args.ints(9);
    auto asked = [&](size_t i) {
      return (i >= mask.size() || mask[i] != 0) && i < d.outputs.size();
    };
    if ((has_dx_ = asked(0))) dx_ = d.outputs[0];
    if ((has_dw_ = asked(1))) dw_ = d.outputs[1];
    if ((has_db_ = asked(2))) db_ = d.outputs[2];
    dp_ = has_dx_ ? require_planes(dx_) : xp_;
    mode_ = plane_mode({gp_, xp_, dp_});
    lanes_ = mode_ == PlaneMode::kChannels ? kLanes : 1;
  }

  bool single_thread() const override { return x_.count() < kNormSmall; }
  void run(const RunCtx& c) const override {
    const auto [begin, end] = thread_range(c, xp_.channels, lanes_);
    for (int64_t ch = begin; ch < end; ch += lanes_) channels(c, ch, std::min(lanes_, end - ch));
  }

 private:
  void channels(const RunCtx& c, int64_t ch, int64_t count) const {
    const NormKernels& k = kernels::norm_kernels();
    const ChannelWalk gw(gp_, mode_), xw(xp_, mode_), dw(dp_, mode_);
    const bool rows = mode_ == PlaneMode::kRows || mode_ == PlaneMode::kBatch;
    const float* g = c.ptr<const float>(g_) + ch * gp_.c;
    const float* x = c.ptr<const float>(x_) + ch * xp_.c;
    const int n = static_cast<int>(count);
    alignas(64) float mean[kLanes] = {}, sg[kLanes], sx[kLanes], p[kLanes] = {}, q[kLanes] = {},
                      r[kLanes] = {};
    float rstd[kLanes] = {};
    for (int i = 0; i < n; ++i) {
      mean[i] = (training_ ? save_mean_ : running_mean_).at(c, ch + i, 0.0f);
      rstd[i] = training_ ? save_rstd_.at(c, ch + i, 1.0f)
                          : 1.0f / std::sqrt(running_var_.at(c, ch + i, 1.0f) + eps_);
    }
    if (rows)
      k.row_grad_sums(g, gw.step, x, xw.step, xw.rows, xw.len, mean[0], sg, sx);
    else
      k.lane_grad_sums(g, gw.at, x, xw.at, xw.walk, n, mean, sg, sx);
    const double inv = 1.0 / static_cast<double>(xp_.batch * xp_.spatial);
    for (int i = 0; i < n; ++i) {
      if (has_dw_) c.ptr<float>(dw_)[ch + i] = sx[i] * rstd[i];
      if (has_db_) c.ptr<float>(db_)[ch + i] = sg[i];
      const double rs = rstd[i], w = w_.at(c, ch + i, 1.0f);
      p[i] = static_cast<float>(rs * w);
      if (training_) {
        q[i] = static_cast<float>(-rs * rs * rs * w * sx[i] * inv);
        r[i] = static_cast<float>(-rs * w * sg[i] * inv);
      }
    }
    if (!has_dx_) return;
    float* dx = c.ptr<float>(dx_) + ch * dp_.c;
    if (rows)
      k.row_grad(g, gw.step, x, xw.step, dx, dw.step, xw.rows, xw.len, p[0], q[0], mean[0], r[0]);
    else
      k.lane_grad(g, gw.at, x, xw.at, dx, dw.at, xw.walk, n, p, q, mean, r);
  }

  TensorRef g_, x_, dx_, dw_, db_;
  Optional w_, running_mean_, running_var_, save_mean_, save_rstd_;
  bool training_;
  float eps_;
  Planes gp_, xp_, dp_;
  PlaneMode mode_ = PlaneMode::kScattered;
  int64_t lanes_ = 1;
  bool has_dx_ = false, has_dw_ = false, has_db_ = false;
};

}  // namespace

KernelPtr make_batch_norm(const StepDesc& d) {
  if (d.op == Op::BatchNormGrad) return std::make_unique<BatchNormGradKernel>(d);
  return std::make_unique<BatchNormKernel>(d);
}

}  // namespace tessera
