// SPDX-License-Identifier: Apache-2.0
// Max and average pooling, sliding and adaptive, with their gradients. The contiguous dim of the
// tensors decides how vectors run: along the batch, along channels, or along the image row.
#include "kernels/pool.h"

#include <algorithm>

#include "kernels/pool_reference.h"
#include "ops/convolution.h"
#include "ops/registry.h"
#include "ops/sizes.h"
#include "ops/view.h"
#include "ops/widened.h"

namespace tessera {
namespace {

using kernels::PoolAxis;
using kernels::PoolPlane;

// Elements read below which a second thread costs more than it saves.
constexpr int64_t kSmall = 8 * 1024;

bool is_grad(Op op) {
  return op == Op::MaxPoolGrad || op == Op::AvgPoolGrad || op == Op::AdaptiveAvgPoolGrad ||
         op == Op::AdaptiveMaxPoolGrad;
}
bool is_adaptive(Op op) {
  return op == Op::AdaptiveAvgPool || op == Op::AdaptiveAvgPoolGrad || op == Op::AdaptiveMaxPool ||
         op == Op::AdaptiveMaxPoolGrad;
}
bool is_max(Op op) {
  return op == Op::MaxPool || op == Op::AdaptiveMaxPool;
}
bool is_max_grad(Op op) {
  return op == Op::MaxPoolGrad || op == Op::AdaptiveMaxPoolGrad;
}

Dims spread(Dims v, size_t spatial, const Dims& otherwise) {
  if (v.empty()) v = otherwise;
  if (v.size() == 1) v.resize(spatial, v[0]);
  user_check(v.size() == spatial, "[pool] {} values for {} spatial dims", v.size(), spatial);
  return v;
}

struct PoolArgs {
  Dims kernel, stride, padding, dilation;
  bool ceil = false, include_pad = true;
  int64_t divisor = 0;  // 0: the window's size
};

// How many of the last dims are pooled.
size_t spatial_dims(Op op, const Args& a) {
  return a.ints(is_grad(op) ? 2 : 1).size();
}

// Not for the adaptive ops. Gradients have the output gradient and then the forward's arguments.
PoolArgs pool_args(Op op, const Args& a) {
  size_t i = is_grad(op) ? 2 : 1;
  const bool max = op == Op::MaxPool || op == Op::MaxPoolGrad;
  const size_t spatial = spatial_dims(op, a);
  PoolArgs p;
  p.kernel = a.ints(i++);
  p.stride = spread(a.ints(i++), spatial, p.kernel);
  p.padding = spread(a.ints(i++), spatial, {0});
  p.dilation = spread(max ? a.ints(i++) : Dims{}, spatial, {1});
  p.ceil = a.boolean_or(i++, false);
  if (!max) {
    p.include_pad = a.boolean_or(i++, true);
    p.divisor = a.integer_or(i, 0);
    user_check(!a.has(i) || p.divisor != 0, "[pool] divisor must be not zero");
  }
  for (size_t d = 0; d < spatial; ++d) {
    user_check(p.kernel[d] > 0 && p.stride[d] > 0 && p.dilation[d] > 0,
               "[pool] kernel size, stride and dilation must be positive");
    user_check(p.padding[d] >= 0 && 2 * p.padding[d] <= p.kernel[d],
               "[pool] padding must be at most half the kernel size, got {} and {}", p.padding[d],
               p.kernel[d]);
  }
  return p;
}

int64_t pooled_size(int64_t in, const PoolArgs& p, size_t d) {
  const int64_t window = p.dilation[d] * (p.kernel[d] - 1) + 1;
  // Rounded up, a window may reach past the padding by less than a stride.
  const int64_t room = in + 2 * p.padding[d] - window + (p.ceil ? p.stride[d] - 1 : 0);
  user_check(room >= 0, "[pool] window of {} does not fit into {} inputs", window, in);
  int64_t out = room / p.stride[d] + 1;
  // The last window must start inside the image or its left padding.
  if (p.ceil && (out - 1) * p.stride[d] >= in + p.padding[d]) --out;
  return out;
}

// Batch and channels, whichever of them a tensor has; the other dims are spatial, all but the last
// counted as rows.
struct Image {
  int64_t sizes[2] = {1, 1};
  TensorRef ref;
  int64_t steps[2] = {0, 0};
  int64_t row = 0, col = 0;

  Image() = default;
  Image(const TensorRef& t, size_t spatial) : ref(t) {
    const size_t rank = t.shape.size(), lead = rank - spatial;
    for (size_t d = 0; d < lead; ++d) {
      sizes[2 - lead + d] = t.shape[d];
      steps[2 - lead + d] = t.strides[d];
    }
    col = t.strides[rank - 1];
    // The innermost row dim that is one; those around it lie densely.
    int64_t rows = 1;
    for (size_t d = rank - 1; d-- > lead;) {
      if (t.shape[d] == 1) continue;
      if (rows == 1) row = t.strides[d];
      invariant(t.strides[d] == row * rows, "[pool] rows of an image are not contiguous");
      rows *= t.shape[d];
    }
  }
  template <typename T>
  PoolPlane<T> plane(const RunCtx& c, int64_t a, int64_t b) const {
    return {c.ptr<std::remove_const_t<T>>(ref) + a * steps[0] + b * steps[1], row, col};
  }
};

class PoolKernel final : public Kernel {
 public:
  explicit PoolKernel(const StepDesc& d) : op_(d.op) {
    const size_t spatial = spatial_dims(op_, d.args);
    a_ = Image(d.inputs[d.args.operand(0)], spatial);
    out_ = Image(d.outputs[0], spatial);
    // Extents of the image and of its pooled form.
    const TensorRef& image = is_grad(op_) ? d.outputs[0] : d.inputs[d.args.operand(0)];
    const TensorRef& pooled = is_grad(op_) ? d.inputs[d.args.operand(0)] : d.outputs[0];
    const size_t lead = image.shape.size() - spatial;
    PoolArgs p;
    if (!is_adaptive(op_)) p = pool_args(op_, d.args);
    std::vector<PoolAxis> axes;
    for (size_t i = 0; i < spatial; ++i) {
      const int64_t in = image.shape[lead + i], out = pooled.shape[lead + i];
      axes.push_back(is_adaptive(op_)
                         ? kernels::adaptive_axis(in, out)
                         : kernels::sliding_axis(in, out, p.kernel[i], p.stride[i], p.padding[i],
                                                 p.dilation[i], p.include_pad));
      for (const auto& window : axes.back().windows) empty_window_ |= window.count == 0;
    }
    divisor_ = p.divisor;
    tiled_ = op_ == Op::MaxPoolGrad && spatial == 2 && p.kernel == p.stride &&
             p.padding == Dims{0, 0} && p.dilation == Dims{1, 1} && !p.ceil;
    w_ = std::move(axes.back());
    axes.pop_back();
    h_ = kernels::pool_rows(axes);
    if (is_max_grad(op_))
      index_ = Image(d.inputs[d.args.operand(is_adaptive(op_) ? 3 : 7)], spatial);
    // Nobody may want the indices; then the step has one result only.
    if (is_max(op_) && d.outputs.size() > 1) index_ = Image(d.outputs[1], spatial);
    has_index_ = !index_.ref.shape.empty();
    small_ = std::max(image.count(), pooled.count()) < kSmall;
    choose_way(image.dtype);
  }

  void run(const RunCtx& c) const override {
    if (out_.ref.count() == 0) return;
    const kernels::PoolKernels& k = kernels::pool_kernels();
    const int64_t rows = rows_per_plane();
    const int64_t blocks = (inner_ + block_ - 1) / block_;
    const auto [begin, end] = thread_range(c, planes_ * rows * blocks);
    int64_t block = begin % blocks, row = begin / blocks % rows, plane = begin / blocks / rows;
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t from = block * block_;
      int64_t at[2] = {0, plane};  // batch and channel counted as one dim if neither is inner
      if (way_ == Way::kInner) {
        at[1 - inner_dim_] = plane;
        at[inner_dim_] = from;
      } else if (out_.sizes[0] > 1) {
        at[0] = plane / out_.sizes[1];
        at[1] = plane % out_.sizes[1];
      }
      if (way_ == Way::kReference)
        reference(c, at[0], at[1]);
      else if (repeats_ && unit > begin && h_.as_before[row])
        copy_row(c, at[0], at[1], row);
      else
        vectors(k, c, at[0], at[1], row, std::min(block_, inner_ - from));
      // Counted, not divided: a unit may be as short as a few vectors.
      if (++block < blocks) continue;
      block = 0;
      if (++row < rows) continue;
      row = 0;
      ++plane;
    }
  }
  bool single_thread() const override { return small_; }

 private:
  enum class Way { kInner, kFlat, kReference };

  void choose_way(DType dtype) {
    auto all_step_one = [&](auto step) {
      return step(a_) == 1 && step(out_) == 1 && (!has_index_ || step(index_) == 1);
    };
    // Channels first: with N = 1 both would do.
    for (int d : {1, 0})
      if (dtype == DType::F32 && !empty_window_ && out_.sizes[d] > 1 &&
          all_step_one([d](const Image& p) { return p.steps[d]; })) {
        way_ = Way::kInner;
        inner_dim_ = d;
        inner_ = out_.sizes[d];
        planes_ = out_.sizes[1 - d];
        // Few rows, as in a global average: threads share the inner dim too.
        constexpr int64_t kFewRows = 16, kInnerBlock = 64;
        block_ = planes_ * rows_per_plane() < kFewRows ? kInnerBlock : inner_;
        return;
      }
    planes_ = out_.sizes[0] * out_.sizes[1];
    inner_ = block_ = 1;
    const bool rows =
        all_step_one([](const Image& p) { return p.col; }) || (w_.in == 1 && w_.out == 1);
    way_ = dtype == DType::F32 && rows && !empty_window_ ? Way::kFlat : Way::kReference;
    repeats_ = way_ == Way::kFlat && is_grad(op_) && !is_max_grad(op_);
  }

  int64_t rows_per_plane() const {
    if (way_ == Way::kReference || (way_ == Way::kFlat && is_max_grad(op_))) return 1;
    if (tiled_) return h_.out;
    return is_grad(op_) ? h_.in : h_.out;
  }

  void vectors(const kernels::PoolKernels& k, const RunCtx& c, int64_t a, int64_t b, int64_t row,
               int64_t n) const {
    const auto x = a_.plane<const float>(c, a, b);
    const auto y = out_.plane<float>(c, a, b);
    const bool flat = way_ == Way::kFlat;
    switch (op_) {
      case Op::MaxPool:
      case Op::AdaptiveMaxPool: {
        PoolPlane<int64_t> index;
        if (has_index_) index = index_.plane<int64_t>(c, a, b);
        if (flat) return k.max_row_flat(h_, w_, row, x, y, index);
        return k.max_row(h_, w_, row, x, y, index, n);
      }
      case Op::MaxPoolGrad:
      case Op::AdaptiveMaxPoolGrad: {
        const auto index = index_.plane<const int64_t>(c, a, b);
        if (flat) return k.max_grad_flat(h_, w_, x, index, y);
        if (tiled_) return k.max_grad_tiles(h_, w_, row, x, index, y, n);
        return k.max_grad_row(h_, w_, row, x, index, y, n);
      }
      case Op::AvgPool:
      case Op::AdaptiveAvgPool:
        if (flat) return k.avg_row_flat(h_, w_, row, divisor_, x, y);
        return k.avg_row(h_, w_, row, divisor_, x, y, n);
      default:
        if (flat) return k.avg_grad_row_flat(h_, w_, row, divisor_, x, y);
        return k.avg_grad_row(h_, w_, row, divisor_, x, y, n);
    }
  }

  // Neighbouring rows under the same windows have the same average gradient.
  void copy_row(const RunCtx& c, int64_t a, int64_t b, int64_t row) const {
    const auto y = out_.plane<float>(c, a, b);
    const float* before = y.at + (row - 1) * y.row;
    std::copy_n(before, w_.in, y.at + row * y.row);
  }

  template <typename T>
  void reference_of(const RunCtx& c, int64_t a, int64_t b) const {
    using Reference = kernels::PoolReference<T>;
    const auto x = a_.plane<const T>(c, a, b);
    const auto y = out_.plane<T>(c, a, b);
    if (is_max(op_)) {
      PoolPlane<int64_t> index;
      if (has_index_) index = index_.plane<int64_t>(c, a, b);
      Reference::max(h_, w_, x, y, index);
    } else if (is_max_grad(op_)) {
      Reference::max_grad(h_, w_, x, index_.plane<const int64_t>(c, a, b), y);
    } else if (is_grad(op_)) {
      Reference::avg_grad(h_, w_, divisor_, x, y);
    } else {
      Reference::avg(h_, w_, divisor_, x, y);
    }
  }

  void reference(const RunCtx& c, int64_t a, int64_t b) const {
    switch (out_.ref.dtype) {
      case DType::F64:
        return reference_of<double>(c, a, b);
      case DType::I64:
        return reference_of<int64_t>(c, a, b);
      case DType::I32:
        return reference_of<int32_t>(c, a, b);
      case DType::I16:
        return reference_of<int16_t>(c, a, b);
      case DType::I8:
        return reference_of<int8_t>(c, a, b);
      case DType::U8:
        return reference_of<uint8_t>(c, a, b);
      default:
        return reference_of<float>(c, a, b);
    }
  }

  Op op_;
  Image a_, out_, index_;  // the image or the output gradient; the result; indices
  bool has_index_ = false, tiled_ = false, small_ = false, empty_window_ = false, repeats_ = false;
  kernels::PoolRows h_;
  PoolAxis w_;
  int64_t divisor_ = 0;
  Way way_ = Way::kReference;
  int inner_dim_ = 1;
  int64_t planes_ = 1, inner_ = 1, block_ = 1;
};

}  // namespace

std::vector<TensorType> infer_pool(const Graph& g, const Node& n) {
  const TensorType& x = g.type(n.arg_value(is_grad(n.op) ? 1 : 0));
  const size_t spatial = spatial_dims(n.op, n.args), rank = x.shape.size();
  user_check(spatial >= 1 && (rank == spatial + 1 || rank == spatial + 2),
             "[pool] needs {} or {} dims, got {}", spatial + 1, spatial + 2, rank);
  user_check(spatial <= 3, "[pool] over {} dims", spatial);
  TensorType y{x.dtype, x.shape, {}};
  if (is_adaptive(n.op)) {
    const Dims size = n.args.ints(is_grad(n.op) ? 2 : 1);
    for (int64_t s : size) user_check(s >= 0, "[pool] output size must not be negative");
    std::copy(size.begin(), size.end(), y.shape.end() - static_cast<int64_t>(spatial));
  } else {
    const PoolArgs p = pool_args(n.op, n.args);
    for (size_t d = 0; d < spatial; ++d)
      y.shape[rank - spatial + d] = pooled_size(x.shape[rank - spatial + d], p, d);
  }
  if (is_grad(n.op)) {
    const TensorType& gy = g.type(n.arg_value(0));
    user_check(gy.shape == y.shape, "[pool] a gradient of {} for a result of {}", text_of(gy.shape),
               text_of(y.shape));
    user_check(
        !is_max_grad(n.op) ||
            g.type(n.arg_value(is_adaptive(n.op) ? 3 : 7)).same_logical({DType::I64, y.shape, {}}),
        "[pool] the index does not have the type of the forward pass");
    return {{x.dtype, x.shape, {}}};
  }
  if (!is_max(n.op)) return {y};
  return {y, {DType::I64, y.shape, {}}};
}

Work work_pool(const Graph& g, const Node& n) {
  const TensorType& pooled = g.type(is_grad(n.op) ? n.arg_value(0) : n.results[0]);
  const TensorType& image = g.type(is_grad(n.op) ? n.results[0] : n.arg_value(0));
  int64_t flops = pooled.count();
  if (is_adaptive(n.op))
    flops = operations({flops, std::max<int64_t>(image.count() / std::max<int64_t>(flops, 1), 1)});
  else
    for (int64_t k : pool_args(n.op, n.args).kernel) flops = operations({flops, k});
  Work work{.kind = WorkKind::kReduce, .flops = flops};
  for (ValueId v : n.operands) work.bytes += g.type(v).bytes();
  for (ValueId v : n.results) work.bytes += g.type(v).bytes();
  return work;
}

KernelPtr make_pool(const StepDesc& d) {
  const DType t = d.outputs[0].dtype;
  if (t == DType::F16 || t == DType::BF16) {
    Pieces pieces = Pieces::along(d, 0);
    if (is_grad(d.op)) pieces.inputs[d.args.operand(1)] = Pieces::kUnread;
    return make_widened(d, make_pool, pieces);
  }
  user_check(is_float(t) || is_int(t), "[pool] no kernel for {} tensors ({})", name_of(t), d.where);
  return std::make_unique<PoolKernel>(d);
}

bool accepts_pool(Op, int, const TensorRef& physical) {
  if (physical.contiguous()) return true;
  return physical.shape.size() >= 4 &&
         (is_dense_with_inner(physical, 0) || is_dense_with_inner(physical, 1));
}

}  // namespace tessera
