// SPDX-License-Identifier: Apache-2.0
// Ops that work along one dim: gather(x, dim, index), scatter.src(x, dim, index, src),
// scatter.value(x, dim, index, value), scatter_add(x, dim, index, src) and
// scatter_reduce(x, dim, index, src, reduce). Indices are checked at run time.
#include <algorithm>
#include <array>
#include <limits>

#include "ops/element.h"
#include "ops/gather_impl.h"
#include "ops/registry.h"
#include "ops/run_error.h"
#include "ops/view.h"

namespace tessera {
namespace {

using kernels::Combine;

Combine combine_of(const StepDesc& d) {
  if (d.op == Op::ScatterAdd) return Combine::kSum;
  return d.op == Op::ScatterReduce ? combination(d.args.text(4)) : Combine::kSet;
}

// Index, source and result move together over all dims but one; along that dim the index decides.
// Each thread owns whole lines, so that what meets in one element meets in one thread and in the
// order of the index.
class GatherDimKernel final : public Kernel {
 public:
  explicit GatherDimKernel(const StepDesc& d)
      : op_(d.op),
        how_(combine_of(d)),
        x_(at_least_1d(d.inputs[d.args.operand(0)])),
        index_(at_least_1d(d.inputs[d.args.operand(2)])),
        out_(at_least_1d(d.outputs[0])),
        size_(size_of(x_.dtype)) {
    const auto rank = static_cast<int64_t>(x_.shape.size());
    const int64_t dim = wrap_dim(d.args.integer(1), rank);
    // Tensor 1 is read or written beside the index: the result of a gather, the source of a
    // scatter.
    TensorRef beside = out_;
    if (op_ == Op::ScatterValue) {
      value_ = element_of(d.args.at(3), x_.dtype);
      beside = index_;
      beside.strides.assign(index_.shape.size(), 0);
    } else if (!gathers()) {
      beside = src_ = at_least_1d(d.inputs[d.args.operand(3)]);
    }
    const TensorRef& target = gathers() ? x_ : out_;
    extent_ = target.shape[dim];
    len_ = index_.shape[dim];
    x_step_ = target.strides[dim];
    index_step_ = index_.strides[dim];
    beside_step_ = beside.strides[dim];
    Nest<3> lines;
    for (int64_t i = 0; i < rank; ++i)
      if (i != dim)
        lines.push_back(
            {index_.shape[i], {index_.strides[i], beside.strides[i], target.strides[i]}});
    if (!gathers()) copy_ = collapse(shared_loops<2>({&out_, &x_}));
    // By the order of the target: an index may be the same along several dims.
    std::stable_sort(lines.begin(), lines.end(), [](const auto& a, const auto& b) {
      return std::abs(a.step[2]) > std::abs(b.step[2]);
    });
    lines_ = collapse(lines, true);
    const auto inner = lines_.back().step;
    rows_ = op_ != Op::ScatterValue && lines_.back().size > 1 && inner[0] == 0 && inner[1] == 1 &&
            inner[2] == 1;
    outer_ = lines_;
    outer_.pop_back();
    if (outer_.empty()) outer_.push_back({});
    across_ = len_ > 1 && lines_.back().size > 1 &&
              std::abs(lines_.back().step[0]) < std::abs(index_step_);
  }

  bool single_thread() const override { return index_.count() < 8192 && out_.bytes() < kCopySmall; }
  bool may_fail() const override { return true; }

  void run(const RunCtx& c) const override {
    if (!gathers()) {
      if (!in_place(c, x_, out_))
        copy_share(c, copy_, c.ptr<const std::byte>(x_), c.ptr<std::byte>(out_), size_);
      c.barrier();
    }
    if (rows_) return run_rows(c);
    const int64_t lines = count_of(lines_);
    const auto [begin, end] = thread_range(c, lines, lines >= 64 ? 16 : 1);
    const auto line = lines_.back().step;
    if (across_) {
      // The index is contiguous across lines: walk it that way, all lines of this thread at each
      // index.
      for (int64_t k = 0; k < len_; ++k)
        for_runs(lines_, begin, end, [&](const auto& at, int64_t n) {
          walk(c, {at[0] + k * index_step_, at[1] + k * beside_step_, at[2]}, line, n, x_step_);
        });
    } else {
      for_each(lines_, begin, end, [&](const auto& at) {
        walk(c, at, {index_step_, beside_step_, 0}, len_, x_step_);
      });
    }
  }

 private:
  bool gathers() const { return op_ == Op::Gather; }

  // The index is the same along the innermost run, as after an expand: whole runs are moved.
  void run_rows(const RunCtx& c) const {
    const int64_t n = count_of(outer_), size = lines_.back().size;
    const bool between = n >= 2 * c.threads;
    const auto [o0, o1] = between ? thread_range(c, n) : std::pair{int64_t{0}, n};
    const auto [r0, r1] = between ? std::pair{int64_t{0}, size} : thread_range(c, size, 16);
    if (r0 >= r1) return;
    int64_t offsets[kOffsetChunk];
    for_each(outer_, o0, o1, [&, first = r0, run = r1 - r0](const auto& at) {
      for (int64_t k = 0; k < len_; k += kOffsetChunk) {
        const int64_t m = std::min(kOffsetChunk, len_ - k);
        std::fill(offsets, offsets + m, at[2] + first);
        const std::byte* index =
            c.ptr<const std::byte>(index_) + (at[0] + k * index_step_) * size_of(index_.dtype);
        const bool good = add_offsets(
            c, op_, {index, index_.dtype, index_step_, m, extent_, 0, x_step_}, false, offsets);
        const kernels::Offsets o{offsets, m, !good, 0, std::numeric_limits<int64_t>::max()};
        const int64_t beside = (at[1] + first + k * beside_step_) * size_;
        if (gathers())
          kernels::gather_runs(o, run, c.ptr<const std::byte>(x_), c.ptr<std::byte>(out_) + beside,
                               beside_step_, size_);
        else
          kernels::scatter_runs(o, run, c.ptr<std::byte>(out_), source(c) + beside, beside_step_,
                                x_.dtype, how_);
      }
    });
  }

  // n entries from offsets `at` with steps `step` (index, beside, target); a bad index is reported
  // and passed over.
  void walk(const RunCtx& c, std::array<int64_t, 3> at, const std::array<int64_t, 3>& step,
            int64_t n, int64_t x_step) const {
    const int64_t index_size = size_of(index_.dtype);
    const std::byte* index = c.ptr<const std::byte>(index_);
    if (step[0] == 0 && n > 1) {  // one index for the whole run
      const int64_t i = kernels::read_index(index, at[0], index_.dtype);
      if (i < 0 || i >= extent_) return fail(c, i);
      block(c, at[1], step[1], at[2] + i * x_step, step[2], n);
      return;
    }
    while (n > 0) {
      const kernels::IndexWalk w{
          index + at[0] * index_size, index_.dtype, step[0], n, extent_, step[2], x_step};
      int64_t done = 0;
      if (gathers())
        done = kernels::gather_walk(w, c.ptr<const std::byte>(x_) + at[2] * size_,
                                    c.ptr<std::byte>(out_) + at[1] * size_, step[1], size_);
      else
        done = kernels::scatter_walk(w, c.ptr<std::byte>(out_) + at[2] * size_,
                                     source(c) + at[1] * size_, step[1], x_.dtype, how_);
      if (done >= n) return;
      fail(c, kernels::read_index(w.index, done * step[0], index_.dtype));
      for (size_t i = 0; i < 3; ++i) at[i] += (done + 1) * step[i];
      n -= done + 1;
    }
  }

  void block(const RunCtx& c, int64_t beside, int64_t beside_step, int64_t target,
             int64_t target_step, int64_t n) const {
    if (gathers())
      kernels::copy_strided(c.ptr<const std::byte>(x_) + target * size_, target_step,
                            c.ptr<std::byte>(out_) + beside * size_, beside_step, n, size_);
    else
      kernels::combine_strided(source(c) + beside * size_, beside_step,
                               c.ptr<std::byte>(out_) + target * size_, target_step, n, x_.dtype,
                               how_);
  }

  const std::byte* source(const RunCtx& c) const {
    return op_ == Op::ScatterValue ? value_.data() : c.ptr<const std::byte>(src_);
  }

  void fail(const RunCtx& c, int64_t index) const {
    fail_run(c, "[{}] index {} is out of bounds for a dim of size {}", base_name(op_), index,
             extent_);
  }

  Op op_;
  Combine how_;
  TensorRef x_, index_, src_, out_;
  alignas(16) Element value_{};
  int64_t size_ = 4, extent_ = 1, len_ = 1;
  int64_t x_step_ = 0, index_step_ = 0, beside_step_ = 0;  // along the dim
  bool across_ = false, rows_ = false;
  Nest<3> lines_, outer_;
  Nest<2> copy_;
};

}  // namespace

std::vector<TensorType> infer_gather_dim(const Graph& g, const Node& n) {
  const TensorType& x = g.type(n.arg_value(0));
  const TensorType& index = g.type(n.arg_value(2));
  const int64_t dim = wrap_dim(n.args.integer(1), x.rank());
  check_index_dtype(n.op, index);
  user_check(std::max(index.rank(), 1) == std::max(x.rank(), 1),
             "[{}] index has {} dims, the tensor {}", base_name(n.op), index.rank(), x.rank());
  for (int64_t i = 0; i < index.rank() && i < x.rank(); ++i)
    user_check(i == dim || index.shape[i] <= x.shape[i],
               "[{}] index is larger than the tensor in dim {}", base_name(n.op), i);
  if (n.op == Op::Gather) return {{x.dtype, index.shape, {}}};
  if (n.op == Op::ScatterReduce) combination(n.args.text(4));
  if (n.op != Op::ScatterValue) {
    const TensorType& src = g.type(n.arg_value(3));
    user_check(src.dtype == x.dtype, "[{}] source is {}, the tensor {}", base_name(n.op),
               name_of(src.dtype), name_of(x.dtype));
    user_check(std::max(src.rank(), 1) == std::max(x.rank(), 1),
               "[{}] source has {} dims, the tensor {}", base_name(n.op), src.rank(), x.rank());
    for (int64_t i = 0; i < index.rank() && i < src.rank(); ++i)
      user_check(index.shape[i] <= src.shape[i], "[{}] index is larger than the source in dim {}",
                 base_name(n.op), i);
  }
  return {{x.dtype, x.shape, {}}};
}

KernelPtr make_gather_dim(const StepDesc& d) {
  return std::make_unique<GatherDimKernel>(d);
}

}  // namespace tessera
