// SPDX-License-Identifier: Apache-2.0
// Group norm in row-major, channels-last and batch-in-lanes order. A unit of work is one group of
// one sample, or of sixteen samples when they lie in the lanes; tensors of unlike orders go through
// the lane code one sample at a time.
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

struct GroupShape {
  int64_t batch, channels, spatial, groups, depth;  // depth: channels of a group
  PlaneMode mode;
  int64_t lanes;   // samples in the lanes
  int64_t blocks;  // of samples
  int64_t span;  // groups of a unit: channels-last takes several narrow groups together to fill the
                 // lanes

  GroupShape(const Planes& p, int64_t group_count, PlaneMode m)
      : batch(p.batch),
        channels(p.channels),
        spatial(p.spatial),
        groups(group_count),
        depth(p.channels / group_count),
        mode(m),
        lanes(m == PlaneMode::kBatch ? kLanes : 1),
        blocks((p.batch + lanes - 1) / lanes),
        span(m == PlaneMode::kChannels && depth > 0 && depth < kLanes && kLanes % depth == 0
                 ? kLanes / depth
                 : 1) {}
  int64_t spans() const { return (groups + span - 1) / span; }
  int64_t units() const { return blocks * spans(); }
  bool in_lanes() const { return mode == PlaneMode::kBatch || mode == PlaneMode::kScattered; }
};

struct Affine {
  bool has_w = false, has_b = false;
  TensorRef w, b;
  float scale(const RunCtx& c, int64_t channel) const {
    return has_w ? c.ptr<const float>(w)[channel] : 1.0f;
  }
  float shift(const RunCtx& c, int64_t channel) const {
    return has_b ? c.ptr<const float>(b)[channel] : 0.0f;
  }
};

Affine affine_of(const StepDesc& d, size_t w_arg, size_t b_arg) {
  Affine a;
  const int w = d.args.operand_or_none(w_arg), b = b_arg ? d.args.operand_or_none(b_arg) : -1;
  if ((a.has_w = w >= 0)) a.w = d.inputs[w];
  if ((a.has_b = b >= 0)) a.b = d.inputs[b];
  return a;
}

// NaN if the variance is too large for its type: zero would hide it.
float rstd_of(float var, float eps) {
  return 1.0f / std::sqrt(std::max(var, 0.0f) + eps) + (var - var);
}

// All positions of a group: one walk if the channels are contiguous.
Walk group_walk(const GroupShape& s, const Planes& p, WalkStep& step) {
  if (p.c == s.spatial * p.s) {
    step = {0, p.s};
    return {1, s.depth * s.spatial};
  }
  step = {p.c, p.s};
  return {s.depth, s.spatial};
}

// dx = rstd * w * g + q * (x - mean) + r, from the group's sums of w * g and w * g * (x - mean).
struct Back {
  float q, r;
  Back(double rstd, double sum_g, double sum_gx, const GroupShape& s) {
    const double inv = 1.0 / static_cast<double>(s.depth * s.spatial);
    q = static_cast<float>(-rstd * rstd * rstd * sum_gx * inv);
    r = static_cast<float>(-rstd * sum_g * inv);
  }
};

class GroupNormKernel final : public Kernel {
 public:
  explicit GroupNormKernel(const StepDesc& d)
      : x_(d.inputs[d.args.operand(0)]),
        y_(d.outputs[0]),
        mean_(d.outputs[1]),
        rstd_(d.outputs[2]),
        affine_(affine_of(d, 1, 2)),
        xp_(require_planes(x_)),
        yp_(require_planes(y_)),
        shape_(xp_, d.args.integer(6), plane_mode({xp_, yp_})),
        eps_(static_cast<float>(d.args.real(7))) {}

  bool single_thread() const override { return x_.count() < kNormSmall; }
  void run(const RunCtx& c) const override {
    const auto [b, e] = thread_range(c, shape_.units());
    for (int64_t u = b; u < e; ++u) {
      const int64_t block = u / shape_.spans(), group = u % shape_.spans() * shape_.span;
      if (shape_.in_lanes())
        lanes(c, block, group);
      else if (shape_.mode == PlaneMode::kChannels)
        channels(c, block, group, std::min(shape_.span, shape_.groups - group));
      else
        rows(c, block, group);
    }
  }

 private:
  void keep(const RunCtx& c, int64_t n, int64_t group, float mean, float rstd) const {
    c.ptr<float>(mean_)[n * mean_.strides[0] + group * mean_.strides[1]] = mean;
    c.ptr<float>(rstd_)[n * rstd_.strides[0] + group * rstd_.strides[1]] = rstd;
  }

  void rows(const RunCtx& c, int64_t n, int64_t group) const {
    const NormKernels& k = kernels::norm_kernels();
    const GroupShape& s = shape_;
    const int64_t first = group * s.depth;
    const float* x = c.ptr<const float>(x_) + n * xp_.n + first * xp_.c;
    float* y = c.ptr<float>(y_) + n * yp_.n + first * yp_.c;
    float mean, var;
    if (xp_.c == s.spatial)
      k.row_moments(x, 1, 0, s.depth * s.spatial, &mean, &var);
    else
      k.row_moments(x, s.depth, xp_.c, s.spatial, &mean, &var);
    const float rstd = rstd_of(var, eps_);
    keep(c, n, group, mean, rstd);
    for (int64_t ch = 0; ch < s.depth; ++ch) {
      const float scale = rstd * affine_.scale(c, first + ch);
      k.row_affine(x + ch * xp_.c, 0, y + ch * yp_.c, 0, 1, s.spatial, mean, scale,
                   affine_.shift(c, first + ch));
    }
  }

  // `count` adjacent groups. Moments are taken per channel and merged per group.
  void channels(const RunCtx& c, int64_t n, int64_t group, int64_t count) const {
    const NormKernels& k = kernels::norm_kernels();
    const GroupShape& s = shape_;
    const int64_t first = group * s.depth, total = count * s.depth;
    const float* x = c.ptr<const float>(x_) + n * xp_.n + first;
    float* y = c.ptr<float>(y_) + n * yp_.n + first;
    alignas(64) float a[kLanes] = {}, b[kLanes] = {}, m[kLanes] = {};
    double mean[kLanes] = {}, square[kLanes] = {};
    float rstd[kLanes] = {};
    for (int64_t ch = 0; ch < total; ch += kLanes) {
      const int64_t width = std::min(kLanes, total - ch);
      k.lane_moments(x + ch, {1, s.spatial}, {0, xp_.s}, static_cast<int>(width), a, b);
      for (int64_t i = 0; i < width; ++i) {
        const int64_t q = (ch + i) / s.depth;
        const auto seen = static_cast<double>((ch + i) % s.depth);  // channels of the group so far
        const double delta = a[i] - mean[q];
        mean[q] += delta / (seen + 1);
        square[q] += b[i] + delta * delta * (seen / (seen + 1));
      }
    }
    for (int64_t q = 0; q < count; ++q) {
      rstd[q] = rstd_of(static_cast<float>(square[q] / static_cast<double>(s.depth)), eps_);
      keep(c, n, group + q, static_cast<float>(mean[q]), rstd[q]);
    }
    for (int64_t ch = 0; ch < total; ch += kLanes) {
      const int64_t width = std::min(kLanes, total - ch);
      for (int64_t i = 0; i < width; ++i) {
        const int64_t q = (ch + i) / s.depth;
        a[i] = rstd[q] * affine_.scale(c, first + ch + i);
        b[i] = affine_.shift(c, first + ch + i);
        m[i] = static_cast<float>(mean[q]);
      }
      k.lane_affine(x + ch, {0, xp_.s}, y + ch, {0, yp_.s}, {1, s.spatial}, static_cast<int>(width),
                    m, a, b);
    }
  }

  void lanes(const RunCtx& c, int64_t block, int64_t group) const {
    const NormKernels& k = kernels::norm_kernels();
    const GroupShape& s = shape_;
    const int64_t n = block * s.lanes, first = group * s.depth;
    const int count = static_cast<int>(std::min(s.lanes, s.batch - n));
    const float* x = c.ptr<const float>(x_) + n * xp_.n + first * xp_.c;
    float* y = c.ptr<float>(y_) + n * yp_.n + first * yp_.c;
    alignas(64) float mean[kLanes] = {}, var[kLanes] = {}, rstd[kLanes] = {}, a[kLanes] = {},
                      b[kLanes] = {};
    WalkStep step;
    const Walk walk = group_walk(s, xp_, step);
    k.lane_moments(x, walk, step, count, mean, var);
    for (int i = 0; i < count; ++i) {
      rstd[i] = rstd_of(var[i], eps_);
      keep(c, n + i, group, mean[i], rstd[i]);
    }
    for (int64_t ch = 0; ch < s.depth; ++ch) {
      const float w = affine_.scale(c, first + ch), bias = affine_.shift(c, first + ch);
      for (int i = 0; i < count; ++i) {
        a[i] = rstd[i] * w;
        b[i] = bias;
      }
      k.lane_affine(x + ch * xp_.c, {0, xp_.s}, y + ch * yp_.c, {0, yp_.s}, {1, s.spatial}, count,
                    mean, a, b);
    }
  }

  TensorRef x_, y_, mean_, rstd_;
  Affine affine_;
  Planes xp_, yp_;
  GroupShape shape_;
  float eps_;
};

// Phase one: per sample and channel the sums of g and g * normalised x, and dx. Phase two: the sums
// over samples.
class GroupNormGradKernel final : public Kernel {
 public:
  explicit GroupNormGradKernel(const StepDesc& d)
      : g_(d.inputs[d.args.operand(0)]),
        x_(d.inputs[d.args.operand(1)]),
        mean_(d.inputs[d.args.operand(2)]),
        rstd_(d.inputs[d.args.operand(3)]),
        affine_(affine_of(d, 4, 0)),
        gp_(require_planes(g_)),
        xp_(require_planes(x_)),
        shape_(xp_, d.args.integer(8), PlaneMode::kScattered) {
    const auto mask = d.args.ints(9);
    auto asked = [&](size_t i) { return i >= mask.size() || mask[i] != 0; };
    if ((has_dx_ = asked(0))) dx_ = d.outputs[0];
    if ((has_dw_ = asked(1) && d.outputs.size() > 1)) dw_ = d.outputs[1];
    if ((has_db_ = asked(2) && d.outputs.size() > 2)) db_ = d.outputs[2];
    dp_ = has_dx_ ? require_planes(dx_) : xp_;
    shape_ = GroupShape(xp_, d.args.integer(8), plane_mode({gp_, xp_, dp_}));
  }

  bool single_thread() const override { return x_.count() < kNormSmall; }
  int64_t scratch_bytes(int) const override { return 2 * shape_.batch * shape_.channels * 4; }

  void run(const RunCtx& c) const override {
    const auto [b, e] = thread_range(c, shape_.units());
    for (int64_t u = b; u < e; ++u) {
      const int64_t block = u / shape_.spans(), group = u % shape_.spans() * shape_.span;
      if (shape_.in_lanes())
        lanes(c, block, group);
      else if (shape_.mode == PlaneMode::kChannels)
        channels(c, block, group, std::min(shape_.span, shape_.groups - group));
      else
        rows(c, block, group);
    }
    if (!has_dw_ && !has_db_) return;
    c.barrier();
    if (has_dw_) sum_samples(c, sums_gx(c), c.ptr<float>(dw_));
    if (has_db_) sum_samples(c, sums_g(c), c.ptr<float>(db_));
  }

 private:
  // [batch][channel] each
  float* sums_g(const RunCtx& c) const { return reinterpret_cast<float*>(c.scratch); }
  float* sums_gx(const RunCtx& c) const { return sums_g(c) + shape_.batch * shape_.channels; }

  float stat(const RunCtx& c, const TensorRef& t, int64_t n, int64_t group) const {
    return c.ptr<const float>(t)[n * t.strides[0] + group * t.strides[1]];
  }

  void sum_samples(const RunCtx& c, const float* sums, float* out) const {
    const auto [begin, end] = thread_range(c, shape_.channels, kLanes);
    for (int64_t at = begin; at < end; at += kLanes) {
      const int64_t n = std::min(kLanes, end - at);
      double total[kLanes] = {};
      for (int64_t s = 0; s < shape_.batch; ++s)
        for (int64_t i = 0; i < n; ++i) total[i] += sums[s * shape_.channels + at + i];
      for (int64_t i = 0; i < n; ++i) out[at + i] = static_cast<float>(total[i]);
    }
  }

  void rows(const RunCtx& c, int64_t n, int64_t group) const {
    const NormKernels& k = kernels::norm_kernels();
    const GroupShape& s = shape_;
    const int64_t first = group * s.depth;
    const float mean = stat(c, mean_, n, group), rstd = stat(c, rstd_, n, group);
    const float* g = c.ptr<const float>(g_) + n * gp_.n + first * gp_.c;
    const float* x = c.ptr<const float>(x_) + n * xp_.n + first * xp_.c;
    double total_g = 0, total_gx = 0;
    for (int64_t ch = 0; ch < s.depth; ++ch) {
      float a, b;
      k.row_grad_sums(g + ch * gp_.c, 0, x + ch * xp_.c, 0, 1, s.spatial, mean, &a, &b);
      const double w = affine_.scale(c, first + ch);
      total_g += w * a;
      total_gx += w * b;
      sums_g(c)[n * s.channels + first + ch] = a;
      sums_gx(c)[n * s.channels + first + ch] = b * rstd;
    }
    if (!has_dx_) return;
    float* dx = c.ptr<float>(dx_) + n * dp_.n + first * dp_.c;
    const Back back(rstd, total_g, total_gx, s);
    for (int64_t ch = 0; ch < s.depth; ++ch)
      k.row_grad(g + ch * gp_.c, 0, x + ch * xp_.c, 0, dx + ch * dp_.c, 0, 1, s.spatial,
                 rstd * affine_.scale(c, first + ch), back.q, mean, back.r);
  }

  void channels(const RunCtx& c, int64_t n, int64_t group, int64_t count) const {
    const NormKernels& k = kernels::norm_kernels();
    const GroupShape& s = shape_;
    const int64_t first = group * s.depth, total = count * s.depth;
    const float* g = c.ptr<const float>(g_) + n * gp_.n + first;
    const float* x = c.ptr<const float>(x_) + n * xp_.n + first;
    alignas(64) float mean[kLanes] = {}, p[kLanes] = {}, q[kLanes] = {}, r[kLanes] = {}, a[kLanes],
                      b[kLanes];
    double total_g[kLanes] = {}, total_gx[kLanes] = {};
    for (int64_t ch = 0; ch < total; ch += kLanes) {
      const int64_t width = std::min(kLanes, total - ch);
      for (int64_t i = 0; i < width; ++i) mean[i] = stat(c, mean_, n, group + (ch + i) / s.depth);
      k.lane_grad_sums(g + ch, {0, gp_.s}, x + ch, {0, xp_.s}, {1, s.spatial},
                       static_cast<int>(width), mean, a, b);
      for (int64_t i = 0; i < width; ++i) {
        const int64_t own = (ch + i) / s.depth;
        const double w = affine_.scale(c, first + ch + i);
        total_g[own] += w * a[i];
        total_gx[own] += w * b[i];
        sums_g(c)[n * s.channels + first + ch + i] = a[i];
        sums_gx(c)[n * s.channels + first + ch + i] = b[i] * stat(c, rstd_, n, group + own);
      }
    }
    if (!has_dx_) return;
    float* dx = c.ptr<float>(dx_) + n * dp_.n + first;
    for (int64_t ch = 0; ch < total; ch += kLanes) {
      const int64_t width = std::min(kLanes, total - ch);
      for (int64_t i = 0; i < width; ++i) {
        const int64_t own = (ch + i) / s.depth;
        const float rstd = stat(c, rstd_, n, group + own);
        const Back back(rstd, total_g[own], total_gx[own], s);
        mean[i] = stat(c, mean_, n, group + own);
        p[i] = rstd * affine_.scale(c, first + ch + i);
        q[i] = back.q;
        r[i] = back.r;
      }
      k.lane_grad(g + ch, {0, gp_.s}, x + ch, {0, xp_.s}, dx + ch, {0, dp_.s}, {1, s.spatial},
                  static_cast<int>(width), p, q, mean, r);
    }
  }

  void lanes(const RunCtx& c, int64_t block, int64_t group) const {
    const NormKernels& k = kernels::norm_kernels();
    const GroupShape& s = shape_;
    const int64_t n = block * s.lanes, first = group * s.depth;
    const int count = static_cast<int>(std::min(s.lanes, s.batch - n));
    const float* g = c.ptr<const float>(g_) + n * gp_.n + first * gp_.c;
    const float* x = c.ptr<const float>(x_) + n * xp_.n + first * xp_.c;
    alignas(64) float mean[kLanes] = {}, rstd[kLanes] = {}, p[kLanes] = {}, q[kLanes] = {},
                      r[kLanes] = {}, a[kLanes], b[kLanes];
    double total_g[kLanes] = {}, total_gx[kLanes] = {};
    for (int i = 0; i < count; ++i) {
      mean[i] = stat(c, mean_, n + i, group);
      rstd[i] = stat(c, rstd_, n + i, group);
    }
    for (int64_t ch = 0; ch < s.depth; ++ch) {
      k.lane_grad_sums(g + ch * gp_.c, {0, gp_.s}, x + ch * xp_.c, {0, xp_.s}, {1, s.spatial},
                       count, mean, a, b);
      const double w = affine_.scale(c, first + ch);
      for (int i = 0; i < count; ++i) {
        total_g[i] += w * a[i];
        total_gx[i] += w * b[i];
        sums_g(c)[(n + i) * s.channels + first + ch] = a[i];
        sums_gx(c)[(n + i) * s.channels + first + ch] = b[i] * rstd[i];
      }
    }
    if (!has_dx_) return;
    float* dx = c.ptr<float>(dx_) + n * dp_.n + first * dp_.c;
    for (int i = 0; i < count; ++i) {
      const Back back(rstd[i], total_g[i], total_gx[i], s);
      q[i] = back.q;
      r[i] = back.r;
    }
    for (int64_t ch = 0; ch < s.depth; ++ch) {
      for (int i = 0; i < count; ++i) p[i] = rstd[i] * affine_.scale(c, first + ch);
      k.lane_grad(g + ch * gp_.c, {0, gp_.s}, x + ch * xp_.c, {0, xp_.s}, dx + ch * dp_.c,
                  {0, dp_.s}, {1, s.spatial}, count, p, q, mean, r);
    }
  }

  TensorRef g_, x_, mean_, rstd_, dx_, dw_, db_;
  Affine affine_;
  Planes gp_, xp_, dp_;
  GroupShape shape_;
  bool has_dx_ = false, has_dw_ = false, has_db_ = false;
};

}  // namespace

KernelPtr make_group_norm(const StepDesc& d) {
  if (d.op == Op::GroupNorm) return std::make_unique<GroupNormKernel>(d);
  return std::make_unique<GroupNormGradKernel>(d);
}

}  // namespace tessera
