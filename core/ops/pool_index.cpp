// SPDX-License-Identifier: Apache-2.0
// Pooling whose windows or indices are data: fractional max pooling (windows from random samples),
// and putting pooled elements back at their indices, by assignment (unpooling) or by addition (the
// gradient). One plane at a time; the order of elements is that of memory, so the last of several
// with one index wins, as in ATen.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "ops/registry.h"
#include "ops/run_error.h"
#include "ops/sizes.h"
#include "ops/widened.h"

namespace tessera {
namespace {

// Elements below which a second thread costs more than it saves.
constexpr int64_t kSmall = 8 * 1024;

template <typename T>
class PutKernel final : public Kernel {
 public:
  PutKernel(const StepDesc& d, bool add)
      : x_(d.inputs[d.args.operand(0)]),
        index_(d.inputs[d.args.operand(1)]),
        y_(d.outputs[0]),
        add_(add) {
    area_ = product(d.args.ints(2));
    planes_ = area_ ? y_.count() / area_ : 0;
    pixels_ = planes_ ? x_.count() / planes_ : 0;
  }
  bool single_thread() const override { return y_.count() < kSmall; }
  bool may_fail() const override { return true; }
  void run(const RunCtx& c) const override {
    const auto [begin, end] = thread_range(c, planes_);
    for (int64_t p = begin; p < end; ++p) {
      const T* x = c.ptr<T>(x_) + p * pixels_;
      const int64_t* index = c.ptr<int64_t>(index_) + p * pixels_;
      T* y = c.ptr<T>(y_) + p * area_;
      std::fill_n(y, area_, T{});
      for (int64_t i = 0; i < pixels_; ++i) {
        const int64_t at = index[i];
        if (at < 0 || at >= area_) {
          fail_run(c, "found an invalid max index: {} (output volumes are of size {})", at, area_);
          return;
        }
        y[at] = add_ ? static_cast<T>(y[at] + x[i]) : x[i];
      }
    }
  }

 private:
  TensorRef x_, index_, y_;
  bool add_;
  int64_t area_ = 0, planes_ = 0, pixels_ = 0;
};

class FractionalKernel final : public Kernel {
 public:
  explicit FractionalKernel(const StepDesc& d)
      : x_(d.inputs[d.args.operand(0)]),
        samples_(d.inputs[d.args.operand(3)]),
        y_(d.outputs[0]),
        index_(d.outputs[1]),
        kernel_(d.args.ints(1)),
        out_(d.args.ints(2)) {
    const size_t k = kernel_.size();
    in_.assign(x_.shape.end() - static_cast<int64_t>(k), x_.shape.end());
    planes_ = x_.count() / std::max<int64_t>(1, product(in_));
    // Two spatial dims have their samples last dim first.
    for (size_t i = 0; i < k; ++i) sample_of_.push_back(k == 2 ? k - 1 - i : i);
    while (in_.size() < 3) {
      in_.insert(in_.begin(), 1);
      out_.insert(out_.begin(), 1);
      kernel_.insert(kernel_.begin(), 1);
    }
  }
  bool single_thread() const override { return x_.count() < kSmall; }
  int64_t scratch_bytes(int threads) const override { return threads * sequence_bytes(); }
  void run(const RunCtx& c) const override {
    const auto [begin, end] = thread_range(c, planes_);
    auto* starts = reinterpret_cast<int64_t*>(c.scratch + c.thread * sequence_bytes());
    const size_t missing = 3 - sample_of_.size();
    for (int64_t p = begin; p < end; ++p) {
      int64_t* sequence[3];
      int64_t* next = starts;
      for (size_t d = 0; d < 3; ++d) {
        sequence[d] = next;
        next += out_[d];
        const float* samples = c.ptr<float>(samples_) + p * static_cast<int64_t>(sample_of_.size());
        fill_starts(d, d < missing ? 0.0f : samples[sample_of_[d - missing]], sequence[d]);
      }
      plane(c.ptr<float>(x_) + p * product(in_), sequence, c.ptr<float>(y_) + p * product(out_),
            c.ptr<int64_t>(index_) + p * product(out_));
    }
  }

 private:
  int64_t sequence_bytes() const { return (out_[0] + out_[1] + out_[2]) * 8 + 64; }

  // Where the windows of one axis start, from one random number.
  void fill_starts(size_t d, float sample, int64_t* starts) const {
    const int64_t last = in_[d] - kernel_[d];
    if (out_[d] > 1) {
      const float alpha = static_cast<float>(last) / static_cast<float>(out_[d] - 1);
      for (int64_t i = 0; i < out_[d] - 1; ++i)
        starts[i] = static_cast<int64_t>((static_cast<float>(i) + sample) * alpha) -
                    static_cast<int64_t>(sample * alpha);
    }
    if (out_[d] > 0) starts[out_[d] - 1] = last;
  }

  void plane(const float* x, int64_t* const* starts, float* y, int64_t* index) const {
    for (int64_t od = 0; od < out_[0]; ++od)
      for (int64_t oh = 0; oh < out_[1]; ++oh)
        for (int64_t ow = 0; ow < out_[2]; ++ow, ++y, ++index) {
          const int64_t d0 = starts[0][od], h0 = starts[1][oh], w0 = starts[2][ow];
          float best = -std::numeric_limits<float>::infinity();
          int64_t where = (d0 * in_[1] + h0) * in_[2] + w0;
          for (int64_t d = d0; d < d0 + kernel_[0]; ++d)
            for (int64_t h = h0; h < h0 + kernel_[1]; ++h)
              for (int64_t w = w0; w < w0 + kernel_[2]; ++w) {
                const int64_t at = (d * in_[1] + h) * in_[2] + w;
                if (x[at] > best || std::isnan(x[at])) best = x[at], where = at;
              }
          *y = best;
          *index = where;
        }
  }

  TensorRef x_, samples_, y_, index_;
  Dims kernel_, in_, out_;
  std::vector<size_t> sample_of_;
  int64_t planes_ = 0;
};

KernelPtr make_add(const StepDesc& d) {
  return std::make_unique<PutKernel<float>>(d, true);
}

}  // namespace

std::vector<TensorType> infer_pool_index(const Graph& g, const Node& n) {
  const TensorType& x = g.type(n.arg_value(0));
  const Dims size = n.args.ints(2);
  user_check(!size.empty() && size.size() <= 3 && size.size() <= x.shape.size(),
             "[{}] {} spatial dims of a tensor with {}", op_text(n.op), size.size(), x.rank());
  TensorType y{x.dtype, x.shape, {}};
  const auto first = y.shape.end() - static_cast<int64_t>(size.size());
  if (n.op != Op::FractionalMaxPool) {
    const TensorType& index = g.type(n.arg_value(1));
    user_check(index.shape == x.shape && index.dtype == DType::I64,
               "[{}] the index needs the shape of the tensor", op_text(n.op));
    std::copy(size.begin(), size.end(), first);
    return {y};
  }
  const Dims kernel = n.args.ints(1);
  user_check(kernel.size() == size.size(), "[fractional_max_pool] {} kernel sizes for {} dims",
             kernel.size(), size.size());
  for (size_t i = 0; i < size.size(); ++i)
    user_check(size[i] + kernel[i] - 1 <= first[static_cast<int64_t>(i)],
               "[fractional_max_pool] pool and output size do not fit into the input");
  const TensorType& samples = g.type(n.arg_value(3));
  const Dims lead(y.shape.begin(), first);
  user_check(samples.dtype == DType::F32 &&
                 samples.count() == product(lead) * static_cast<int64_t>(size.size()),
             "[fractional_max_pool] {} is not a random number per window and dim",
             to_string(samples));
  std::copy(size.begin(), size.end(), first);
  return {y, {DType::I64, y.shape, {}}};
}

Work work_pool_index(const Graph& g, const Node& n) {
  Work work{.kind = WorkKind::kGather, .flops = g.type(n.arg_value(0)).count()};
  if (n.op == Op::MaxUnpool) work.flops = 0;
  if (n.op == Op::FractionalMaxPool) {
    work.flops = g.type(n.results[0]).count();
    for (int64_t k : n.args.ints(1)) work.flops = operations({work.flops, k});
  }
  for (ValueId v : n.operands) work.bytes += g.type(v).bytes();
  for (ValueId v : n.results) work.bytes += g.type(v).bytes();
  return work;
}

KernelPtr make_pool_index(const StepDesc& d) {
  if (d.outputs[0].count() == 0) return make_kernel([](const RunCtx&) {}, 0, true);
  if (d.op == Op::PoolIndexAdd) return make_widened(d, make_add, Pieces::along(d, 0));
  if (d.op == Op::FractionalMaxPool) return std::make_unique<FractionalKernel>(d);
  switch (size_of(d.outputs[0].dtype)) {
    case 1:
      return std::make_unique<PutKernel<uint8_t>>(d, false);
    case 2:
      return std::make_unique<PutKernel<uint16_t>>(d, false);
    case 4:
      return std::make_unique<PutKernel<uint32_t>>(d, false);
    default:
      return std::make_unique<PutKernel<uint64_t>>(d, false);
  }
}

bool accepts_pool_index(Op, int, const TensorRef& physical) {
  return physical.contiguous();
}

}  // namespace tessera
