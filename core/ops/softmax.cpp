// SPDX-License-Identifier: Apache-2.0
// softmax(x, dim, half_to_float), log_softmax and their gradients (grad, output, dim, input_dtype).
// Three ways through memory: along contiguous rows, across contiguous neighbours, and by copying a
// scattered row. Half-precision rows are copied too, to f32.
#include "kernels/softmax.h"

#include "ops/loops.h"
#include "ops/registry.h"
#include "ops/view.h"
#include "ops/widened.h"

namespace tessera {
namespace {

constexpr int64_t kSmall =
    4096;  // elements below which waking a second thread costs more than it saves

bool is_grad(Op op) {
  return op == Op::SoftmaxGrad || op == Op::LogSoftmaxGrad;
}
bool is_log(Op op) {
  return op == Op::LogSoftmax || op == Op::LogSoftmaxGrad;
}
size_t dim_arg(Op op) {
  return is_grad(op) ? 2 : 1;
}

enum class Mode { kRows, kColumns, kScattered };

class SoftmaxKernel final : public Kernel {
 public:
  explicit SoftmaxKernel(const StepDesc& d)
      : grad_(is_grad(d.op)), log_(is_log(d.op)), out_(d.outputs[0]) {
    a_ = d.inputs[d.args.operand(0)];
    b_ = grad_ ? d.inputs[d.args.operand(1)] : a_;
    const auto dim = static_cast<size_t>(
        wrap_dim(d.args.integer(dim_arg(d.op)), static_cast<int64_t>(out_.shape.size())));
    std::vector<bool> skip(out_.shape.size(), false);
    if (!out_.shape.empty()) {
      skip[dim] = true;
      len_ = out_.shape[dim];
      step_ = {out_.strides[dim], a_.strides[dim], b_.strides[dim]};
    }
    nest_ = collapse(shared_loops<3>({&out_, &a_, &b_}, skip));
    auto all_one = [](const std::array<int64_t, 3>& s) {
      return s[0] == 1 && s[1] == 1 && s[2] == 1;
    };
    if (all_one(step_) || len_ == 1) {
      mode_ = Mode::kRows;
    } else if (all_one(nest_.back().step)) {
      mode_ = Mode::kColumns;
      width_ = nest_.back().size;
      // Columns in blocks that two threads can share.
      constexpr int64_t kBlock = 64;
      blocks_ = (width_ + kBlock - 1) / kBlock;
      block_ = kBlock;
      nest_.pop_back();
      if (nest_.empty()) nest_.push_back({});
    } else {
      mode_ = Mode::kScattered;
    }
    copied_ = mode_ == Mode::kScattered;
    for (const TensorRef* t : {&out_, &a_, &b_}) copied_ |= t->dtype != DType::F32;
  }

  bool single_thread() const override { return out_.count() < kSmall; }
  int64_t scratch_bytes(int threads) const override {
    return copied_ ? 2 * unit_bytes() * threads : 0;
  }

  void run(const RunCtx& c) const override {
    if (len_ == 0) return;
    if (copied_) return run_copied(c);
    const float *a = c.ptr<float>(a_), *b = c.ptr<float>(b_);
    float* y = c.ptr<float>(out_);
    const kernels::SoftmaxKernels& k = kernels::softmax_kernels();
    if (mode_ == Mode::kRows) {
      const auto [begin, end] = thread_range(c, count_of(nest_));
      const auto& s = nest_.back().step;
      for_runs(nest_, begin, end, [&](const auto& at, int64_t n) {
        if (grad_)
          k.rows_grad(a + at[1], b + at[2], y + at[0], n, s[1], s[2], s[0], len_, log_);
        else
          k.rows(a + at[1], y + at[0], n, s[1], s[0], len_, log_);
      });
    } else {
      const auto [begin, end] = thread_range(c, count_of(nest_) * blocks_);
      for (int64_t i = begin; i < end; ++i) {
        const int64_t w = i % blocks_ * block_;
        for_each(nest_, i / blocks_, i / blocks_ + 1, [&](const auto& at) {
          const int64_t n = std::min(block_, width_ - w);
          if (grad_)
            k.columns_grad(a + at[1] + w, b + at[2] + w, y + at[0] + w, len_, step_[1], step_[2],
                           step_[0], n, log_);
          else
            k.columns(a + at[1] + w, y + at[0] + w, len_, step_[1], step_[0], n, log_);
        });
      }
    }
  }

 private:
  // One unit of work: a row, or a block of neighbours.
  int64_t unit_bytes() const {
    return whole_lines(len_ * (mode_ == Mode::kColumns ? block_ : 1) * 4);
  }

  void run_copied(const RunCtx& c) const {
    const kernels::SoftmaxKernels& k = kernels::softmax_kernels();
    const bool columns = mode_ == Mode::kColumns;
    auto* copy_a = reinterpret_cast<float*>(c.scratch + 2 * unit_bytes() * c.thread);
    auto* copy_b = reinterpret_cast<float*>(c.scratch + (2 * c.thread + 1) * unit_bytes());
    // Rows of the copy: the elements of a row, or the neighbours at one index of the softmax dim.
    const int64_t rows = columns ? len_ : 1;
    auto read = [&](const TensorRef& t, int which, int64_t at, int64_t n, float* to) {
      const int64_t size = size_of(t.dtype);
      for (int64_t r = 0; r < rows; ++r)
        widen_row(c.ptr<std::byte>(t) + (at + (columns ? r * step_[which] : 0)) * size, t.dtype,
                  columns ? 1 : step_[which], to + r * block_, n);
    };
    const auto [begin, end] = thread_range(c, count_of(nest_) * blocks_);
    for (int64_t i = begin; i < end; ++i)
      for_each(nest_, i / blocks_, i / blocks_ + 1, [&](const auto& at) {
        const int64_t w = i % blocks_ * block_, n = columns ? std::min(block_, width_ - w) : len_;
        const int64_t first = columns ? w : 0;
        read(a_, 1, at[1] + first, n, copy_a);
        if (grad_) read(b_, 2, at[2] + first, n, copy_b);
        if (columns && grad_)
          k.columns_grad(copy_a, copy_b, copy_a, len_, block_, block_, block_, n, log_);
        else if (columns)
          k.columns(copy_a, copy_a, len_, block_, block_, n, log_);
        else if (grad_)
          k.rows_grad(copy_a, copy_b, copy_a, 1, 0, 0, 0, len_, log_);
        else
          k.rows(copy_a, copy_a, 1, 0, 0, len_, log_);
        for (int64_t r = 0; r < rows; ++r)
          narrow_row(copy_a + r * block_,
                     c.ptr<std::byte>(out_) +
                         (at[0] + first + (columns ? r * step_[0] : 0)) * size_of(out_.dtype),
                     out_.dtype, columns ? 1 : step_[0], n);
      });
  }

  bool grad_, log_, copied_ = false;
  TensorRef out_, a_, b_;
  Mode mode_ = Mode::kRows;
  int64_t len_ = 1, width_ = 1, blocks_ = 1, block_ = 1;
  std::array<int64_t, 3> step_{1, 1, 1};  // along the softmax dim: out, a, b
  Nest<3> nest_;                          // over the other dims
};

}  // namespace

std::vector<TensorType> infer_softmax(const Graph& g, const Node& n) {
  const TensorType& x = g.type(n.arg_value(0));
  user_check(is_float(x.dtype), "[{}] needs a float tensor, got {}", op_text(n.op),
             name_of(x.dtype));
  wrap_dim(n.args.integer(dim_arg(n.op)), x.rank());
  TensorType out{x.dtype, x.shape, {}};
  if (is_grad(n.op)) {
    const TensorType& y = g.type(n.arg_value(1));
    user_check(y.shape == x.shape, "[{}] gradient and output differ in shape", op_text(n.op));
    if (n.args.size() > 3 && n.args.at(3).kind == Arg::Kind::kDType)
      out.dtype = static_cast<DType>(n.args.at(3).i);
  } else if (n.args.boolean_or(2, false)) {
    out.dtype = DType::F32;
  }
  return {out};
}

Work work_softmax(const Graph& g, const Node& n) {
  const TensorType& x = g.type(n.arg_value(0));
  const int64_t flops = is_grad(n.op) ? (is_log(n.op) ? 15 : 4) : 16;
  const int64_t tensors = is_grad(n.op) ? 3 : 2;
  return {WorkKind::kReduce, x.count() * flops, x.bytes() * tensors};
}

KernelPtr make_softmax(const StepDesc& d) {
  auto check = [&](const TensorRef& t) {
    user_check(is_float(t.dtype) && size_of(t.dtype) <= 4, "{} has no kernel for {}", op_text(d.op),
               name_of(t.dtype));
  };
  for (const TensorRef& t : d.inputs) check(t);
  check(d.outputs[0]);
  return std::make_unique<SoftmaxKernel>(d);
}

bool accepts_softmax(Op, int, const TensorRef&) {
  return true;
}

}  // namespace tessera
