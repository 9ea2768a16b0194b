// SPDX-License-Identifier: Apache-2.0
// What a mask or counts select, with a fixed result size. Elements count in logical order; each
// thread counts its share first, then knows where it begins.
//   masked_scatter(x, mask, source): element k of the source goes to the k-th true element
//   masked_compact(x, mask, size): the elements of x where the mask is true, then zeros
//   nonzero_static(mask, size, fill): coordinates of true elements, then the fill value
//   repeat_interleave(repeats, size): index i repeats[i] times
#include <algorithm>

#include "ops/gather_impl.h"
#include "ops/registry.h"
#include "ops/run_error.h"

namespace tessera {
namespace {

class MaskedKernel final : public Kernel {
 public:
  explicit MaskedKernel(const StepDesc& d) : op_(d.op), out_(d.outputs[0]) {
    const TensorRef& first = d.inputs[d.args.operand(0)];
    const bool moves = op_ == Op::MaskedScatter || op_ == Op::MaskedCompact;
    mask_ = moves ? d.inputs[d.args.operand(1)] : first;
    x_ = moves ? first : mask_;
    if (op_ == Op::MaskedScatter) src_ = d.inputs[d.args.operand(2)];
    if (op_ == Op::NonzeroStatic) fill_ = d.args.integer(2);
    // Steps of the mask, of x and of a result of that shape.
    for (size_t i = 0; i < mask_.shape.size(); ++i)
      nest_.push_back(
          {mask_.shape[i],
           {mask_.strides[i], x_.strides[i], op_ == Op::MaskedScatter ? out_.strides[i] : 0}});
    nest_ = collapse(nest_, true);
    size_ = size_of(x_.dtype);
    limit_ = op_ == Op::MaskedScatter   ? src_.count()
             : op_ == Op::NonzeroStatic ? out_.shape[0]
                                        : out_.count();
  }
  bool single_thread() const override { return mask_.count() + out_.count() < 16384; }
  bool may_fail() const override { return true; }
  int64_t scratch_bytes(int threads) const override { return threads * 8; }

  void run(const RunCtx& c) const override {
    auto* counts = reinterpret_cast<int64_t*>(c.scratch);
    const auto [begin, end] = thread_range(c, mask_.count(), 16);
    counts[c.thread] = counted(c, begin, end);
    c.barrier();
    int64_t first = 0, total = 0;
    for (int t = 0; t < c.threads; ++t) {
      if (t < c.thread) first += counts[t];
      total += counts[t];
    }
    switch (op_) {
      case Op::MaskedScatter:
        if (total > limit_) {
          fail_run(c, "[masked_scatter] the mask has {} true elements, the source only {} elements",
                   total, limit_);
          return;
        }
        return scatter(c, begin, end, first);
      case Op::MaskedCompact:
        compact(c, begin, end, first);
        return pad(c, total, [&](int64_t from, int64_t to) {
          kernels::zero_bytes(c.ptr<std::byte>(out_) + from * size_, (to - from) * size_);
        });
      case Op::NonzeroStatic: {
        coordinates(c, begin, end, first);
        auto* out = c.ptr<int64_t>(out_);
        return pad(c, total, [&, rank = out_.shape[1]](int64_t from, int64_t to) {
          std::fill(out + from * rank, out + to * rank, fill_);
        });
      }
      default:
        if (total != limit_) {
          fail_run(c, "[repeat_interleave] the repeats add up to {}, output_size is {}", total,
                   limit_);
          return;
        }
        return repeat(c, begin, end, first);
    }
  }

 private:
  // More repeats than the result has room for are as wrong as one more.
  int64_t bounded(int64_t repeats) const { return std::clamp<int64_t>(repeats, 0, limit_ + 1); }

  int64_t counted(const RunCtx& c, int64_t begin, int64_t end) const {
    int64_t n = 0;
    const int64_t step = nest_.back().step[0];
    const std::byte* mask = c.ptr<const std::byte>(mask_);
    for_runs(nest_, begin, end, [&](const auto& at, int64_t run) {
      if (op_ == Op::RepeatInterleave) {
        for (int64_t i = 0; i < run; ++i) {
          const int64_t r = kernels::read_index(mask, at[0] + i * step, mask_.dtype);
          if (r < 0) fail_run(c, "[repeat_interleave] repeats can not be negative, got {}", r);
          n += bounded(r);
        }
      } else {
        const auto* m = reinterpret_cast<const uint8_t*>(mask) + at[0];
        if (step == 1)
          for (int64_t i = 0; i < run; ++i) n += m[i];
        else
          for (int64_t i = 0; i < run; ++i) n += m[i * step];
      }
    });
    return n;
  }

  // f(linear position, offsets) at every true element of [begin, end).
  template <typename F>
  void for_true(const RunCtx& c, int64_t begin, int64_t end, F f) const {
    const auto* mask = c.ptr<const uint8_t>(mask_);
    const auto step = nest_.back().step;
    int64_t p = begin;
    for_runs(nest_, begin, end, [&](auto at, int64_t run) {
      for (int64_t i = 0; i < run; ++i, ++p) {
        if (mask[at[0]]) f(p, at);
        for (size_t k = 0; k < 3; ++k) at[k] += step[k];
      }
    });
  }

  void scatter(const RunCtx& c, int64_t begin, int64_t end, int64_t k) const {
    with_size([&]<typename T>(T) {
      const auto *x = c.ptr<const T>(x_), *src = c.ptr<const T>(src_);
      const auto* mask = c.ptr<const uint8_t>(mask_);
      auto* out = c.ptr<T>(out_);
      const auto step = nest_.back().step;
      for_runs(nest_, begin, end, [&](auto at, int64_t run) {
        for (int64_t i = 0; i < run; ++i) {
          out[at[2]] = mask[at[0]] ? src[k * src_.strides[0]] : x[at[1]];
          k += mask[at[0]];
          for (size_t j = 0; j < 3; ++j) at[j] += step[j];
        }
      });
    });
  }

  void compact(const RunCtx& c, int64_t begin, int64_t end, int64_t k) const {
    with_size([&]<typename T>(T) {
      const auto* x = c.ptr<const T>(x_);
      auto* out = c.ptr<T>(out_);
      for_true(c, begin, end, [&](int64_t, const auto& at) {
        if (k < limit_) out[k] = x[at[1]];
        ++k;
      });
    });
  }

  void coordinates(const RunCtx& c, int64_t begin, int64_t end, int64_t k) const {
    auto* out = c.ptr<int64_t>(out_);
    const int64_t rank = out_.shape[1];
    for_true(c, begin, end, [&](int64_t p, const auto&) {
      if (k >= limit_) return;
      for (int64_t d = rank; d-- > 0; p /= mask_.shape[d]) out[k * rank + d] = p % mask_.shape[d];
      ++k;
    });
  }

  void repeat(const RunCtx& c, int64_t begin, int64_t end, int64_t k) const {
    const std::byte* repeats = c.ptr<const std::byte>(mask_);
    int64_t i = begin;
    const int64_t size = size_of(out_.dtype);
    for_each(nest_, begin, end, [&](const auto& at) {
      const int64_t n = bounded(kernels::read_index(repeats, at[0], mask_.dtype));
      if (n > 0 && k >= 0 && k + n <= limit_) {
        const auto* value = reinterpret_cast<const std::byte*>(&i);  // low bytes come first
        kernels::fill_strided(value, c.ptr<std::byte>(out_) + k * size, 1, n, size);
      }
      k += n;
      ++i;
    });
  }

  // This thread's share of the results after the last one found.
  template <typename F>
  void pad(const RunCtx& c, int64_t total, F f) const {
    if (total >= limit_) return;
    const auto [from, to] = thread_range(c, limit_ - total);
    if (from < to) f(total + from, total + to);
  }

  template <typename F>
  void with_size(F f) const {
    switch (size_) {
      case 1:
        return f(uint8_t{});
      case 2:
        return f(uint16_t{});
      case 4:
        return f(uint32_t{});
      default:
        return f(uint64_t{});
    }
  }

  Op op_;
  TensorRef x_, mask_, src_, out_;
  Nest<3> nest_;
  int64_t size_ = 4, limit_ = 0, fill_ = 0;
};

}  // namespace

std::vector<TensorType> infer_masked(const Graph& g, const Node& n) {
  const TensorType& x = g.type(n.arg_value(0));
  if (n.op == Op::MaskedScatter || n.op == Op::MaskedCompact) {
    const TensorType& mask = g.type(n.arg_value(1));
    user_check(mask.dtype == DType::Bool && mask.shape == x.shape,
               "[{}] needs a mask of the shape of the tensor", op_text(n.op));
    user_check(size_of(x.dtype) <= 8, "[{}] cannot move {}", op_text(n.op), name_of(x.dtype));
    if (n.op == Op::MaskedCompact) return {{x.dtype, {n.args.integer(2)}, {}}};
    const TensorType& src = g.type(n.arg_value(2));
    user_check(src.dtype == x.dtype && src.rank() == 1,
               "[masked_scatter] needs a flat source of type {}", name_of(x.dtype));
    return {{x.dtype, x.shape, {}}};
  }
  if (n.op == Op::NonzeroStatic) {
    user_check(x.dtype == DType::Bool, "[nonzero_static] needs a mask, got {}", name_of(x.dtype));
    return {{DType::I64, {n.args.integer(1), x.rank()}, {}}};
  }
  user_check(x.rank() == 1 && is_int(x.dtype),
             "[repeat_interleave] needs a vector of integers as repeats");
  return {{x.dtype, {n.args.integer(1)}, {}}};
}

KernelPtr make_masked(const StepDesc& d) {
  return std::make_unique<MaskedKernel>(d);
}

}  // namespace tessera
