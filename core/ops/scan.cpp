// SPDX-License-Identifier: Apache-2.0
// Running results along one dim: cumsum, cumprod, logcumsumexp (x, dim, backwards) and cummax,
// cummin (x, dim) -> values, indices. Rows where the dim is the innermost, else neighbours side by
// side; a few long rows are cut into chunks by their shape alone, whose totals are found first.
#include "kernels/scan.h"

#include <algorithm>

#include "ops/loops.h"
#include "ops/registry.h"
#include "ops/view.h"
#include "ops/widened.h"

namespace tessera {
namespace {

using kernels::kScanColumns;
using kernels::ScanCarry;
using kernels::ScanFns;
using kernels::ScanKind;
using kernels::ScanPiece;

constexpr int64_t kSmall = 8192;  // elements below which one thread does it
constexpr int64_t kChunk = 8192;  // elements worth a chunk of their own
constexpr int64_t kTasks = 8;     // tasks wanted

bool has_indices(Op op) {
  return op == Op::Cummax || op == Op::Cummin;
}

ScanKind kind_of(Op op) {
  switch (op) {
    case Op::Cumsum:
      return ScanKind::kSum;
    case Op::Cumprod:
      return ScanKind::kProd;
    case Op::Logcumsumexp:
      return ScanKind::kLogSumExp;
    case Op::Cummax:
      return ScanKind::kMax;
    default:
      return ScanKind::kMin;
  }
}

class ScanKernel final : public Kernel {
 public:
  explicit ScanKernel(const StepDesc& d)
      : x_(d.inputs[d.args.operand(0)]),
        y_(d.outputs[0]),
        index_(has_indices(d.op) ? d.outputs[1] : d.outputs[0]),
        indexed_(has_indices(d.op)),
        fns_(kernels::scan_kernels().find(kind_of(d.op), x_.dtype)) {
    user_check(fns_ != nullptr, "no {} kernel for {}", op_text(d.op), name_of(x_.dtype));
    const auto rank = static_cast<int64_t>(x_.shape.size());
    const auto dim = static_cast<size_t>(wrap_dim(d.args.integer(1), rank));
    std::vector<bool> skip(x_.shape.size(), false);
    if (rank > 0) {
      skip[dim] = true;
      depth_ = x_.shape[dim];
      step_ = {x_.strides[dim], y_.strides[dim], index_.strides[dim]};
    }
    kept_ = collapse(shared_loops<3>({&x_, &y_, &index_}, skip));
    if (d.args.boolean_or(2, false)) {
      for (size_t k = 0; k < 3; ++k) {
        start_[k] = (depth_ - 1) * step_[k];
        step_[k] = -step_[k];
      }
    }
    const Loop<3>& inner = kept_.back();
    if (inner.step == std::array<int64_t, 3>{1, 1, 1} && inner.size > 1 && step_[0] != 1 &&
        step_[0] != -1) {
      width_ = inner.size;
      tile_ = std::min(width_, kScanColumns);
      tiles_ = (width_ + tile_ - 1) / tile_;
      by_columns_ = true;
      kept_.pop_back();
      if (kept_.empty()) kept_.push_back({});
    }
    blocks_ = count_of(kept_) * tiles_;
    if (fns_->join && blocks_ > 0 && blocks_ < kTasks)
      chunks_ = std::clamp<int64_t>(depth_ * tile_ / kChunk, 1, kTasks / blocks_);
    chunk_ = (depth_ + chunks_ - 1) / chunks_;
  }

  bool single_thread() const override { return x_.count() < kSmall; }
  int64_t scratch_bytes(int threads) const override {
    return sizeof(ScanCarry) * (chunks_ > 1 ? blocks_ * chunks_ : threads);
  }

  void run(const RunCtx& c) const override {
    if (depth_ == 0 || blocks_ == 0) return;
    auto* carry = reinterpret_cast<ScanCarry*>(c.scratch);
    const auto [begin, end] = thread_range(c, blocks_ * chunks_);
    if (chunks_ == 1 && !by_columns_) {
      const auto& step = kept_.back().step;
      for_runs(kept_, begin, end, [&](const auto& at, int64_t n) {
        ScanPiece p = piece(c, at, 0, 1);
        p.rows = n;
        p.x_row = step[0];
        p.y_row = step[1];
        p.index_row = indexed_ ? step[2] : 0;
        fns_->rows(p, carry + c.thread);
      });
      return;
    }
    if (chunks_ == 1) {
      for_blocks(c, begin, end, [&](ScanPiece& p) { scan(p, carry + c.thread); });
      return;
    }
    // Totals of all chunks, then every chunk from the totals before it.
    for (int64_t t = begin; t < end; ++t)
      for_blocks(c, t / chunks_, t / chunks_ + 1, [&](ScanPiece& p) {
        cut(p, t % chunks_);
        p.y = nullptr;
        scan(p, carry + t);
      });
    c.barrier();
    for (int64_t t = begin; t < end; ++t)
      for_blocks(c, t / chunks_, t / chunks_ + 1, [&](ScanPiece& p) {
        cut(p, t % chunks_);
        ScanCarry before;
        fns_->init(&before, p.columns);
        for (int64_t k = 1; k <= t % chunks_; ++k) fns_->join(&before, carry + t - k, p.columns);
        run_piece(p, &before);
      });
  }

 private:
  // The whole depth of a row, or of `columns` neighbours from `first` on.
  ScanPiece piece(const RunCtx& c, const std::array<int64_t, 3>& at, int64_t first,
                  int64_t columns) const {
    const int64_t size = size_of(x_.dtype);
    ScanPiece p;
    p.x = c.ptr<const std::byte>(x_) + (at[0] + start_[0] + first) * size;
    p.y = c.ptr<std::byte>(y_) + (at[1] + start_[1] + first) * size;
    if (indexed_) p.index = c.ptr<int64_t>(index_) + at[2] + start_[2] + first;
    p.x_step = step_[0];
    p.y_step = step_[1];
    p.index_step = step_[2];
    p.len = depth_;
    p.columns = columns;
    return p;
  }

  // f(piece) for blocks [begin, end).
  template <typename F>
  void for_blocks(const RunCtx& c, int64_t begin, int64_t end, F f) const {
    for (int64_t b = begin; b < end; ++b) {
      const int64_t first = b % tiles_ * tile_;
      for_each(kept_, b / tiles_, b / tiles_ + 1, [&](const auto& at) {
        ScanPiece p = piece(c, at, first, std::min(tile_, width_ - first));
        f(p);
      });
    }
  }

  void cut(ScanPiece& p, int64_t chunk) const {
    const int64_t first = chunk * chunk_, size = size_of(x_.dtype);
    p.x = static_cast<const std::byte*>(p.x) + first * step_[0] * size;
    p.y = static_cast<std::byte*>(p.y) + first * step_[1] * size;
    if (indexed_) p.index += first * step_[2];
    p.first = first;
    p.len = std::clamp<int64_t>(depth_ - first, 0, chunk_);
  }

  void scan(const ScanPiece& p, ScanCarry* carry) const {
    fns_->init(carry, p.columns);
    run_piece(p, carry);
  }
  void run_piece(const ScanPiece& p, ScanCarry* carry) const {
    by_columns_ ? fns_->columns(p, carry) : fns_->row(p, carry);
  }

  TensorRef x_, y_, index_;
  bool indexed_, by_columns_ = false;
  const ScanFns* fns_;
  Nest<3> kept_;
  std::array<int64_t, 3> start_{}, step_{1, 1, 1};
  int64_t depth_ = 1, width_ = 1, tile_ = 1, tiles_ = 1;
  int64_t blocks_ = 0, chunks_ = 1, chunk_ = 0;
};

}  // namespace

std::vector<TensorType> infer_scan(const Graph& g, const Node& n) {
  const TensorType& x = g.type(n.arg_value(0));
  wrap_dim(n.args.integer(1), x.rank());
  user_check(n.op != Op::Logcumsumexp || is_float(x.dtype), "[logcumsumexp] of {}",
             name_of(x.dtype));
  std::vector<TensorType> out{{x.dtype, x.shape, {}}};
  if (has_indices(n.op)) out.push_back({DType::I64, x.shape, {}});
  return out;
}

Work work_scan(const Graph& g, const Node& n) {
  const TensorType& x = g.type(n.arg_value(0));
  int64_t bytes = x.bytes();
  for (ValueId v : n.results) bytes += g.type(v).bytes();
  return {WorkKind::kReduce, x.count() * (n.op == Op::Logcumsumexp ? 30 : 1), bytes};
}

KernelPtr make_scan(const StepDesc& desc) {
  auto make = [](const StepDesc& d) -> KernelPtr { return std::make_unique<ScanKernel>(d); };
  const auto rank = static_cast<int64_t>(desc.outputs[0].shape.size());
  if (rank < 2) return make_widened(desc, make);
  const bool first = wrap_dim(desc.args.integer(1), rank) == 0;
  return make_widened(desc, make, Pieces::along(desc, first ? 1 : 0, first ? 64 : 1));
}

bool accepts_scan(Op, int, const TensorRef&) {
  return true;
}

}  // namespace tessera
