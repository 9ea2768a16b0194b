// SPDX-License-Identifier: Apache-2.0
// Kernels that need part of the order of a row: topk keeps the best seen so far, kthvalue and the
// medians count elements by the top bits of their keys and order only the bin that has the rank.
#include "ops/sort_impl.h"

namespace tessera {
namespace {

using kernels::best_room;
using kernels::kSelectBins;
using kernels::SortRow;

class TopkKernel final : public Kernel {
 public:
  explicit TopkKernel(const StepDesc& d)
      : rows_(d, d.args.integer(2), true),
        k_(d.args.integer(1)),
        largest_(d.args.boolean(3)),
        shared_(rows_.shared()),
        area_((best_room(k_) * rows_.fns->pair + 127) / 64 * 64) {}

  bool single_thread() const override { return rows_.x.count() < kSortSmall; }
  int64_t scratch_bytes(int threads) const override {
    return (area_ + rows_.packed_bytes()) * threads;
  }

  void run(const RunCtx& c) const override {
    if (k_ == 0) return;
    std::byte* own = c.scratch + c.thread * area_;
    if (!shared_) {
      std::byte* packed = c.scratch + c.threads * area_ + c.thread * rows_.packed_bytes();
      const auto [begin, end] = thread_range(c, rows_.count, kPacked);
      rows_.for_packed(c, begin, end, largest_, packed, [&](const auto& at, const SortRow& row) {
        finish(c, at, row, own, rows_.fns->best(row, k_, own));
      });
      return;
    }
    // Every thread finds the best of its part; one picks from all of them.
    const auto [begin, end] = thread_range(c, rows_.len, 64);
    for_each(rows_.kept, 0, rows_.count, [&, begin = begin, end = end](const auto& at) {
      *number(own) = rows_.fns->best(rows_.row(c, at, largest_, begin, end - begin), k_, own);
      c.barrier();
      if (c.thread == 0) {
        int64_t have = *number(own);
        for (int t = 1; t < c.threads; ++t) {
          const std::byte* other = c.scratch + t * area_;
          std::copy_n(other, *number(other) * rows_.fns->pair, own + have * rows_.fns->pair);
          have += *number(other);
          rows_.fns->front(own, have, k_, false);
          have = std::min(have, k_);
        }
        finish(c, at, rows_.row(c, at, largest_, 0, rows_.len), own, have);
      }
      c.barrier();
    });
  }

 private:
  // Number of pairs in a thread's area, kept after them.
  int64_t* number(const std::byte* area) const {
    return reinterpret_cast<int64_t*>(const_cast<std::byte*>(area) + area_ - 64);
  }
  void finish(const RunCtx& c, const std::array<int64_t, 3>& at, const SortRow& row,
              std::byte* pairs, int64_t have) const {
    rows_.fns->front(pairs, have, k_, true);
    rows_.store(c, at, row, pairs, 0, k_);
  }

  OrderRows rows_;
  int64_t k_;
  bool largest_, shared_;
  int64_t area_;
};

// kthvalue, median and nanmedian: the element of one rank.
class RankKernel final : public Kernel {
 public:
  explicit RankKernel(const StepDesc& d)
      : op_(d.op),
        rows_(d, d.args.integer(d.op == Op::Kthvalue ? 2 : 1),
              d.args.boolean(d.op == Op::Kthvalue ? 3 : 2)),
        k_(d.op == Op::Kthvalue ? d.args.integer(1) : 0),
        shared_(rows_.shared()) {
    // Room for a part of the row and one more, for threads that share it: their parts are adjacent.
    pairs_bytes_ = whole_lines((rows_.len + 1) * rows_.fns->pair);
  }

  bool single_thread() const override { return rows_.x.count() < kSortSmall; }
  int64_t scratch_bytes(int threads) const override {
    const int64_t tables = threads * int64_t(sizeof(Table));
    return tables + (shared_ ? pairs_bytes_ + threads * 64
                             : (pairs_bytes_ + rows_.packed_bytes()) * threads);
  }

  void run(const RunCtx& c) const override {
    if (shared_)
      for_each(rows_.kept, 0, rows_.count, [&](const auto& at) { shared_row(c, at); });
    else
      own_rows(c);
  }

 private:
  struct Table {
    alignas(64) int64_t bins[kSelectBins];
    int64_t nans, have;
  };

  // Index in the sorted row of the element that is asked for.
  int64_t rank(int64_t nans) const {
    const int64_t n = rows_.len;
    if (op_ == Op::Kthvalue) return k_ - 1;
    if (op_ == Op::Median) return nans > 0 ? n - nans : (n - 1) / 2;
    return nans < n ? (n - nans - 1) / 2 : 0;
  }
  int64_t nans(const SortRow& row) const { return op_ == Op::Kthvalue ? 0 : rows_.fns->nans(row); }

  // The bin that has the rank, which becomes the rank within it.
  static int64_t bin_of(const int64_t* bins, int64_t& rank) {
    int64_t b = 0;
    while (b < kSelectBins - 1 && rank >= bins[b]) rank -= bins[b++];
    return b;
  }

  void finish(const RunCtx& c, const std::array<int64_t, 3>& at, const SortRow& whole,
              std::byte* pairs, int64_t n, int64_t rank) const {
    rows_.fns->front(pairs, n, rank + 1, false);
    rows_.store(c, at, whole, pairs + rank * rows_.fns->pair, 0, 1);
  }

  void own_rows(const RunCtx& c) const {
    constexpr int64_t kShort = 4096;
    auto& table = reinterpret_cast<Table*>(c.scratch)[c.thread];
    std::byte* pairs = c.scratch + c.threads * int64_t(sizeof(Table)) +
                       c.thread * (pairs_bytes_ + rows_.packed_bytes());
    const auto [begin, end] = thread_range(c, rows_.count, kPacked);
    rows_.for_packed(c, begin, end, false, pairs + pairs_bytes_,
                     [&](const auto& at, const SortRow& row) {
                       int64_t r = rank(nans(row)), n = rows_.len;
                       if (n <= kShort) {
                         rows_.fns->load(row, pairs);
                       } else {
                         std::fill(table.bins, table.bins + kSelectBins, 0);
                         rows_.fns->coarse(row, table.bins);
                         const int64_t bin = bin_of(table.bins, r);
                         n = rows_.fns->of_bin(row, bin, pairs);
                       }
                       finish(c, at, row, pairs, n, r);
                     });
  }

  void shared_row(const RunCtx& c, const std::array<int64_t, 3>& at) const {
    auto* tables = reinterpret_cast<Table*>(c.scratch);
    Table& own = tables[c.thread];
    std::byte* pairs = c.scratch + c.threads * int64_t(sizeof(Table));
    const auto [begin, end] = thread_range(c, rows_.len, 64);
    const SortRow row = rows_.row(c, at, false, begin, end - begin);
    // One more pair per part: `of_bin` may write one past the end.
    auto part = [&](int t, int64_t from) { return pairs + from * rows_.fns->pair + t * 64; };
    std::fill(own.bins, own.bins + kSelectBins, 0);
    rows_.fns->coarse(row, own.bins);
    own.nans = nans(row);
    c.barrier();
    int64_t total[kSelectBins] = {}, all_nans = 0;
    for (int t = 0; t < c.threads; ++t) {
      for (int64_t b = 0; b < kSelectBins; ++b) total[b] += tables[t].bins[b];
      all_nans += tables[t].nans;
    }
    int64_t r = rank(all_nans);
    const int64_t bin = bin_of(total, r);
    own.have = rows_.fns->of_bin(row, bin, part(c.thread, begin));
    c.barrier();
    if (c.thread == 0) {
      int64_t n = own.have;
      for (int t = 1; t < c.threads; ++t) {
        RunCtx other = c;
        other.thread = t;
        const std::byte* from = part(t, thread_range(other, rows_.len, 64).first);
        std::copy_n(from, tables[t].have * rows_.fns->pair, pairs + n * rows_.fns->pair);
        n += tables[t].have;
      }
      finish(c, at, rows_.row(c, at, false, 0, rows_.len), pairs, n, r);
    }
    c.barrier();
  }

  Op op_;
  OrderRows rows_;
  int64_t k_;
  bool shared_;
  int64_t pairs_bytes_;
};

}  // namespace

KernelPtr make_select(const StepDesc& d) {
  if (d.op == Op::Topk) return std::make_unique<TopkKernel>(d);
  return std::make_unique<RankKernel>(d);
}

}  // namespace tessera
