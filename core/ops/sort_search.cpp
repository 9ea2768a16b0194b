// SPDX-License-Identifier: Apache-2.0
// searchsorted(sorted, values, right, out_int32): indices into rows of a sorted sequence. The rows
// of values have a sequence each, or all have the same. isin(sorted, values): whether they are
// there.
#include "ops/sort_impl.h"
#include "ops/widened.h"

namespace tessera {
namespace {

class SearchKernel final : public Kernel {
 public:
  explicit SearchKernel(const StepDesc& d)
      : sorted_(d.inputs[d.args.operand(0)]),
        values_(d.inputs[d.args.operand(1)]),
        out_(d.outputs[0]),
        right_(d.args.boolean_or(2, false)),
        result_(d.op == Op::Isin           ? kernels::SearchResult::kFound
                : out_.dtype == DType::I32 ? kernels::SearchResult::kI32
                                           : kernels::SearchResult::kI64),
        fn_(kernels::search_fn(sorted_.dtype)) {
    user_check(fn_ != nullptr, "no searchsorted kernel for {}", name_of(sorted_.dtype));
    count_ = values_.count();
    // One sequence: the values are one long row.
    row_ = sorted_.shape.size() == 1 ? std::max<int64_t>(count_, 1) : values_.shape.back();
  }

  bool single_thread() const override { return count_ < 1024; }

  void run(const RunCtx& c) const override {
    const int64_t n = sorted_.shape.back(), size = size_of(values_.dtype);
    auto [i, end] = thread_range(c, count_, 64);
    while (i < end) {
      const int64_t r = i / row_, stop = std::min(end, (r + 1) * row_);
      fn_({c.ptr<const std::byte>(sorted_) + r * n * size, n,
           c.ptr<const std::byte>(values_) + i * size, stop - i, right_},
          c.ptr<std::byte>(out_) + i * size_of(out_.dtype), result_);
      i = stop;
    }
  }

 private:
  TensorRef sorted_, values_, out_;
  bool right_;
  kernels::SearchResult result_;
  kernels::SearchFn fn_;
  int64_t count_ = 0, row_ = 1;
};

}  // namespace

KernelPtr make_search(const StepDesc& desc) {
  return make_widened(
      desc, [](const StepDesc& d) -> KernelPtr { return std::make_unique<SearchKernel>(d); });
}

}  // namespace tessera
