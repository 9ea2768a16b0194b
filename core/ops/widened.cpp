// SPDX-License-Identifier: Apache-2.0
// See widened.h.
#include "ops/widened.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "kernels/half.h"
#include "kernels/simd.h"

namespace tessera {

namespace {

namespace simd = kernels::TESSERA_ISA;

constexpr size_t kMaxTensors = 32;

bool is_half(const TensorRef& t) {
  return t.dtype == DType::F16 || t.dtype == DType::BF16;
}

// Whether the elements lie without gaps in some order of the dims: then the copy has that order
// too, and is made as one row.
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

// Calls row(dense offset, strided offset, length) for this thread's share of the rows along the
// last dim; a single row is cut.
template <typename F>
void for_rows(const RunCtx& ctx, const TensorRef& t, F row) {
  const int64_t inner = t.shape.empty() ? 1 : t.shape.back();
  if (t.shape.size() <= 1) {
    const auto [begin, end] = thread_range(ctx, inner, 16);
    row(begin, t.shape.empty() ? 0 : begin * t.strides[0], end - begin);
    return;
  }
  const auto [begin, end] = thread_range(ctx, inner == 0 ? 0 : t.count() / inner);
  for (int64_t r = begin; r < end; ++r) {
    int64_t rest = r, at = 0;
    for (size_t d = t.shape.size() - 1; d-- > 0;) {
      at += rest % t.shape[d] * t.strides[d];
      rest /= t.shape[d];
    }
    row(r * inner, at, inner);
  }
}

void widen(const RunCtx& ctx, const TensorRef& t, float* to) {
  const auto* from = ctx.ptr<std::byte>(t);
  const int64_t step = t.shape.empty() ? 1 : t.strides.back();
  for_rows(ctx, t, [&](int64_t dense, int64_t at, int64_t n) {
    widen_row(from + at * 2, t.dtype, step, to + dense, n);
  });
}

void narrow(const RunCtx& ctx, const TensorRef& t, const float* from) {
  auto* to = ctx.ptr<std::byte>(t);
  const int64_t step = t.shape.empty() ? 1 : t.strides.back();
  for_rows(ctx, t, [&](int64_t dense, int64_t at, int64_t n) {
    narrow_row(from + dense, to + at * 2, t.dtype, step, n);
  });
}

// The inner kernel sees one region per tensor: either the tensor's own memory or its f32 copy in
// scratch.
class WidenedKernel final : public Kernel {
 public:
  WidenedKernel(const StepDesc& desc, KernelPtr (*make)(const StepDesc&))
      : inputs_(desc.inputs), outputs_(desc.outputs) {
    // What is dense is converted as it lies.
    for (auto* list : {&inputs_, &outputs_})
      for (TensorRef& t : *list)
        if (is_half(t) && is_dense(t)) t.shape = {t.count()}, t.strides = {1};
    StepDesc inner = desc;
    int32_t region = 0;
    auto replace = [&](TensorRef& t) {
      if (is_half(t)) {
        t.dtype = DType::F32;
        if (!is_dense(t)) t.strides = dense_strides(t.shape);
        copy_at_.push_back(bytes_);
        bytes_ += whole_lines(t.count() * 4);
      } else {
        copy_at_.push_back(-1);
      }
      t.region = region++;
      t.offset = 0;
    };
    for (TensorRef& t : inner.inputs) replace(t);
    for (TensorRef& t : inner.outputs) replace(t);
    invariant(copy_at_.size() <= kMaxTensors, "{} tensors in one step", copy_at_.size());
    inner_ = make(inner);
  }

  int64_t scratch_bytes(int threads) const override {
    return bytes_ + inner_->scratch_bytes(threads);
  }
  bool single_thread() const override { return inner_->single_thread(); }
  bool top_level() const override { return inner_->top_level(); }
  void state_written() override { inner_->state_written(); }
  bool may_fail() const override { return inner_->may_fail(); }

  void run(const RunCtx& ctx) const override {
    std::array<std::byte*, kMaxTensors> bases;
    for (size_t i = 0; i < copy_at_.size(); ++i) {
      const bool in = i < inputs_.size();
      const TensorRef& t = in ? inputs_[i] : outputs_[i - inputs_.size()];
      bases[i] = copy_at_[i] < 0 ? ctx.ptr<std::byte>(t) : ctx.scratch + copy_at_[i];
      if (in && copy_at_[i] >= 0) widen(ctx, t, reinterpret_cast<float*>(bases[i]));
    }
    ctx.barrier();
    RunCtx inner = ctx;
    inner.bases = bases.data();
    inner.scratch = ctx.scratch + bytes_;
    inner_->run(inner);
    ctx.barrier();
    for (size_t i = inputs_.size(); i < copy_at_.size(); ++i)
      if (copy_at_[i] >= 0)
        narrow(ctx, outputs_[i - inputs_.size()], reinterpret_cast<const float*>(bases[i]));
  }

 private:
  std::vector<TensorRef> inputs_, outputs_;
  std::vector<int64_t> copy_at_;
  int64_t bytes_ = 0;
  KernelPtr inner_;
};

}  // namespace

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

KernelPtr make_widened(const StepDesc& desc, KernelPtr (*make)(const StepDesc&)) {
  bool any = false;
  for (const TensorRef& t : desc.inputs) any = any || is_half(t);
  for (const TensorRef& t : desc.outputs) any = any || is_half(t);
  return any ? std::make_unique<WidenedKernel>(desc, make) : make(desc);
}

}  // namespace tessera
