// SPDX-License-Identifier: Apache-2.0
// Layer, group and batch normalisation and their gradients: types and costs of all, and the layer
// norm kernels. Mean and reciprocal deviation are results, as in ATen. Gradients that the output
// mask does not ask for are not touched.
#include "kernels/norm.h"

#include "ops/norm_impl.h"
#include "ops/registry.h"
#include "ops/sizes.h"
#include "ops/widened.h"

namespace tessera {
namespace {

const TensorRef* operand_or_null(const StepDesc& d, size_t arg) {
  const int k = d.args.operand_or_none(arg);
  return k < 0 ? nullptr : &d.inputs[k];
}

bool mask_at(const Args& args, size_t arg, size_t i) {
  if (!args.has(arg)) return true;
  const auto mask = args.ints(arg);
  return i >= mask.size() || mask[i] != 0;
}

struct OptionalRef {
  bool present = false;
  TensorRef ref;
  explicit OptionalRef(const TensorRef* t) : present(t != nullptr) {
    if (t) ref = *t;
  }
  const float* get(const RunCtx& c) const { return present ? c.ptr<const float>(ref) : nullptr; }
};

// Half precision is widened and rounded this many rows at a time, in cache.
constexpr int64_t kHalfRows = 4;

std::byte* row_ptr(const RunCtx& c, const TensorRef& t, int64_t row, int64_t len) {
  return c.ptr<std::byte>(t) + row * len * size_of(t.dtype);
}

// A weight or bias as f32: in place, or copied to `to`.
const float* as_f32(const RunCtx& c, const OptionalRef& t, int64_t len, float* to) {
  if (!t.present || t.ref.dtype == DType::F32) return t.get(c);
  widen_row(c.ptr<std::byte>(t.ref), t.ref.dtype, 1, to, len);
  return to;
}

class LayerNormKernel final : public Kernel {
 public:
  explicit LayerNormKernel(const StepDesc& d)
      : x_(d.inputs[d.args.operand(0)]),
        w_(operand_or_null(d, 2)),
        b_(operand_or_null(d, 3)),
        y_(d.outputs[0]),
        mean_(d.outputs[1]),
        rstd_(d.outputs[2]),
        len_(product(d.args.ints(1))),
        eps_(static_cast<float>(d.args.real(4))) {
    invariant(x_.contiguous() && y_.contiguous(), "layer norm needs row-major tensors");
    rows_ = len_ ? x_.count() / len_ : 0;
    half_ = x_.dtype != DType::F32;
  }
  bool single_thread() const override { return x_.count() < kNormSmall; }
  int64_t scratch_bytes(int threads) const override {
    return half_ ? 4 * threads * thread_floats() : 0;
  }
  void run(const RunCtx& c) const override {
    const auto [b, e] = thread_range(c, rows_);
    if (b >= e) return;
    if (half_) {
      float* w = reinterpret_cast<float*>(c.scratch) + c.thread * thread_floats();
      float *bias = w + padded(), *rows = bias + padded();
      const float *weight = as_f32(c, w_, len_, w), *shift = as_f32(c, b_, len_, bias);
      for (int64_t r = b; r < e; r += kHalfRows) {
        const int64_t n = std::min(kHalfRows, e - r);
        widen_row(row_ptr(c, x_, r, len_), x_.dtype, 1, rows, n * len_);
        kernels::layer_norm_kernels().forward(rows, weight, shift, rows, c.ptr<float>(mean_) + r,
                                              c.ptr<float>(rstd_) + r, n, len_, eps_);
        narrow_row(rows, row_ptr(c, y_, r, len_), y_.dtype, 1, n * len_);
      }
      return;
    }
    kernels::layer_norm_kernels().forward(c.ptr<float>(x_) + b * len_, w_.get(c), b_.get(c),
                                          c.ptr<float>(y_) + b * len_, c.ptr<float>(mean_) + b,
                                          c.ptr<float>(rstd_) + b, e - b, len_, eps_);
  }

 private:
  int64_t padded() const { return (len_ + 15) / 16 * 16; }
  int64_t thread_floats() const { return (2 + kHalfRows) * padded(); }

  TensorRef x_;
  OptionalRef w_, b_;
  TensorRef y_, mean_, rstd_;
  int64_t len_, rows_ = 0;
  float eps_;
  bool half_ = false;
};

// Rows are cut into chunks that depend on the shape only; each chunk has its own dw and db, added
// up in order.
class LayerNormGradKernel final : public Kernel {
 public:
  explicit LayerNormGradKernel(const StepDesc& d)
      : g_(d.inputs[d.args.operand(0)]),
        x_(d.inputs[d.args.operand(1)]),
        mean_(d.inputs[d.args.operand(3)]),
        rstd_(d.inputs[d.args.operand(4)]),
        w_(operand_or_null(d, 5)),
        len_(product(d.args.ints(2))) {
    rows_ = len_ ? x_.count() / len_ : 0;
    has_dx_ = mask_at(d.args, 7, 0);
    has_dw_ = mask_at(d.args, 7, 1) && d.outputs.size() > 1 && d.outputs[1].count() == len_;
    has_db_ = mask_at(d.args, 7, 2) && d.outputs.size() > 2 && d.outputs[2].count() == len_;
    if (has_dx_) dx_ = d.outputs[0];
    if (has_dw_) dw_ = d.outputs[1];
    if (has_db_) db_ = d.outputs[2];
    invariant(x_.contiguous() && g_.contiguous() && (!has_dx_ || dx_.contiguous()),
              "layer norm gradient needs row-major tensors");
    chunk_ = std::max<int64_t>(8, (rows_ + 31) / 32);
    chunks_ = (rows_ + chunk_ - 1) / chunk_;
    padded_ = (len_ + 15) / 16 * 16;
    half_ = x_.dtype != DType::F32;
  }
  bool single_thread() const override { return x_.count() < kNormSmall; }
  int64_t scratch_bytes(int threads) const override {
    return 4 * (chunks_ * padded_ * 2 + (half_ ? threads * thread_floats() : 0));
  }

  void run(const RunCtx& c) const override {
    auto* part = reinterpret_cast<float*>(c.scratch);
    float* wide = part + chunks_ * padded_ * 2 + c.thread * thread_floats();
    const float* weight = as_f32(c, w_, len_, wide);
    const auto [cb, ce] = thread_range(c, chunks_);
    for (int64_t k = cb; k < ce; ++k) {
      float* dw = part + 2 * k * padded_;
      float* db = dw + padded_;
      std::fill(dw, dw + 2 * padded_, 0.0f);
      const int64_t b = k * chunk_, rows = std::min(chunk_, rows_ - b);
      if (half_) {
        half_chunk(c, b, rows, weight, wide + padded_, dw, db);
        continue;
      }
      kernels::layer_norm_kernels().backward(
          c.ptr<float>(g_) + b * len_, c.ptr<float>(x_) + b * len_, c.ptr<float>(mean_) + b,
          c.ptr<float>(rstd_) + b, weight, has_dx_ ? c.ptr<float>(dx_) + b * len_ : nullptr,
          has_dw_ ? dw : nullptr, has_db_ ? db : nullptr, rows, len_);
    }
    if (!has_dw_ && !has_db_) return;
    c.barrier();
    const auto [b, e] = thread_range(c, len_, 16);
    auto add_up = [&, b = b, e = e](float* out, const float* first) {
      for (int64_t i = b; i < e; ++i) out[i] = 0.0f;
      for (int64_t k = 0; k < chunks_; ++k) {
        const float* p = first + 2 * k * padded_;
        for (int64_t i = b; i < e; ++i) out[i] += p[i];
      }
    };
    if (has_dw_) add_up(c.ptr<float>(dw_), part);
    if (has_db_) add_up(c.ptr<float>(db_), part + padded_);
  }

 private:
  int64_t thread_floats() const { return (1 + 2 * kHalfRows) * padded_; }

  void half_chunk(const RunCtx& c, int64_t begin, int64_t rows, const float* weight, float* g,
                  float* dw, float* db) const {
    float* x = g + kHalfRows * padded_;
    for (int64_t r = begin; r < begin + rows; r += kHalfRows) {
      const int64_t n = std::min(kHalfRows, begin + rows - r);
      widen_row(row_ptr(c, g_, r, len_), g_.dtype, 1, g, n * len_);
      widen_row(row_ptr(c, x_, r, len_), x_.dtype, 1, x, n * len_);
      // The gradient takes the place of the rows it is made from.
      kernels::layer_norm_kernels().backward(g, x, c.ptr<float>(mean_) + r, c.ptr<float>(rstd_) + r,
                                             weight, has_dx_ ? g : nullptr, has_dw_ ? dw : nullptr,
                                             has_db_ ? db : nullptr, n, len_);
      if (has_dx_) narrow_row(g, row_ptr(c, dx_, r, len_), dx_.dtype, 1, n * len_);
    }
  }

  TensorRef g_, x_, mean_, rstd_;
  OptionalRef w_;
  TensorRef dx_, dw_, db_;
  bool has_dx_, has_dw_, has_db_, half_ = false;
  int64_t len_, rows_ = 0, chunk_ = 1, chunks_ = 0, padded_ = 0;
};

TensorType float_type(Dims shape) {
  return {DType::F32, std::move(shape), {}};
}

void check_float(Op op, const TensorType& t) {
  user_check(is_float(t.dtype), "[{}] needs a float tensor, got {}", op_text(op), name_of(t.dtype));
}

// Optional weight or bias of the given element count.
void check_affine(const Graph& g, const Node& n, size_t arg, int64_t count) {
  const ValueId v = n.arg_value_or_none(arg);
  if (v == kNoValue) return;
  const bool layer = n.op == Op::LayerNorm || n.op == Op::LayerNormGrad;
  user_check(g.type(v).count() == count && (layer || g.type(v).rank() == 1),
             "[{}] weight or bias has {} elements, expected {} in one dim", op_text(n.op),
             g.type(v).count(), count);
}

// Means or deviations, one per row or group, as the forward pass gives them.
void check_stat(const Graph& g, const Node& n, size_t arg, int64_t count) {
  const TensorType& t = g.type(n.arg_value(arg));
  user_check(t.dtype == DType::F32 && t.count() == count,
             "[{}] argument {} does not have {} statistics of type f32", op_text(n.op), arg, count);
}

void check_gradient(const Graph& g, const Node& n, const TensorType& x) {
  user_check(g.type(n.arg_value(0)).shape == x.shape, "[{}] gradient and input differ in shape",
             op_text(n.op));
}

// Samples, channels, elements of a channel and groups stand in the arguments from `at` on.
void check_groups(const TensorType& x, const Node& n, size_t at) {
  const int64_t batch = n.args.integer(at), channels = n.args.integer(at + 1),
                inner = n.args.integer(at + 2), groups = n.args.integer(at + 3);
  user_check(groups > 0 && channels % groups == 0,
             "[group_norm] {} channels cannot be divided into {} groups", channels, groups);
  user_check(x.rank() >= 2 && x.shape[1] == channels && x.shape[0] == batch &&
                 x.count() == times(times(batch, channels), inner),
             "[group_norm] the input does not have {} samples of {} channels", batch, channels);
}

std::vector<TensorType> infer_layer(const Graph& g, const Node& n, size_t x_arg, size_t shape_arg) {
  const TensorType& x = g.type(n.arg_value(x_arg));
  const Dims norm = n.args.ints(shape_arg);
  check_float(n.op, x);
  user_check(!norm.empty() && norm.size() <= x.shape.size() &&
                 std::equal(norm.rbegin(), norm.rend(), x.shape.rbegin()),
             "[{}] the normalized shape does not end the shape of the input", op_text(n.op));
  Dims stat = x.shape;
  std::fill(stat.end() - static_cast<int64_t>(norm.size()), stat.end(), 1);
  return {{x.dtype, x.shape, {}}, float_type(stat), float_type(norm)};
}

TensorType masked(const Node& n, size_t mask_arg, size_t i, TensorType t) {
  if (!mask_at(n.args, mask_arg, i)) t.shape = {0};
  return t;
}

}  // namespace

std::optional<Planes> planes_of(const TensorRef& t) {
  if (t.shape.size() < 2) return std::nullopt;
  Planes p{t.strides[0], t.strides[1], 0, t.shape[0], t.shape[1], 1};
  for (size_t d = t.shape.size(); d-- > 2;) {
    if (t.shape[d] == 1) continue;
    if (p.spatial == 1)
      p.s = t.strides[d];
    else if (t.strides[d] != p.s * p.spatial)
      return std::nullopt;
    p.spatial *= t.shape[d];
  }
  return p;
}

Planes require_planes(const TensorRef& t) {
  const auto p = planes_of(t);
  invariant(p.has_value(), "norm kernel given a tensor whose spatial dims do not merge");
  return *p;
}

PlaneMode plane_mode(std::initializer_list<Planes> tensors) {
  auto all = [&](auto test) {
    for (const Planes& p : tensors)
      if (!test(p)) return false;
    return true;
  };
  if (all([](const Planes& p) { return p.n == 1 && p.batch > 1; })) return PlaneMode::kBatch;
  if (all([](const Planes& p) { return p.s == 1 && p.spatial > 1; })) return PlaneMode::kRows;
  if (all([](const Planes& p) { return p.c == 1; })) return PlaneMode::kChannels;
  return PlaneMode::kScattered;
}

std::vector<TensorType> infer_norm(const Graph& g, const Node& n) {
  switch (n.op) {
    case Op::LayerNorm: {
      auto t = infer_layer(g, n, 0, 1);
      check_affine(g, n, 2, product(n.args.ints(1)));
      check_affine(g, n, 3, product(n.args.ints(1)));
      return {t[0], t[1], t[1]};
    }
    case Op::LayerNormGrad: {
      auto t = infer_layer(g, n, 1, 2);
      check_stat(g, n, 3, product(t[1].shape));
      check_stat(g, n, 4, product(t[1].shape));
      check_affine(g, n, 5, product(t[2].shape));
      check_affine(g, n, 6, product(t[2].shape));
      check_gradient(g, n, g.type(n.arg_value(1)));
      return {masked(n, 7, 0, t[0]), masked(n, 7, 1, t[2]), masked(n, 7, 2, t[2])};
    }
    case Op::GroupNorm: {
      const TensorType& x = g.type(n.arg_value(0));
      check_float(n.op, x);
      check_groups(x, n, 3);
      const int64_t batch = n.args.integer(3), channels = n.args.integer(4),
                    groups = n.args.integer(6);
      check_affine(g, n, 1, channels);
      check_affine(g, n, 2, channels);
      return {{x.dtype, x.shape, {}}, float_type({batch, groups}), float_type({batch, groups})};
    }
    case Op::GroupNormGrad: {
      const TensorType& x = g.type(n.arg_value(1));
      check_float(n.op, x);
      check_groups(x, n, 5);
      const int64_t batch = n.args.integer(5), groups = n.args.integer(8);
      check_stat(g, n, 2, times(batch, groups));
      check_stat(g, n, 3, times(batch, groups));
      check_affine(g, n, 4, n.args.integer(6));
      check_gradient(g, n, x);
      const TensorType w = float_type({n.args.integer(6)});
      return {masked(n, 9, 0, {x.dtype, x.shape, {}}), masked(n, 9, 1, w), masked(n, 9, 2, w)};
    }
    default:
      break;
  }
  const TensorType& x = g.type(n.arg_value(n.op == Op::BatchNormGrad ? 1 : 0));
  check_float(n.op, x);
  user_check(x.rank() >= 2, "[batch_norm] needs at least two dims, got {}", x.rank());
  const TensorType same{x.dtype, x.shape, {}}, stat = float_type({x.shape[1]});
  if (n.op == Op::BatchNormGrad) {
    // Statistics of the batch or running ones; the others are not read.
    const size_t mean = n.args.boolean(7) ? 5 : 3;
    for (size_t arg : {size_t{2}, mean, mean + 1}) check_affine(g, n, arg, x.shape[1]);
    check_gradient(g, n, x);
    user_check(n.args.has(mean) && n.args.has(mean + 1), "[batch_norm] needs mean and deviation");
    return {masked(n, 9, 0, same), masked(n, 9, 1, stat), masked(n, 9, 2, stat)};
  }
  for (size_t arg = 1; arg <= 4; ++arg) check_affine(g, n, arg, x.shape[1]);
  if (n.op == Op::BatchNormEval) return {same, float_type({0}), float_type({0})};
  const bool training = n.args.boolean(5);
  user_check(training || (n.args.has(3) && n.args.has(4)),
             "[batch_norm] needs running statistics when not training");
  user_check(!training || product(x.shape) != x.shape[1],
             "[batch_norm] needs more than one value per channel when training");
  const TensorType save = training ? stat : float_type({0});
  return {same, save, save, stat, stat};
}

Work work_norm(const Graph& g, const Node& n) {
  const bool grad =
      n.op == Op::LayerNormGrad || n.op == Op::GroupNormGrad || n.op == Op::BatchNormGrad;
  const TensorType& x = g.type(n.arg_value(0));
  return {WorkKind::kReduce, x.count() * (grad ? 12 : 8), x.bytes() * (grad ? 3 : 2)};
}

// Samples of a group norm, channels of a batch norm.
Pieces norm_pieces(const StepDesc& d) {
  const bool group = d.op == Op::GroupNorm || d.op == Op::GroupNormGrad;
  Pieces p = Pieces::along(d, 0, group ? 1 : 16);
  if (group) {
    for (size_t arg : {1, 2, 4}) {  // scale and shift
      const bool affine = (d.op == Op::GroupNorm) != (arg == 4);
      if (affine && d.args.has(arg)) p.inputs[d.args.operand(arg)] = Pieces::kWhole;
    }
    if (d.op == Op::GroupNormGrad)
      for (size_t i = 1; i < p.outputs.size(); ++i) p.outputs[i] = Pieces::kSum;
    return p;
  }
  p.inputs[d.args.operand(0)] = 1;
  if (d.op == Op::BatchNormGrad) p.inputs[d.args.operand(1)] = 1;
  p.outputs[0] = 1;
  return p;
}

KernelPtr make_norm(const StepDesc& desc) {
  if (desc.op == Op::LayerNorm) return std::make_unique<LayerNormKernel>(desc);
  if (desc.op == Op::LayerNormGrad) return std::make_unique<LayerNormGradKernel>(desc);
  auto make = [](const StepDesc& d) -> KernelPtr {
    for (const TensorRef& t : d.inputs)
      user_check(t.dtype == DType::F32, "{} has no kernel for {}", op_text(d.op), name_of(t.dtype));
    switch (d.op) {
      case Op::GroupNorm:
      case Op::GroupNormGrad:
        return make_group_norm(d);
      default:
        return make_batch_norm(d);
    }
  };
  return make_widened(desc, make, norm_pieces(desc));
}

bool accepts_norm(Op op, int, const TensorRef& physical) {
  if (physical.contiguous()) return true;
  if (op == Op::LayerNorm || op == Op::LayerNormGrad || physical.shape.size() < 2) return false;
  const auto p = planes_of(physical);
  return p && plane_mode({*p}) != PlaneMode::kScattered;
}

}  // namespace tessera
