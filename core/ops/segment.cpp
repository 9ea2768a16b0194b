// SPDX-License-Identifier: Apache-2.0
// segment_reduce(x, reduce, lengths, none, none, axis, unsafe, initial): one result for each run of
// lengths[.., i] elements along `axis`; the dims before it are those of `lengths`.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/gather.h"
#include "ops/registry.h"
#include "ops/run_error.h"
#include "ops/view.h"
#include "ops/widened.h"

namespace tessera {
namespace {

enum class Reduce { kSum, kMean, kMax, kMin, kProd };

Reduce reduce_of(const std::string& name) {
  constexpr const char* kNames[] = {"sum", "mean", "max", "min", "prod"};
  for (int i = 0; i < 5; ++i)
    if (name == kNames[i]) return static_cast<Reduce>(i);
  throw UserError(fmt::format("[segment_reduce] there is no reduction \"{}\"", name));
}

float first_value(Reduce reduce, const Args& args) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  if (args.has(7)) return static_cast<float>(args.real(7));
  return reduce == Reduce::kMax    ? -kInf
         : reduce == Reduce::kMin  ? kInf
         : reduce == Reduce::kProd ? 1
                                   : 0;
}

float combined(Reduce reduce, float a, float b) {
  if (std::isnan(a) || std::isnan(b)) return a + b;
  return reduce == Reduce::kMax    ? std::max(a, b)
         : reduce == Reduce::kMin  ? std::min(a, b)
         : reduce == Reduce::kProd ? a * b
                                   : a + b;
}

class SegmentKernel final : public Kernel {
 public:
  explicit SegmentKernel(const StepDesc& d)
      : x_(d.inputs[d.args.operand(0)]),
        lengths_(d.inputs[d.args.operand(2)]),
        out_(d.outputs[0]),
        reduce_(reduce_of(d.args.text(1))),
        first_(first_value(reduce_, d.args)),
        empty_(reduce_ == Reduce::kMean && !d.args.has(7) ? std::numeric_limits<float>::quiet_NaN()
                                                          : first_),
        unsafe_(d.args.boolean(6)) {
    const size_t axis = lengths_.shape.size() - 1;
    runs_ = lengths_.shape[axis];
    size_ = x_.shape[axis];
    for (size_t i = 0; i < axis; ++i) outer_ *= x_.shape[i];
    for (size_t i = axis + 1; i < x_.shape.size(); ++i) inner_ *= x_.shape[i];
  }
  bool single_thread() const override { return x_.count() < 4096; }
  bool may_fail() const override { return true; }

  void run(const RunCtx& c) const override {
    const auto* x = c.ptr<const float>(x_);
    auto* out = c.ptr<float>(out_);
    const auto [from, to] = thread_range(c, inner_, 16);
    for (int64_t o = 0; o < outer_; ++o) {
      int64_t at = 0;
      for (int64_t r = 0; r < runs_; ++r) {
        const int64_t length =
            kernels::read_index(c.ptr<const std::byte>(lengths_), o * runs_ + r, lengths_.dtype);
        if (length < 0 || length > size_ - at) return fail(c);
        for (int64_t k = from; k < to; ++k) {
          float v = first_;
          for (int64_t i = at; i < at + length; ++i)
            v = combined(reduce_, v, x[(o * size_ + i) * inner_ + k]);
          if (reduce_ == Reduce::kMean && length > 0) v /= static_cast<float>(length);
          out[(o * runs_ + r) * inner_ + k] = length > 0 ? v : empty_;
        }
        at += length;
      }
      if (at < size_ && !unsafe_) return fail(c);
    }
  }

 private:
  static void fail(const RunCtx& c) {
    fail_run(c, "[segment_reduce] the lengths do not add up to the size of the tensor");
  }

  TensorRef x_, lengths_, out_;
  Reduce reduce_;
  float first_, empty_;
  bool unsafe_;
  int64_t outer_ = 1, runs_ = 1, size_ = 1, inner_ = 1;
};

}  // namespace

std::vector<TensorType> infer_segment(const Graph& g, const Node& n) {
  const TensorType &x = g.type(n.arg_value(0)), &lengths = g.type(n.arg_value(2));
  reduce_of(n.args.text(1));
  const auto axis = static_cast<size_t>(lengths.rank() - 1);
  user_check(lengths.rank() > 0 && lengths.rank() <= x.rank() &&
                 wrap_dim(n.args.integer(5), x.rank()) == lengths.rank() - 1 &&
                 std::equal(lengths.shape.begin(), lengths.shape.end() - 1, x.shape.begin()),
             "[segment_reduce] the lengths do not have the dims of the tensor up to the axis");
  Dims shape = x.shape;
  shape[axis] = lengths.shape[axis];
  return {{x.dtype, shape, {}}};
}

Work work_segment(const Graph& g, const Node& n) {
  const TensorType& x = g.type(n.arg_value(0));
  return {WorkKind::kReduce, x.count(), x.bytes() + g.type(n.results[0]).bytes()};
}

KernelPtr make_segment(const StepDesc& desc) {
  return make_widened(
      desc, [](const StepDesc& d) -> KernelPtr { return std::make_unique<SegmentKernel>(d); });
}

bool accepts_segment(Op, int, const TensorRef& physical) {
  return physical.contiguous();
}

}  // namespace tessera
