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
    const size_t last = out_.shape.size() - 1, rows_dim = last - 1;
    const int64_t low = box_.first[last], n = box_.inside[last], high = length_ - low - n;
    const int64_t row_bytes = length_ * bytes_, row_step = x_.strides[rows_dim] * bytes_;
    const auto [begin, end] = thread_range(c, rows_);
    int64_t at[kMaxRank] = {};
    int64_t rest = begin;
    for (size_t d = last; d-- > 0;) {
      at[d] = rest % out_.shape[d];
      rest /= out_.shape[d];
    }
    std::byte* to = c.ptr<std::byte>(out_) + begin * row_bytes;
    for (int64_t r = begin; r < end;) {
      // The rest of a plane: rows above x, rows of x, rows below it.
      bool inside = n > 0;
      int64_t offset = box_.from[last];
      for (size_t d = 0; d < rows_dim; ++d) {
        const int64_t i = at[d] - box_.first[d];
        inside = inside && i >= 0 && i < box_.inside[d];
        offset += (i + box_.from[d]) * x_.strides[d];
      }
      const int64_t row = at[rows_dim], rows = std::min(out_.shape[rows_dim] - row, end - r);
      const int64_t first = box_.first[rows_dim], past = first + box_.inside[rows_dim];
      const int64_t above = inside ? std::clamp<int64_t>(first - row, 0, rows) : rows;
      const int64_t within = std::clamp<int64_t>(past - row - above, 0, rows - above);
      to = fill(to, above * length_);
      offset += (row + above - first + box_.from[rows_dim]) * x_.strides[rows_dim];
      const std::byte* from = c.ptr<const std::byte>(x_) + offset * bytes_;
      for (int64_t k = 0; k < within; ++k, from += row_step) {
        to = fill(to, low);
        copy_row(from, to, n * bytes_);
        to = fill(to + n * bytes_, high);
      }
      to = fill(to, (rows - above - within) * length_);
      r += rows;
      at[rows_dim] += rows;
      for (size_t d = rows_dim; at[d] == out_.shape[d] && d > 0; --d) {
        at[d] = 0;
        ++at[d - 1];
      }
    }
  }

  static constexpr size_t kMaxRank = 16;

 private:
  // Edges are a few elements and rows a few lines of cache: calls would cost more than the moves.
  std::byte* fill(std::byte* to, int64_t n) const {
    if (bytes_ == 4 && n < kFewElements)
      fill_as<uint32_t>(to, n);
    else if (bytes_ == 2 && n < kFewElements)
      fill_as<uint16_t>(to, n);
    else if (n > 0)
      kernels::fill_strided(box_.value.data(), to, 1, n, bytes_);
    return to + n * bytes_;
  }
  template <class T>
  void fill_as(std::byte* to, int64_t n) const {
    T value;
    std::memcpy(&value, box_.value.data(), sizeof(T));
    for (int64_t i = 0; i < n; ++i) std::memcpy(to + i * sizeof(T), &value, sizeof(T));
  }
  static void copy_row(const std::byte* from, std::byte* to, int64_t bytes) {
    constexpr int64_t kChunk = 32, kLong = 1024;
    if (bytes < kChunk || bytes > kLong) {
      std::memcpy(to, from, bytes);
      return;
    }
    for (int64_t i = 0; i < bytes - kChunk; i += kChunk) std::memcpy(to + i, from + i, kChunk);
    std::memcpy(to + bytes - kChunk, from + bytes - kChunk, kChunk);
  }

  static constexpr int64_t kFewElements = 16;
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
