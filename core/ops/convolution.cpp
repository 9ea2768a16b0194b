// SPDX-License-Identifier: Apache-2.0
// Convolution, its two gradients and transposed convolution. The memory order of the tensors picks
// the implementation: CHWN kernels (batch innermost), oneDNN for every other dense order, plain
// loops where neither applies.
#include "ops/convolution.h"

#include <algorithm>

#include "kernels/conv_chwn.h"
#include "kernels/conv_reference.h"
#include "kernels/dnnl.h"
#include "ops/registry.h"
#include "ops/sizes.h"
#include "ops/widened.h"

namespace tessera {
namespace {

using kernels::ConvDirection;
using kernels::ConvShape;
using kernels::Strides5;

// Multiply-adds below which a second thread costs more than it saves.
constexpr int64_t kSmall = 64 * 1024;

// The literal arguments, with one-element lists spread over the spatial dims.
struct ConvArgs {
  Dims stride, padding, dilation, output_padding;
  int64_t groups = 1;
  bool transposed = false;
};

Dims spread(Dims v, size_t rank, int64_t otherwise) {
  if (v.empty()) v.push_back(otherwise);
  if (v.size() == 1) v.resize(rank, v[0]);
  user_check(v.size() == rank, "[convolution] {} values for {} spatial dims", v.size(), rank);
  return v;
}

ConvArgs conv_args(Op op, const Args& a, size_t spatial) {
  constexpr size_t at = 3;  // of `stride`; padding, dilation and the rest follow it
  const bool full = op == Op::Convolution;
  ConvArgs c;
  c.stride = spread(a.ints(at), spatial, 1);
  c.padding = spread(a.ints(at + 1), spatial, 0);
  c.dilation = spread(a.ints(at + 2), spatial, 1);
  c.transposed = full && a.boolean(at + 3);
  c.output_padding = spread(full ? a.ints(at + 4) : Dims{}, spatial, 0);
  c.groups = a.integer(full ? at + 5 : at + 3);
  for (size_t i = 0; i < spatial; ++i)
    user_check(c.stride[i] > 0 && c.dilation[i] > 0 && c.padding[i] >= 0,
               "[convolution] stride and dilation must be positive, padding not negative");
  user_check(c.groups > 0, "[convolution] groups must be positive, got {}", c.groups);
  return c;
}

std::string text(const Dims& d) {
  std::string s = "[";
  for (size_t i = 0; i < d.size(); ++i) s += (i ? ", " : "") + std::to_string(d[i]);
  return s + "]";
}

Dims output_shape(const Dims& x, const Dims& w, const ConvArgs& a) {
  user_check(x.size() >= 3 && x.size() <= 5 && x.size() == w.size(),
             "[convolution] input {} and weight {} do not fit together", text(x), text(w));
  // Windows are sums of products of two of these.
  for (const Dims* dims : {&x, &w})
    for (int64_t d : *dims)
      user_check(d < int64_t{1} << 30, "[convolution] a dim of {} is too large", d);
  const int64_t channels = a.transposed ? w[0] : w[1] * a.groups;
  user_check(x[1] == channels && w[0] % a.groups == 0,
             "[convolution] input {} has {} channels, weight {} in {} groups needs {}", text(x),
             x[1], text(w), a.groups, channels);
  Dims y{x[0], a.transposed ? w[1] * a.groups : w[0]};
  for (size_t d = 2; d < x.size(); ++d) {
    const size_t i = d - 2;
    const int64_t window = a.dilation[i] * (w[d] - 1) + 1;
    const int64_t size =
        a.transposed ? (x[d] - 1) * a.stride[i] - 2 * a.padding[i] + window + a.output_padding[i]
                     : (x[d] + 2 * a.padding[i] - window) / a.stride[i] + 1;
    user_check(size > 0 && (a.transposed || x[d] + 2 * a.padding[i] >= window),
               "[convolution] kernel {} does not fit into input {}", text(w), text(x));
    y.push_back(size);
  }
  return y;
}

// Geometry in the naming of the forward direction.
ConvShape geometry(const Dims& x, const Dims& w, const Dims& y, const ConvArgs& a) {
  ConvShape s;
  s.n = x[0], s.c = x[1], s.k = y[1], s.groups = a.groups;
  const size_t spatial = x.size() - 2;
  for (size_t i = 0; i < spatial; ++i) {
    const size_t d = 3 - spatial + i;
    s.in[d] = x[2 + i], s.out[d] = y[2 + i], s.kernel[d] = w[2 + i];
    s.stride[d] = a.stride[i], s.pad[d] = a.padding[i], s.dilation[d] = a.dilation[i];
  }
  return s;
}

Strides5 strides5(const TensorRef& t) {
  Strides5 s{t.strides[0], t.strides[1], 0, 0, 0};
  const size_t spatial = t.shape.size() - 2;
  for (size_t i = 0; i < spatial; ++i) s[5 - spatial + i] = t.strides[2 + i];
  // A dim of size 1 that is not there lies outside the others, so that the tensor stays dense.
  for (size_t i = 2; i < 5 - spatial; ++i) s[i] = s[5 - spatial] * t.shape[2];
  return s;
}

// One call, its tensors named as in the forward direction whatever is computed.
struct ConvCall {
  ConvDirection direction = ConvDirection::kForward;
  ConvShape shape;
  TensorRef x, w, y, bias;
  bool has_bias = false;
};

ConvCall conv_call(const StepDesc& d) {
  const Args& args = d.args;
  const TensorRef &a = d.inputs[args.operand(0)], &b = d.inputs[args.operand(1)];
  const TensorRef& out = d.outputs[0];
  const ConvArgs c = conv_args(d.op, args, a.shape.size() - 2);
  ConvCall call;
  switch (d.op) {
    case Op::Convolution:
      call.w = b;
      if (c.transposed) {
        call.direction = ConvDirection::kTransposed;
        call.x = out, call.y = a;
      } else {
        call.x = a, call.y = out;
      }
      call.has_bias = args.has(2);
      if (call.has_bias) call.bias = d.inputs[args.operand(2)];
      break;
    case Op::ConvInputGrad:
      call.direction = ConvDirection::kInputGrad;
      call.y = a, call.w = b, call.x = out;
      break;
    case Op::ConvWeightGrad:
      call.direction = ConvDirection::kWeightGrad;
      call.y = a, call.x = b, call.w = out;
      break;
    default:
      invariant(false, "{} has no convolution kernel", op_text(d.op));
  }
  call.shape = geometry(call.x.shape, call.w.shape, call.y.shape, c);
  return call;
}

class ChwnConv final : public Kernel {
 public:
  explicit ChwnConv(const ConvCall& c)
      : forward_(c.direction == ConvDirection::kForward),
        small_(c.shape.macs() < kSmall),
        call_(c),
        plan_(forward_ ? kernels::ConvChwnPlan::forward(c.shape, kernels::conv_chwn_kernels())
                       : kernels::ConvChwnPlan::input_grad(c.shape, kernels::conv_chwn_kernels())) {
  }
  void run(const RunCtx& c) const override {
    const float* bias = call_.has_bias ? c.ptr<float>(call_.bias) : nullptr;
    plan_.run(c.ptr<float>(forward_ ? call_.x : call_.y), c.ptr<float>(call_.w), bias,
              c.ptr<float>(forward_ ? call_.y : call_.x), c.thread, c.threads);
  }
  bool single_thread() const override { return small_; }

 private:
  bool forward_, small_;
  ConvCall call_;
  kernels::ConvChwnPlan plan_;
};

class ChwnWeightGrad final : public Kernel {
 public:
  explicit ChwnWeightGrad(const ConvCall& c)
      : call_(c), plan_(c.shape, kernels::conv_chwn_kernels()) {}
  void run(const RunCtx& c) const override {
    const float *gy = c.ptr<float>(call_.y), *x = c.ptr<float>(call_.x);
    float* gw = c.ptr<float>(call_.w);
    auto* scratch = reinterpret_cast<float*>(c.scratch);
    if (plan_.pads()) {
      plan_.pad(x, scratch, c.thread, c.threads);
      c.barrier();
    }
    plan_.sum(gy, x, gw, scratch, c.thread, c.threads);
    if (plan_.splits()) {
      c.barrier();
      plan_.combine(scratch, gw, c.thread, c.threads);
    }
  }
  int64_t scratch_bytes(int) const override {
    return plan_.scratch_floats() * static_cast<int64_t>(sizeof(float));
  }
  bool single_thread() const override { return call_.shape.macs() < kSmall; }

 private:
  ConvCall call_;
  kernels::ConvChwnWeightPlan plan_;
};

class DnnlConv final : public Kernel {
 public:
  DnnlConv(const ConvCall& c, std::unique_ptr<kernels::DnnlConvolution> primitive)
      : call_(c), primitive_(std::move(primitive)) {}
  void state_written() override { primitive_->forget_weights(); }
  void run(const RunCtx& c) const override {
    const void* bias = call_.has_bias ? c.ptr<void>(call_.bias) : nullptr;
    primitive_->run(c.ptr<void>(call_.x), c.ptr<void>(call_.w), bias, c.ptr<void>(call_.y),
                    c.scratch);
  }
  int64_t scratch_bytes(int) const override { return primitive_->scratch_bytes(); }
  bool top_level() const override { return true; }

 private:
  ConvCall call_;
  std::unique_ptr<kernels::DnnlConvolution> primitive_;
};

template <typename T>
class ReferenceConv final : public Kernel {
 public:
  explicit ReferenceConv(const ConvCall& c) : call_(c) {}
  void run(const RunCtx& c) const override {
    const Strides5 xs = strides5(call_.x), ws = strides5(call_.w), ys = strides5(call_.y);
    T *x = c.ptr<T>(call_.x), *w = c.ptr<T>(call_.w), *y = c.ptr<T>(call_.y);
    const T* bias = call_.has_bias ? c.ptr<T>(call_.bias) : nullptr;
    switch (call_.direction) {
      case ConvDirection::kForward:
        return kernels::conv_forward_reference<T>(call_.shape, x, xs, w, ws, bias, y, ys);
      case ConvDirection::kInputGrad:
      case ConvDirection::kTransposed:
        return kernels::conv_input_grad_reference<T>(call_.shape, y, ys, w, ws, bias, x, xs);
      case ConvDirection::kWeightGrad:
        return kernels::conv_weight_grad_reference<T>(call_.shape, y, ys, x, xs, w, ws);
    }
  }
  bool single_thread() const override { return true; }

 private:
  ConvCall call_;
};

bool is_chwn(const TensorRef& t) {
  return t.shape.size() == 4 && t.shape[0] > 1 && is_dense_in_order(t, {0, 3, 2, 1});
}

bool takes_chwn(const ConvCall& c) {
  return c.x.dtype == DType::F32 && is_chwn(c.x) && is_chwn(c.y) && c.w.contiguous() &&
         (!c.has_bias || c.bias.contiguous());
}

std::unique_ptr<kernels::DnnlConvolution> try_dnnl(const ConvCall& c, const StepDesc& d) {
  if (c.x.dtype == DType::BF16 && (is_chwn(c.x) || is_chwn(c.y))) return nullptr;
  if (c.x.dtype != DType::F32 && c.x.dtype != DType::BF16) return nullptr;
  if (c.x.dtype != c.w.dtype || c.x.dtype != c.y.dtype) return nullptr;
  if (c.has_bias && (!c.bias.contiguous() || c.bias.dtype != c.x.dtype)) return nullptr;
  return kernels::DnnlConvolution::make({.direction = c.direction,
                                         .dtype = c.x.dtype,
                                         .shape = c.shape,
                                         .x = strides5(c.x),
                                         .w = strides5(c.w),
                                         .y = strides5(c.y),
                                         .bias = c.has_bias,
                                         .keep_weights = d.fixed_weights,
                                         .share_weights = d.pieces});
}

// Some images at a time; the gradient of the filter is the sum over them.
Pieces conv_pieces(const ConvCall& c, const StepDesc& d) {
  Pieces p = Pieces::along(d, 0, is_chwn(c.x) ? kernels::kBatchBlock : 1);
  if (c.direction == ConvDirection::kWeightGrad)
    p.outputs[0] = Pieces::kSum;
  else
    p.inputs[d.args.operand(1)] = Pieces::kWhole;
  if (c.has_bias) p.inputs[d.args.operand(2)] = Pieces::kWhole;
  return p;
}

// The gradient of the result has the shape of the result.
void check_gradient(const Node& n, const Dims& gy, const Dims& x, const Dims& w) {
  user_check(x.size() > 2, "[convolution] input {} has no spatial dims", text(x));
  for (int64_t d : x) user_check(d >= 0, "[convolution] an input of {}", text(x));
  for (int64_t d : w) user_check(d >= 0, "[convolution] a weight of {}", text(w));
  const Dims y = output_shape(x, w, conv_args(n.op, n.args, x.size() - 2));
  user_check(gy == y, "[convolution] a gradient of {} for a result of {}", text(gy), text(y));
}

}  // namespace

bool is_dense_in_order(const TensorRef& t, const std::vector<int>& order) {
  if (order.size() != t.shape.size()) return false;
  int64_t step = 1;
  for (int d : order) {
    if (t.shape[d] != 1 && t.strides[d] != step) return false;
    step *= t.shape[d];
  }
  return true;
}

bool is_dense_with_inner(const TensorRef& t, int inner) {
  if (inner < 0) return t.contiguous();
  std::vector<int> order{inner};
  for (int d = static_cast<int>(t.shape.size()) - 1; d >= 0; --d)
    if (d != inner) order.push_back(d);
  return is_dense_in_order(t, order);
}

// From bench/kernels/conv_bench crossover (1 thread, forward and both gradients): with 16 channels
// on both sides oneDNN is level or ahead (its weight gradient by up to 1.3x); below, CHWN wins
// by 1.1x (12 -> 16) to 2x (8 -> 8), 3.3x (5 -> 5) and 13x (1 -> 1). With images beyond the caches
// that margin goes from about 8 channels on. A wide side means neighbours that want channels last,
// and a copy between the orders costs more than the gain.
ConvOrder preferred_conv_order(const Dims& x_shape, const Dims& w_shape, const Dims& stride,
                               int64_t groups) {
  // Volumes: the library's direct convolutions read channels last, row-major goes by im2col.
  if (x_shape.size() == 5) return ConvOrder::kChannelsLast;
  if (x_shape.size() != 4 || w_shape.size() != 4) return ConvOrder::kAny;
  constexpr int64_t kNarrow = 16, kWide = 32, kTiny = 8, kCacheBytes = 8 << 20;
  const int64_t n = x_shape[0], c = x_shape[1], k = w_shape[0];
  const int64_t vectors = (n + kernels::kBatchBlock - 1) / kernels::kBatchBlock;
  const bool fills_lanes = n >= kernels::kBatchBlock && 4 * n >= 3 * vectors * kernels::kBatchBlock;
  const bool few = std::min(c, k) / groups < kNarrow && std::max(c, k) <= kWide;
  const int64_t area = x_shape[2] * x_shape[3];
  const int64_t steps = stride.empty() ? 1 : stride.front() * stride.back();
  const int64_t bytes = n * area * (c + k / steps) * size_of(DType::F32);
  const bool fits = std::max(c, k) <= kTiny || bytes <= kCacheBytes;
  return fills_lanes && few && fits ? ConvOrder::kChwn : ConvOrder::kChannelsLast;
}

std::vector<TensorType> infer_convolution(const Graph& g, const Node& n) {
  const TensorType &a = g.type(n.arg_value(0)), &b = g.type(n.arg_value(1));
  switch (n.op) {
    case Op::Convolution: {
      user_check(a.shape.size() > 2, "[convolution] input {} has no spatial dims", text(a.shape));
      const ConvArgs c = conv_args(n.op, n.args, a.shape.size() - 2);
      const Dims y = output_shape(a.shape, b.shape, c);
      const ValueId bias = n.arg_value_or_none(2);
      user_check(bias == kNoValue || g.type(bias).shape == Dims{y[1]},
                 "[convolution] the bias does not have {} elements", y[1]);
      return {{a.dtype, y, {}}};
    }
    default: {
      const Dims made = n.args.ints(2);
      const bool input = n.op == Op::ConvInputGrad;
      check_gradient(n, a.shape, input ? made : b.shape, input ? b.shape : made);
      return {{a.dtype, made, {}}};
    }
  }
}

Work work_convolution(const Graph& g, const Node& n) {
  const Dims& a = g.type(n.arg_value(0)).shape;
  const ConvArgs c = conv_args(n.op, n.args, a.size() - 2);
  const Dims out = n.op == Op::Convolution ? g.type(n.results[0]).shape : Dims{};
  const Dims& b = g.type(n.arg_value(1)).shape;
  ConvShape s;
  switch (n.op) {
    case Op::Convolution:
      s = c.transposed ? geometry(out, b, a, c) : geometry(a, b, out, c);
      break;
    case Op::ConvInputGrad:
      s = geometry(n.args.ints(2), b, a, c);
      break;
    default:
      s = geometry(b, n.args.ints(2), a, c);
  }
  Work work{.kind = WorkKind::kConv,
            .flops = operations({2, s.n, s.k, s.group_c(), s.kernel[0], s.kernel[1], s.kernel[2],
                                 s.out[0], s.out[1], s.out[2]}),
            .m = operations({s.n, s.out[0], s.out[1], s.out[2]}),
            .n = s.group_k(),
            .k = operations({s.group_c(), s.kernel[0], s.kernel[1], s.kernel[2]}),
            .batch = s.groups};
  for (ValueId v : n.operands) work.bytes += g.type(v).bytes();
  for (ValueId v : n.results) work.bytes += g.type(v).bytes();
  return work;
}

KernelPtr make_convolution(const StepDesc& d) {
  const ConvCall c = conv_call(d);
  if (c.x.count() == 0 || c.y.count() == 0 || c.w.count() == 0) {
    const TensorRef out = d.outputs[0];
    return make_kernel(
        [out](const RunCtx& r) { std::fill_n(r.ptr<std::byte>(out), out.bytes(), std::byte{0}); },
        0, true);
  }
  if (takes_chwn(c)) {
    if (c.direction == ConvDirection::kWeightGrad) return std::make_unique<ChwnWeightGrad>(c);
    return std::make_unique<ChwnConv>(c);
  }
  if (auto primitive = try_dnnl(c, d)) return std::make_unique<DnnlConv>(c, std::move(primitive));
  switch (c.x.dtype) {
    case DType::F32:
      return std::make_unique<ReferenceConv<float>>(c);
    case DType::F64:
      return std::make_unique<ReferenceConv<double>>(c);
    case DType::I64:
      return std::make_unique<ReferenceConv<int64_t>>(c);
    case DType::I32:
      return std::make_unique<ReferenceConv<int32_t>>(c);
    case DType::F16:
    case DType::BF16:
      return make_widened(d, make_convolution, conv_pieces(c, d));
    default:
      throw UserError(
          fmt::format("[convolution] no kernel for {} tensors ({})", name_of(c.x.dtype), d.where));
  }
}

bool accepts_convolution(Op op, int index, const TensorRef& physical) {
  const bool activation = index == 0 || (op == Op::ConvWeightGrad && index == 1);
  if (physical.contiguous()) return true;
  if (!activation || physical.shape.size() < 4) return false;
  return is_dense_with_inner(physical, 0) || is_dense_with_inner(physical, 1);
}

}  // namespace tessera
