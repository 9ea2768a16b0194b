// SPDX-License-Identifier: Apache-2.0
// The sort family: rows of ops.def and the kernels that sort whole rows (sort, mode, a topk of much
// of the row). Threads take rows; a few long rows are sorted by all threads digit by digit. The
// order of pairs of key and index is total, so the result does not depend on the way.
#include "ops/sort_impl.h"

namespace tessera {
namespace {

using kernels::kSortBins;

// Arguments differ in order: (x, dim, ..) or (x, k, dim, ..).
bool has_k(Op op) {
  return op == Op::Topk || op == Op::Kthvalue;
}
bool searches(Op op) {
  return op == Op::Searchsorted || op == Op::Isin;
}
int64_t dim_of(const Args& a, Op op) {
  return a.integer(has_k(op) ? 2 : 1);
}

class SortKernel final : public Kernel {
 public:
  explicit SortKernel(const StepDesc& d)
      : op_(d.op),
        rows_(d, dim_of(d.args, d.op), d.op != Op::Mode || d.args.boolean(2)),
        descending_(d.op == Op::Topk ? d.args.boolean(3) : d.op == Op::Sort && d.args.boolean(2)),
        wanted_(d.op == Op::Topk ? d.args.integer(1) : rows_.len),
        shared_(rows_.shared()) {
    row_bytes_ = whole_lines(rows_.len * rows_.fns->pair);
    // Rows across memory are read and written together, a few neighbours at a time.
    if (rows_.step[0] != 1 && row_bytes_ > 0)
      group_ = std::clamp<int64_t>((1 << 20) / row_bytes_, 1, 16);
  }

  bool single_thread() const override { return rows_.x.count() < kSortSmall; }
  int64_t scratch_bytes(int threads) const override {
    if (shared_) return 2 * row_bytes_ + threads * kSortBins * int64_t(sizeof(int64_t));
    return (group_ + 1) * row_bytes_ * threads;
  }

  void run(const RunCtx& c) const override {
    if (rows_.len == 0 || rows_.count == 0 || wanted_ == 0) return;
    if (shared_)
      for_each(rows_.kept, 0, rows_.count, [&](const auto& at) { shared_row(c, at); });
    else
      own_rows(c);
  }

 private:
  void own_rows(const RunCtx& c) const {
    constexpr int64_t kTile = 256;
    std::byte* memory = c.scratch + c.thread * (group_ + 1) * row_bytes_;
    const auto [begin, end] = thread_range(c, rows_.count, group_);
    std::array<std::array<int64_t, 3>, 16> at;
    std::array<std::byte*, 16> pairs;
    for (int64_t r = begin; r < end; r += group_) {
      const int64_t n = std::min(group_, end - r);
      int64_t k = 0;
      for_each(rows_.kept, r, r + n, [&](const auto& a) { at[k++] = a; });
      for (int64_t i = 0; i < rows_.len; i += kTile)
        for (k = 0; k < n; ++k)
          rows_.fns->load(rows_.row(c, at[k], descending_, i, std::min(kTile, rows_.len - i)),
                          memory + k * row_bytes_ + i * rows_.fns->pair);
      std::byte* free = memory + n * row_bytes_;
      for (k = 0; k < n; ++k) {
        std::byte* own = memory + k * row_bytes_;
        pairs[k] = static_cast<std::byte*>(rows_.fns->sort(own, free, rows_.len));
        if (pairs[k] == free) free = own;
      }
      if (op_ == Op::Mode) {
        for (k = 0; k < n; ++k) store_mode(c, at[k], pairs[k]);
        continue;
      }
      for (int64_t i = 0; i < wanted_; i += kTile)
        for (k = 0; k < n; ++k)
          rows_.store(c, at[k], descending_, pairs[k] + i * rows_.fns->pair, i,
                      std::min(kTile, wanted_ - i));
    }
  }

  void shared_row(const RunCtx& c, const std::array<int64_t, 3>& at) const {
    const int64_t pair = rows_.fns->pair;
    std::byte *from = c.scratch, *to = c.scratch + row_bytes_;
    auto* bins = reinterpret_cast<int64_t*>(c.scratch + 2 * row_bytes_);
    int64_t* own = bins + c.thread * kSortBins;
    const auto [begin, end] = thread_range(c, rows_.len, 64);
    rows_.fns->load(rows_.row(c, at, descending_, begin, end - begin), from + begin * pair);
    for (int digit = 0; digit < rows_.fns->digits; ++digit) {
      std::fill(own, own + kSortBins, 0);
      rows_.fns->count(from + begin * pair, end - begin, digit, own);
      c.barrier();
      std::array<int64_t, kSortBins> start;
      int64_t first = 0;
      bool alike = false;
      for (int b = 0; b < kSortBins; ++b) {
        int64_t total = 0;
        for (int t = 0; t < c.threads; ++t) {
          if (t == c.thread) start[b] = first + total;
          total += bins[t * kSortBins + b];
        }
        alike = alike || total == rows_.len;
        first += total;
      }
      if (!alike) rows_.fns->spread(from + begin * pair, end - begin, digit, start.data(), to);
      c.barrier();
      if (!alike) std::swap(from, to);
    }
    if (op_ == Op::Mode) {
      if (c.thread == 0) store_mode(c, at, from);
    } else {
      const auto [first, last] = thread_range(c, wanted_, 64);
      rows_.store(c, at, descending_, from + first * pair, first, last - first);
    }
    c.barrier();
  }

  // The first longest run of equal elements; the index of its last.
  void store_mode(const RunCtx& c, const std::array<int64_t, 3>& at, const std::byte* pairs) const {
    int64_t best = 0, longest = 0;
    for (int64_t i = 0; i < rows_.len;) {
      const int64_t n = rows_.fns->run(pairs + i * rows_.fns->pair, rows_.len - i);
      if (n > longest) {
        longest = n;
        best = i + n - 1;
      }
      i += n;
    }
    rows_.store(c, at, false, pairs + best * rows_.fns->pair, 0, 1);
  }

  Op op_;
  OrderRows rows_;
  bool descending_;
  int64_t wanted_;
  bool shared_;
  int64_t row_bytes_ = 0, group_ = 1;
};

}  // namespace

std::vector<TensorType> infer_sort(const Graph& g, const Node& n) {
  const TensorType& x = g.type(n.arg_value(0));
  if (searches(n.op)) {
    const TensorType& values = g.type(n.arg_value(1));
    user_check(x.rank() > 0 && x.dtype == values.dtype,
               "[{}] wants a sequence and values of one type", op_text(n.op));
    const DType out = n.op == Op::Isin ? DType::Bool : n.args.boolean(3) ? DType::I32 : DType::I64;
    return {{out, values.shape, {}}};
  }
  const auto dim = static_cast<size_t>(wrap_dim(dim_of(n.args, n.op), x.rank()));
  Dims shape = x.shape;
  if (has_k(n.op)) {
    const int64_t k = n.args.integer(1), low = n.op == Op::Topk ? 0 : 1;
    user_check(k >= low && k <= (x.rank() > 0 ? shape[dim] : 1), "[{}] k {} is out of range",
               op_text(n.op), k);
  }
  if (n.op == Op::Topk) {
    if (x.rank() > 0) shape[dim] = n.args.integer(1);
  } else if (n.op != Op::Sort && x.rank() > 0) {
    user_check(shape[dim] > 0, "[{}] has no value over an empty dim {}", op_text(n.op), dim);
    const bool keepdim = n.args.boolean(n.op == Op::Kthvalue ? 3 : 2);
    if (keepdim)
      shape[dim] = 1;
    else
      shape.erase(shape.begin() + static_cast<int64_t>(dim));
  }
  return {{x.dtype, shape, {}}, {DType::I64, shape, {}}};
}

Work work_sort(const Graph& g, const Node& n) {
  const TensorType& x = g.type(n.arg_value(0));
  int64_t bytes = 0, per_element = 1;
  for (ValueId v : n.operands) bytes += g.type(v).bytes();
  for (ValueId v : n.results) bytes += g.type(v).bytes();
  const bool search = searches(n.op);
  const int64_t len = x.rank() == 0 ? 1
                      : search      ? x.shape.back()
                                    : x.shape[wrap_dim(dim_of(n.args, n.op), x.rank())];
  while (int64_t(1) << per_element < len) ++per_element;
  const bool selects = n.op != Op::Sort && n.op != Op::Mode && !search;
  const int64_t count = search ? g.type(n.results[0]).count() : x.count();
  return {WorkKind::kReduce, count * (selects ? 2 : per_element), bytes};
}

KernelPtr make_sort(const StepDesc& d) {
  if (searches(d.op)) return make_search(d);
  const TensorRef& x = d.inputs[d.args.operand(0)];
  if (d.op == Op::Topk) {
    const auto rank = static_cast<int64_t>(x.shape.size());
    const int64_t len = rank ? x.shape[wrap_dim(d.args.integer(2), rank)] : 1;
    if (!topk_sorts(d.args.integer(1), len)) return make_select(d);
  } else if (d.op != Op::Sort && d.op != Op::Mode) {
    return make_select(d);
  }
  return std::make_unique<SortKernel>(d);
}

bool accepts_sort(Op op, int, const TensorRef& physical) {
  return !searches(op) || physical.contiguous();
}

}  // namespace tessera
