// SPDX-License-Identifier: Apache-2.0
// See widened.h.
#include "ops/widened.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "kernels/half.h"
#include "kernels/simd.h"
#include "ops/loops.h"

namespace tessera {

namespace {

namespace simd = kernels::v3;

constexpr size_t kMaxTensors = 32;
// f32 copies of one piece: what the second-level caches of a few cores hold.
constexpr int64_t kPieceBytes = 2 << 20;

// Whether the elements lie without gaps in some order of the dims: then the copy has that order.
bool is_dense(const TensorRef& t) {
  std::vector<std::pair<int64_t, int64_t>> dims;
  for (size_t d = 0; d < t.shape.size(); ++d)
    if (t.shape[d] != 1) dims.emplace_back(t.strides[d], t.shape[d]);
  std::sort(dims.begin(), dims.end());
  int64_t step = 1;
  for (const auto& [stride, size] : dims) {
    if (stride != step) return false;
    step *= size;
  }
  return true;
}

// Strides of a dense copy of `shape`, in the order of the dims that `like` has.
Dims copy_strides(const TensorRef& like, const Dims& shape) {
  if (!is_dense(like)) return dense_strides(shape);
  std::vector<size_t> order;
  for (size_t d = 0; d < shape.size(); ++d) order.push_back(d);
  // Dims of size one too: libraries look at their strides.
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return like.strides[a] > like.strides[b]; });
  Dims strides(shape.size());
  int64_t step = 1;
  for (size_t i = order.size(); i-- > 0;) {
    strides[order[i]] = step;
    step *= shape[order[i]];
  }
  return strides;
}

// One tensor of the step.
struct Operand {
  TensorRef ref;
  int dim = Pieces::kWhole;
  bool half = false, summed = false;
  int64_t copy_at = -1;  // in scratch; of a sum: the total
  int64_t part_at = -1;  // of a sum: what one piece gives

  bool cut() const { return dim >= 0; }
  // From the tensor (0) to the copy (1), for a piece of this shape.
  Nest<2> loops(const TensorRef& copy) const {
    Nest<2> nest;
    for (size_t d = 0; d < copy.shape.size(); ++d)
      nest.push_back({copy.shape[d], {ref.strides[d], copy.strides[d]}});
    std::stable_sort(nest.begin(), nest.end(), [](const auto& a, const auto& b) {
      return a.step[1] > b.step[1];  // rows of the copy are contiguous
    });
    return collapse(nest, true);
  }
};

// The step on a piece of one size: its kernel, and how its tensors are converted.
struct Piece {
  KernelPtr kernel;
  std::vector<Nest<2>> loops;
};

constexpr int64_t kGrain = 1024;  // elements converted together

// The inner kernel sees one region per tensor: either the tensor's own memory or its f32 copy in
// scratch.
class WidenedKernel final : public Kernel {
 public:
  WidenedKernel(const StepDesc& desc, KernelPtr (*make)(const StepDesc&), const Pieces& pieces)
      : inputs_(desc.inputs.size()), fixed_weights_(desc.fixed_weights) {
    invariant(desc.inputs.size() + desc.outputs.size() <= kMaxTensors, "{} tensors in one step",
              desc.inputs.size() + desc.outputs.size());
    for (const auto* list : {&desc.inputs, &desc.outputs})
      for (const TensorRef& t : *list) {
        Operand o{.ref = t, .half = is_half(t)};
        const auto& dims = list == &desc.inputs ? pieces.inputs : pieces.outputs;
        const size_t i = static_cast<size_t>(&t - list->data());
        if (i < dims.size() && t.count() > 0) o.dim = dims[i];
        if (o.dim == Pieces::kOwn) o.half = false, o.dim = Pieces::kWhole;
        operands_.push_back(o);
      }
    choose_size(pieces.grain);
    for (Operand& o : operands_) {
      const bool whole = count_ == 1;
      o.summed = o.dim == Pieces::kSum && !whole;
      if (whole && o.dim != Pieces::kUnread) o.dim = Pieces::kWhole;
      const int64_t elements = o.cut() ? o.ref.count() / extent_ * size_ : o.ref.count();
      if (o.half && o.dim != Pieces::kUnread) take(elements, o.copy_at);
      if (o.summed) take(elements, o.part_at);
    }
    main_ = make_piece(desc, make, size_);
    if (extent_ % size_ != 0) rest_ = make_piece(desc, make, extent_ % size_);
  }

  int64_t scratch_bytes(int threads) const override {
    const int64_t rest = rest_.kernel ? rest_.kernel->scratch_bytes(threads) : 0;
    return bytes_ + std::max(main_.kernel->scratch_bytes(threads), rest);
  }
  bool single_thread() const override { return count_ == 1 && main_.kernel->single_thread(); }
  bool top_level() const override { return main_.kernel->top_level(); }
  bool may_fail() const override { return main_.kernel->may_fail(); }
  void state_written() override { forget(); }

  void run(const RunCtx& ctx) const override {
    if (count_ > 1 && !fixed_weights_ && ctx.thread == 0) forget();
    for (int64_t i = 0; i < count_; ++i) run_piece(ctx, i);
    if (count_ == 1) return;
    ctx.fork([&](const RunCtx& c) {
      for (size_t k = inputs_; k < operands_.size(); ++k)
        if (operands_[k].half && !operands_[k].cut()) narrow(c, k, main_.loops[k], 0);
    });
  }

 private:
  void take(int64_t floats, int64_t& at) {
    at = bytes_;
    bytes_ += whole_lines(floats * 4);
  }

  void forget() const {
    main_.kernel->state_written();
    if (rest_.kernel) rest_.kernel->state_written();
  }

  // The extent that is cut, and pieces of nearly equal size.
  void choose_size(int64_t grain) {
    int64_t bytes = 0;
    for (const Operand& o : operands_) {
      if (!o.cut()) continue;
      extent_ = o.ref.shape[o.dim];
      if (o.half) bytes += o.ref.count() * 4;
    }
    const int64_t grains = (extent_ + grain - 1) / grain;
    count_ = std::clamp<int64_t>((bytes + kPieceBytes - 1) / kPieceBytes, 1, grains);
    size_ = (grains + count_ - 1) / count_ * grain;
    size_ = std::min(size_, extent_);
    count_ = extent_ == 0 ? 1 : (extent_ + size_ - 1) / size_;
    if (count_ == 1) extent_ = size_ = 1;
  }

  Piece make_piece(const StepDesc& desc, KernelPtr (*make)(const StepDesc&), int64_t size) {
    StepDesc inner = desc;
    inner.pieces = count_ > 1;
    Piece piece;
    for (size_t i = 0; i < operands_.size(); ++i) {
      const Operand& o = operands_[i];
      TensorRef& t = i < inputs_ ? inner.inputs[i] : inner.outputs[i - inputs_];
      if (o.cut()) t.shape[o.dim] = size;
      if (o.half) {
        t.strides = copy_strides(o.ref, t.shape);
        t.dtype = DType::F32;
      }
      t.region = static_cast<int32_t>(i);
      t.offset = 0;
      piece.loops.push_back(o.half ? o.loops(t) : Nest<2>{});
    }
    piece.kernel = make(inner);
    return piece;
  }

  void run_piece(const RunCtx& ctx, int64_t index) const {
    const bool first = index == 0;
    const int64_t from = index * size_;
    const Piece& piece = from + size_ > extent_ ? rest_ : main_;
    std::array<std::byte*, kMaxTensors> bases;
    for (size_t i = 0; i < operands_.size(); ++i) {
      const Operand& o = operands_[i];
      bases[i] = o.copy_at >= 0 ? ctx.scratch + o.copy_at : tensor_at(ctx, o, from);
      if (o.summed && !first) bases[i] = ctx.scratch + o.part_at;
    }
    ctx.fork([&](const RunCtx& c) {
      for (size_t i = 0; i < inputs_; ++i)
        if (operands_[i].copy_at >= 0 && (first || operands_[i].cut()))
          widen(c, i, piece.loops[i], from);
    });
    ctx.barrier();
    RunCtx inner = ctx;
    inner.bases = bases.data();
    inner.scratch = ctx.scratch + bytes_;
    if (!piece.kernel->single_thread()) {
      piece.kernel->run(inner);
    } else if (ctx.thread == 0) {
      inner.threads = 1;
      piece.kernel->run(inner);
    }
    ctx.barrier();
    ctx.fork([&](const RunCtx& c) {
      for (size_t i = inputs_; i < operands_.size(); ++i) {
        const Operand& o = operands_[i];
        if (o.summed && !first) add(c, o);
        if (o.half && (o.cut() || count_ == 1)) narrow(c, i, piece.loops[i], from);
      }
    });
  }

  static std::byte* tensor_at(const RunCtx& c, const Operand& o, int64_t from) {
    const int64_t at = o.cut() ? from * o.ref.strides[o.dim] : 0;
    return c.ptr<std::byte>(o.ref) + at * size_of(o.ref.dtype);
  }

  void widen(const RunCtx& c, size_t i, const Nest<2>& loops, int64_t from) const {
    const Operand& o = operands_[i];
    const std::byte* t = tensor_at(c, o, from);
    auto* copy = reinterpret_cast<float*>(c.scratch + o.copy_at);
    const auto [begin, end] = thread_range(c, count_of(loops), kGrain);
    for_runs(loops, begin, end, [&](const auto& at, int64_t n) {
      widen_row(t + at[0] * 2, o.ref.dtype, loops.back().step[0], copy + at[1], n);
    });
  }

  void narrow(const RunCtx& c, size_t i, const Nest<2>& loops, int64_t from) const {
    const Operand& o = operands_[i];
    std::byte* t = tensor_at(c, o, from);
    const auto* copy = reinterpret_cast<const float*>(c.scratch + o.copy_at);
    const auto [begin, end] = thread_range(c, count_of(loops), kGrain);
    for_runs(loops, begin, end, [&](const auto& at, int64_t n) {
      narrow_row(copy + at[1], t + at[0] * 2, o.ref.dtype, loops.back().step[0], n);
    });
  }

  void add(const RunCtx& c, const Operand& o) const {
    auto* total = o.half ? reinterpret_cast<float*>(c.scratch + o.copy_at) : c.ptr<float>(o.ref);
    const auto* part = reinterpret_cast<const float*>(c.scratch + o.part_at);
    const auto [begin, end] = thread_range(c, o.ref.count(), kGrain);
    for (int64_t i = begin; i < end; ++i) total[i] += part[i];
  }

  size_t inputs_;
  std::vector<Operand> operands_;  // inputs, then outputs
  bool fixed_weights_;
  int64_t extent_ = 1, size_ = 1, count_ = 1;  // of the dim that is cut; of a piece; pieces
  int64_t bytes_ = 0;
  Piece main_, rest_;
};

}  // namespace

bool is_half(const TensorRef& t) {
  return t.dtype == DType::F16 || t.dtype == DType::BF16;
}

void widen_row(const std::byte* bytes, DType dtype, int64_t step, float* to, int64_t n) {
  int64_t i = 0;
  if (dtype == DType::F32) {
    const auto* from = reinterpret_cast<const float*>(bytes);
    if (step == 1)
      std::copy(from, from + n, to);
    else
      for (; i < n; ++i) to[i] = from[i * step];
    return;
  }
  const auto* from = reinterpret_cast<const uint16_t*>(bytes);
  const bool f16 = dtype == DType::F16;
  const kernels::HalfKernels& k = kernels::half_kernels();
  if (step == 1) return (f16 ? k.widen_f16 : k.widen_bf16)(from, to, n);
  for (; i < n; ++i)
    to[i] = f16 ? simd::f16_to_f32(from[i * step]) : simd::bf16_to_f32(from[i * step]);
}

void narrow_row(const float* from, std::byte* bytes, DType dtype, int64_t step, int64_t n) {
  int64_t i = 0;
  if (dtype == DType::F32) {
    auto* to = reinterpret_cast<float*>(bytes);
    for (; i < n; ++i) to[i * step] = from[i];
    return;
  }
  auto* to = reinterpret_cast<uint16_t*>(bytes);
  const bool f16 = dtype == DType::F16;
  const kernels::HalfKernels& k = kernels::half_kernels();
  if (step == 1) return (f16 ? k.narrow_f16 : k.narrow_bf16)(from, to, n);
  for (; i < n; ++i) to[i * step] = f16 ? simd::f32_to_f16(from[i]) : simd::f32_to_bf16(from[i]);
}

Pieces Pieces::along(const StepDesc& desc, int dim, int64_t grain) {
  return {std::vector<int>(desc.inputs.size(), dim), std::vector<int>(desc.outputs.size(), dim),
          grain};
}

KernelPtr make_widened(const StepDesc& desc, KernelPtr (*make)(const StepDesc&),
                       const Pieces& pieces) {
  bool any = false;
  for (const TensorRef& t : desc.inputs) any = any || is_half(t);
  for (const TensorRef& t : desc.outputs) any = any || is_half(t);
  return any ? std::make_unique<WidenedKernel>(desc, make, pieces) : make(desc);
}

}  // namespace tessera
