// SPDX-License-Identifier: Apache-2.0
// See pad.h. The result is written once, from front to back.
#include "ops/pad.h"

#include <algorithm>

#include "kernels/gather.h"
#include "ops/copy_nest.h"

namespace tessera {
namespace {

class RowPad final : public Kernel {
 public:
  RowPad(const TensorRef& x, const TensorRef& out, PadBox box)
      : x_(x), out_(out), box_(std::move(box)), bytes_(size_of(out.dtype)) {
    const size_t last = out_.shape.size() - 1;
    length_ = out_.shape[last];
    rows_ = out_.count() / length_;
  }
  bool single_thread() const override { return out_.bytes() < kCopySmall; }
  void run(const RunCtx& c) const override {
    const size_t last = out_.shape.size() - 1;
    const int64_t low = box_.first[last], n = box_.inside[last], high = length_ - low - n;
    const auto [begin, end] = thread_range(c, rows_);
    int64_t at[kMaxRank] = {};
    int64_t rest = begin;
    for (size_t d = last; d-- > 0;) {
      at[d] = rest % out_.shape[d];
      rest /= out_.shape[d];
    }
    std::byte* to = c.ptr<std::byte>(out_) + begin * length_ * bytes_;
    const std::byte* x = c.ptr<const std::byte>(x_);
    for (int64_t r = begin; r < end; ++r) {
      bool inside = n > 0;
      int64_t offset = box_.from[last];
      for (size_t d = 0; d < last; ++d) {
        const int64_t i = at[d] - box_.first[d];
        inside = inside && i >= 0 && i < box_.inside[d];
        offset += (i + box_.from[d]) * x_.strides[d];
      }
      if (inside) {
        fill(to, low);
        std::memcpy(to + low * bytes_, x + offset * bytes_, n * bytes_);
        fill(to + (low + n) * bytes_, high);
      } else {
        fill(to, length_);
      }
      to += length_ * bytes_;
      for (size_t d = last; d-- > 0;) {
        if (++at[d] < out_.shape[d]) break;
        at[d] = 0;
      }
    }
  }

  static constexpr size_t kMaxRank = 16;

 private:
  void fill(std::byte* to, int64_t n) const {
    if (n > 0) kernels::fill_strided(box_.value.data(), to, 1, n, bytes_);
  }

  TensorRef x_, out_;
  PadBox box_;
  int64_t bytes_, length_ = 0, rows_ = 0;
};

}  // namespace

KernelPtr make_row_pad(const TensorRef& x, const TensorRef& out, PadBox box) {
  const size_t rank = out.shape.size();
  if (rank < 2 || rank > RowPad::kMaxRank || out.count() == 0) return nullptr;
  // Few long rows are better cut across, and short ones cost a call each.
  constexpr int64_t kFewRows = 64, kShortRow = 8;
  if (out.count() / out.shape.back() < kFewRows || out.shape.back() < kShortRow) return nullptr;
  if (!out.contiguous() || x.strides.back() != 1 || x.shape.back() < kShortRow) return nullptr;
  return std::make_unique<RowPad>(x, out, std::move(box));
}

}  // namespace tessera
