// SPDX-License-Identifier: Apache-2.0
// Max, average and adaptive average pooling with their gradients. The contiguous dim of the tensors
// decides how vectors run: along the batch, along channels, or along the image row.
#include "kernels/pool.h"

#include <algorithm>

#include "kernels/pool_reference.h"
#include "ops/convolution.h"
#include "ops/registry.h"

namespace tessera {
namespace {

using kernels::PoolAxis;
using kernels::PoolPlane;

// Elements read below which a second thread costs more than it saves.
constexpr int64_t kSmall = 8 * 1024;

bool is_grad(Op op) {
  return op == Op::MaxPool2dGrad || op == Op::AvgPool2dGrad || op == Op::AdaptiveAvgPool2dGrad;
}
bool is_max(Op op) {
  return op == Op::MaxPool2d || op == Op::MaxPool2dGrad;
}

Dims pair(Dims v, const Dims& otherwise) {
  if (v.empty()) v = otherwise;
  if (v.size() == 1) v.push_back(v[0]);
  user_check(v.size() == 2, "[pool] {} values for two spatial dims", v.size());
  return v;
}

struct PoolArgs {
  Dims kernel, stride, padding, dilation{1, 1};
  bool ceil = false, include_pad = true;
  int64_t divisor = 0;  // 0: the window's size
};

// Not for the adaptive ops. Gradients have the output gradient and then the forward's arguments.
PoolArgs pool_args(Op op, const Args& a) {
  size_t i = is_grad(op) ? 2 : 1;
  PoolArgs p;
  p.kernel = pair(a.ints(i++), {});
  p.stride = pair(a.ints(i++), p.kernel);
  p.padding = pair(a.ints(i++), {0, 0});
  if (is_max(op)) p.dilation = pair(a.ints(i++), {1, 1});
  p.ceil = a.boolean_or(i++, false);
  if (!is_max(op)) {
    p.include_pad = a.boolean_or(i++, true);
    p.divisor = a.integer_or(i, 0);
    user_check(!a.has(i) || p.divisor != 0, "[pool] divisor must be not zero");
  }
  for (int d = 0; d < 2; ++d) {
    user_check(p.kernel[d] > 0 && p.stride[d] > 0 && p.dilation[d] > 0,
               "[pool] kernel size, stride and dilation must be positive");
    user_check(p.padding[d] >= 0 && 2 * p.padding[d] <= p.kernel[d],
               "[pool] padding must be at most half the kernel size, got {} and {}", p.padding[d],
               p.kernel[d]);
  }
  return p;
}

int64_t pooled_size(int64_t in, const PoolArgs& p, int d) {
  const int64_t window = p.dilation[d] * (p.kernel[d] - 1) + 1;
  const int64_t room = in + 2 * p.padding[d] - window;
  user_check(room >= 0, "[pool] window of {} does not fit into {} inputs", window, in);
  int64_t out = (room + (p.ceil ? p.stride[d] - 1 : 0)) / p.stride[d] + 1;
  // The last window must start inside the image or its left padding.
  if (p.ceil && (out - 1) * p.stride[d] >= in + p.padding[d]) --out;
  return out;
}

// Batch and channels, whichever of them a tensor of rank 3 or 4 has; the last two dims are spatial.
struct Place {
  int64_t sizes[2] = {1, 1};
  TensorRef ref;
  int64_t steps[2] = {0, 0};
  int64_t row = 0, col = 0;

  Place() = default;
  explicit Place(const TensorRef& t) : ref(t) {
    const size_t rank = t.shape.size();
    for (size_t d = 0; d + 2 < rank; ++d) {
      sizes[2 - (rank - 2) + d] = t.shape[d];
      steps[2 - (rank - 2) + d] = t.strides[d];
    }
    row = t.strides[rank - 2];
    col = t.strides[rank - 1];
  }
  template <typename T>
  PoolPlane<T> plane(const RunCtx& c, int64_t a, int64_t b) const {
    return {c.ptr<std::remove_const_t<T>>(ref) + a * steps[0] + b * steps[1], row, col};
  }
};

class PoolKernel final : public Kernel {
 public:
  explicit PoolKernel(const StepDesc& d) : op_(d.op), out_(d.outputs[0]) {
    a_ = Place(d.inputs[d.args.operand(0)]);
    // Extents of the image and of its pooled form.
    const TensorRef& image = is_grad(op_) ? d.outputs[0] : d.inputs[d.args.operand(0)];
    const TensorRef& pooled = is_grad(op_) ? d.inputs[d.args.operand(0)] : d.outputs[0];
    const size_t rank = image.shape.size();
    PoolArgs p;
    if (op_ == Op::AdaptiveAvgPool2d || op_ == Op::AdaptiveAvgPool2dGrad) {
      h_ = kernels::adaptive_axis(image.shape[rank - 2], pooled.shape[rank - 2]);
      w_ = kernels::adaptive_axis(image.shape[rank - 1], pooled.shape[rank - 1]);
    } else {
      p = pool_args(op_, d.args);
      auto axis = [&](int i) {
        return kernels::sliding_axis(image.shape[rank - 2 + i], pooled.shape[rank - 2 + i],
                                     p.kernel[i], p.stride[i], p.padding[i], p.dilation[i],
                                     p.include_pad);
      };
      h_ = axis(0), w_ = axis(1);
      divisor_ = p.divisor;
      tiled_ =
          p.kernel == p.stride && p.padding == Dims{0, 0} && p.dilation == Dims{1, 1} && !p.ceil;
    }
    if (op_ == Op::MaxPool2dGrad) index_ = Place(d.inputs[d.args.operand(7)]);
    // Nobody may want the indices; then the step has one result only.
    if (op_ == Op::MaxPool2d && d.outputs.size() > 1) index_ = Place(d.outputs[1]);
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
      if (dtype == DType::F32 && out_.sizes[d] > 1 &&
          all_step_one([d](const Place& p) { return p.steps[d]; })) {
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
        all_step_one([](const Place& p) { return p.col; }) || (w_.in == 1 && w_.out == 1);
    way_ = dtype == DType::F32 && rows ? Way::kFlat : Way::kReference;
  }

  int64_t rows_per_plane() const {
    if (way_ == Way::kReference || (way_ == Way::kFlat && op_ == Op::MaxPool2dGrad)) return 1;
    if (op_ == Op::MaxPool2dGrad && tiled_) return h_.out;
    return is_grad(op_) ? h_.in : h_.out;
  }

  void vectors(const kernels::PoolKernels& k, const RunCtx& c, int64_t a, int64_t b, int64_t row,
               int64_t n) const {
    const auto x = a_.plane<const float>(c, a, b);
    const auto y = out_.plane<float>(c, a, b);
    const bool flat = way_ == Way::kFlat;
    switch (op_) {
      case Op::MaxPool2d: {
        PoolPlane<int64_t> index;
        if (has_index_) index = index_.plane<int64_t>(c, a, b);
        if (flat) return k.max_row_flat(h_, w_, row, x, y, index);
        return k.max_row(h_, w_, row, x, y, index, n);
      }
      case Op::MaxPool2dGrad: {
        const auto index = index_.plane<const int64_t>(c, a, b);
        if (flat) return k.max_grad_flat(h_, w_, x, index, y);
        if (tiled_) return k.max_grad_tiles(h_, w_, row, x, index, y, n);
        return k.max_grad_row(h_, w_, row, x, index, y, n);
      }
      case Op::AvgPool2d:
      case Op::AdaptiveAvgPool2d:
        if (flat) return k.avg_row_flat(h_, w_, row, divisor_, x, y);
        return k.avg_row(h_, w_, row, divisor_, x, y, n);
      default:
        if (flat) return k.avg_grad_row_flat(h_, w_, row, divisor_, x, y);
        return k.avg_grad_row(h_, w_, row, divisor_, x, y, n);
    }
  }

  template <typename T>
  void reference_of(const RunCtx& c, int64_t a, int64_t b) const {
    using Reference = kernels::PoolReference<T>;
    const auto x = a_.plane<const T>(c, a, b);
    const auto y = out_.plane<T>(c, a, b);
    if (op_ == Op::MaxPool2d) {
      PoolPlane<int64_t> index;
      if (has_index_) index = index_.plane<int64_t>(c, a, b);
      Reference::max(h_, w_, x, y, index);
    } else if (op_ == Op::MaxPool2dGrad) {
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
      case DType::F16:
        return reference_of<kernels::Half>(c, a, b);
      case DType::BF16:
        return reference_of<kernels::BFloat>(c, a, b);
      default:
        return reference_of<float>(c, a, b);
    }
  }

  Op op_;
  Place a_, out_, index_;  // the image or the output gradient; the result; indices
  bool has_index_ = false, tiled_ = false, small_ = false;
  PoolAxis h_, w_;
  int64_t divisor_ = 0;
  Way way_ = Way::kReference;
  int inner_dim_ = 1;
  int64_t planes_ = 1, inner_ = 1, block_ = 1;
};

}  // namespace

std::vector<TensorType> infer_pool(const Graph& g, const Node& n) {
  const TensorType& x = g.type(n.arg_value(is_grad(n.op) ? 1 : 0));
  user_check(x.rank() == 3 || x.rank() == 4, "[pool] needs 3 or 4 dims, got {}", x.rank());
  if (is_grad(n.op)) return {{x.dtype, x.shape, {}}};
  TensorType y{x.dtype, x.shape, {}};
  const size_t rank = x.shape.size();
  if (n.op == Op::AdaptiveAvgPool2d) {
    const Dims size = pair(n.args.ints(1), {});
    user_check(size[0] > 0 && size[1] > 0, "[pool] output size must be positive");
    std::copy(size.begin(), size.end(), y.shape.end() - 2);
    return {y};
  }
  const PoolArgs p = pool_args(n.op, n.args);
  for (int d = 0; d < 2; ++d) y.shape[rank - 2 + d] = pooled_size(x.shape[rank - 2 + d], p, d);
  if (n.op != Op::MaxPool2d) return {y};
  return {y, {DType::I64, y.shape, {}}};
}

Work work_pool(const Graph& g, const Node& n) {
  const TensorType& pooled = g.type(is_grad(n.op) ? n.arg_value(0) : n.results[0]);
  const TensorType& image = g.type(is_grad(n.op) ? n.results[0] : n.arg_value(0));
  int64_t window = 1;
  if (n.op == Op::AdaptiveAvgPool2d || n.op == Op::AdaptiveAvgPool2dGrad)
    window = std::max<int64_t>(image.count() / std::max<int64_t>(pooled.count(), 1), 1);
  else
    window = product(pool_args(n.op, n.args).kernel);
  Work work{.kind = WorkKind::kReduce, .flops = pooled.count() * window};
  for (ValueId v : n.operands) work.bytes += g.type(v).bytes();
  for (ValueId v : n.results) work.bytes += g.type(v).bytes();
  return work;
}

KernelPtr make_pool(const StepDesc& d) {
  const DType t = d.outputs[0].dtype;
  user_check(t == DType::F32 || t == DType::F64 || t == DType::I64 || t == DType::I32 ||
                 t == DType::F16 || t == DType::BF16,
             "[pool] no kernel for {} tensors ({})", name_of(t), d.where);
  return std::make_unique<PoolKernel>(d);
}

bool accepts_pool(Op, int, const TensorRef& physical) {
  if (physical.contiguous()) return true;
  if (physical.shape.size() != 4) return false;
  return is_dense_in_order(physical, {0, 3, 2, 1}) || is_dense_in_order(physical, {1, 3, 2, 0});
}

}  // namespace tessera
