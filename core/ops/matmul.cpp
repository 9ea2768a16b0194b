// SPDX-License-Identifier: Apache-2.0
// Matrix products: mm, bmm and the forms with an added bias, which the compiler rewrites before
// they get here.
#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "kernels/gemm.h"
#include "kernels/gemm_plain.h"
#include "kernels/simd.h"
#include "ops/epilogue.h"
#include "ops/registry.h"
#include "ops/sizes.h"
#include "ops/view.h"

namespace tessera {

namespace {

constexpr size_t kMaxEpilogueTensors = 64;

// Index of the left matrix among the arguments; the right one follows.
size_t first_matrix(Op op) {
  return op == Op::Addmm || op == Op::Baddbmm ? 1 : 0;
}
int matrix_rank(Op op) {
  return op == Op::Mm || op == Op::Addmm ? 2 : 3;
}

struct Problem {
  int64_t batch = 1, m = 0, n = 0, k = 0;
};

Problem problem_of(Op op, const Dims& a, const Dims& b) {
  const auto rank = static_cast<size_t>(matrix_rank(op));
  user_check(a.size() == rank && b.size() == rank,
             "{}: expected two {}-dimensional tensors, got {} and {}", op_text(op), rank, a.size(),
             b.size());
  Problem p;
  p.batch = rank == 3 ? a[0] : 1;
  p.m = a[rank - 2], p.k = a[rank - 1], p.n = b[rank - 1];
  user_check(b[rank - 2] == p.k && (rank == 2 || b[0] == p.batch),
             "{}: shapes do not fit: {} times {}", op_text(op), text_of(a), text_of(b));
  return p;
}

// Batch, row and column stride of a matrix operand or result.
struct Strides {
  int64_t batch = 0, row = 0, col = 0;
};

Strides strides_of(const TensorRef& t) {
  const size_t r = t.strides.size();
  return {r == 3 ? t.strides[0] : 0, t.strides[r - 2], t.strides[r - 1]};
}

void store_from_f32(void* base, int64_t at, DType dtype, float v) {
  namespace simd = kernels::v3;
  switch (dtype) {
    case DType::F16:
      static_cast<uint16_t*>(base)[at] = simd::f32_to_f16(v);
      break;
    case DType::BF16:
      static_cast<uint16_t*>(base)[at] = simd::f32_to_bf16(v);
      break;
    default:
      static_cast<float*>(base)[at] = v;
  }
}

// f32 product; half-precision operands are widened as they are packed, results narrowed block by
// block.
class MatmulKernel final : public Kernel {
 public:
  MatmulKernel(const StepDesc& desc, std::unique_ptr<Epilogue> epilogue)
      : inputs_(desc.inputs), outputs_(desc.outputs), epilogue_(std::move(epilogue)) {
    p_ = problem_of(desc.op, inputs_[0].shape, inputs_[1].shape);
    const Strides a = strides_of(inputs_[0]), b = strides_of(inputs_[1]);
    const int64_t size = size_of(inputs_[0].dtype);
    batch_bytes_[0] = a.batch * size, batch_bytes_[1] = b.batch * size;
    kernels::GemmShape s;
    s.m = p_.m, s.n = p_.n, s.k = p_.k;
    s.dtype = inputs_[0].dtype;
    s.a_rs = a.row, s.a_cs = a.col, s.b_rs = b.row, s.b_cs = b.col;
    if (epilogue_ == nullptr) {
      out_ = strides_of(outputs_[0]);
      s.c_rs = out_.row, s.c_cs = out_.col;
      store_ =
          outputs_[0].dtype != DType::F32 || (s.c_rs != 1 && s.c_cs != 1 && p_.m != 1 && p_.n != 1);
    } else {
      invariant(inputs_.size() + outputs_.size() <= kMaxEpilogueTensors, "epilogue with {} tensors",
                inputs_.size() + outputs_.size());
    }
    plan_ = kernels::make_gemm_plan(s, epilogue_ != nullptr || store_);
  }

  int64_t tile_ld() const { return plan_.tile_ld; }

  bool single_thread() const override {
    return 2.0 * static_cast<double>(p_.batch) * static_cast<double>(p_.m * p_.n) *
               static_cast<double>(p_.k) <
           65536;
  }

  int64_t scratch_bytes(int threads) const override { return threads * thread_scratch(threads); }

  void run(const RunCtx& ctx) const override {
    std::byte* scratch = ctx.scratch + ctx.thread * thread_scratch(ctx.threads);
    Target target{this, {}, nullptr, 0};
    if (epilogue_ != nullptr) {
      size_t n = 1;
      for (size_t i = 2; i < inputs_.size(); ++i) target.ptrs[n++] = ctx.ptr<std::byte>(inputs_[i]);
      for (const TensorRef& t : outputs_) target.ptrs[n++] = ctx.ptr<std::byte>(t);
    }
    const kernels::GemmSink sink{epilogue_ != nullptr ? run_epilogue : store_block, &target};
    const bool by_item = whole_items(ctx.threads);
    for (int64_t b = 0; b < p_.batch; ++b) {
      if (by_item && b * ctx.threads / p_.batch != ctx.thread) continue;
      target.row_base = b * p_.m;
      float* c = nullptr;
      if (epilogue_ == nullptr) {
        target.out = ctx.ptr<std::byte>(outputs_[0]) + b * out_.batch * size_of(outputs_[0].dtype);
        c = reinterpret_cast<float*>(target.out);
      }
      kernels::run_gemm(plan_, ctx.ptr<std::byte>(inputs_[0]) + b * batch_bytes_[0],
                        ctx.ptr<std::byte>(inputs_[1]) + b * batch_bytes_[1], c,
                        by_item ? 0 : ctx.thread, by_item ? 1 : ctx.threads, scratch,
                        plan_.sink ? &sink : nullptr);
    }
  }

 private:
  struct Target {
    const MatmulKernel* self;
    std::array<std::byte*, kMaxEpilogueTensors> ptrs;
    std::byte* out;
    int64_t row_base;
  };

  static void run_epilogue(void* arg, float* tile, int64_t row0, int64_t row1, int64_t col0,
                           int64_t col1) {
    auto* t = static_cast<Target*>(arg);
    t->ptrs[0] = reinterpret_cast<std::byte*>(tile - t->row_base * t->self->plan_.tile_ld);
    t->self->epilogue_->run_box(t->ptrs.data(), t->row_base + row0, t->row_base + row1, col0, col1);
  }

  static void store_block(void* arg, float* tile, int64_t row0, int64_t row1, int64_t col0,
                          int64_t col1) {
    const auto* t = static_cast<const Target*>(arg);
    const Strides& o = t->self->out_;
    const DType dtype = t->self->outputs_[0].dtype;
    const int64_t ld = t->self->plan_.tile_ld;
    namespace simd = kernels::v3;
    for (int64_t i = row0; i < row1; ++i) {
      const float* s = tile + i * ld;
      int64_t j = col0;
      if (o.col == 1 && dtype != DType::F32) {
        uint16_t* d = reinterpret_cast<uint16_t*>(t->out) + i * o.row;
        for (; j + 16 <= col1; j += 16)
          dtype == DType::F16 ? simd::store_f16(d + j, simd::load(s + j))
                              : simd::store_bf16(d + j, simd::load(s + j));
      }
      for (; j < col1; ++j) store_from_f32(t->out, i * o.row + j * o.col, dtype, s[j]);
    }
  }

  bool whole_items(int threads) const { return p_.batch % threads == 0 || p_.batch >= 4 * threads; }

  int64_t thread_scratch(int threads) const {
    return std::max(kernels::gemm_scratch_bytes(plan_, 1),
                    kernels::gemm_scratch_bytes(plan_, threads));
  }

  std::vector<TensorRef> inputs_, outputs_;
  std::unique_ptr<Epilogue> epilogue_;
  Problem p_;
  Strides out_;
  int64_t batch_bytes_[2] = {0, 0};
  bool store_ = false;
  kernels::GemmPlan plan_;
};

// Integers and f64.
class PlainMatmulKernel final : public Kernel {
 public:
  explicit PlainMatmulKernel(const StepDesc& d)
      : a_(d.inputs[0]),
        b_(d.inputs[1]),
        c_(d.outputs[0]),
        as_(strides_of(a_)),
        bs_(strides_of(b_)),
        cs_(strides_of(c_)),
        fn_(kernels::plain_gemm_kernels().find(a_.dtype)) {
    const Problem p = problem_of(d.op, a_.shape, b_.shape);
    user_check(fn_ != nullptr, "{}: there are no products of {}", op_text(d.op), name_of(a_.dtype));
    batch_ = p.batch;
    g_ = {p.m, p.n, p.k, as_.row, as_.col, bs_.row, bs_.col, cs_.row, cs_.col};
  }
  bool single_thread() const override { return batch_ * g_.m * g_.n * g_.k < 32768; }
  int64_t scratch_bytes(int threads) const override {
    return threads * kernels::plain_gemm_scratch(g_);
  }
  void run(const RunCtx& c) const override {
    const int64_t size = size_of(a_.dtype);
    std::byte* scratch = c.scratch + c.thread * kernels::plain_gemm_scratch(g_);
    const auto [begin, end] = thread_range(c, batch_ * g_.m);
    for (int64_t at = begin; at < end;) {
      const int64_t q = at / g_.m, row = at % g_.m, last = std::min(g_.m, row + end - at);
      fn_(g_, c.ptr<std::byte>(a_) + q * as_.batch * size,
          c.ptr<std::byte>(b_) + q * bs_.batch * size, c.ptr<std::byte>(c_) + q * cs_.batch * size,
          row, last, scratch);
      at += last - row;
    }
  }

 private:
  TensorRef a_, b_, c_;
  Strides as_, bs_, cs_;
  kernels::PlainGemmFn fn_;
  kernels::PlainGemm g_;
  int64_t batch_ = 1;
};

}  // namespace

std::vector<TensorType> infer_matmul(const Graph& g, const Node& n) {
  const size_t first = first_matrix(n.op);
  const TensorType &a = g.type(n.arg_value(first)), &b = g.type(n.arg_value(first + 1));
  const Problem p = problem_of(n.op, a.shape, b.shape);
  user_check(a.dtype == b.dtype, "{}: operands are {} and {}, they must have one type",
             op_text(n.op), name_of(a.dtype), name_of(b.dtype));
  if (first == 1) {
    const Dims shape = matrix_rank(n.op) == 2 ? Dims{p.m, p.n} : Dims{p.batch, p.m, p.n};
    const Dims& bias = g.type(n.arg_value(0)).shape;
    bool fits = bias.size() <= shape.size();
    for (size_t i = 1; fits && i <= bias.size(); ++i)
      fits = bias[bias.size() - i] == 1 || bias[bias.size() - i] == shape[shape.size() - i];
    user_check(fits, "{}: {} does not broadcast to {}", op_text(n.op), text_of(bias),
               text_of(shape));
  }
  // A product of halves may be wanted as it adds up, and an epilogue always gets it so.
  const bool half = a.dtype == DType::F16 || a.dtype == DType::BF16;
  const bool wide = half && (n.body || g.type(n.results[0]).dtype == DType::F32);
  TensorType out{wide ? DType::F32 : a.dtype,
                 matrix_rank(n.op) == 2 ? Dims{p.m, p.n} : Dims{p.batch, p.m, p.n},
                 {}};
  return {out};
}

Work work_matmul(const Graph& g, const Node& n) {
  const size_t first = first_matrix(n.op);
  const TensorType &a = g.type(n.arg_value(first)), &b = g.type(n.arg_value(first + 1));
  const Problem p = problem_of(n.op, a.shape, b.shape);
  Work w;
  w.kind = WorkKind::kMatMul;
  w.m = p.m, w.n = p.n, w.k = p.k, w.batch = p.batch;
  w.flops = operations({2, p.batch, p.m, p.n, p.k});
  for (ValueId v : n.operands) w.bytes += g.type(v).bytes();
  for (ValueId v : n.results) w.bytes += g.type(v).bytes();
  if (first == 1) w.flops += operations({2, p.batch, p.m, p.n});
  return w;
}

KernelPtr make_matmul(const StepDesc& desc) {
  invariant(desc.op == Op::Mm || desc.op == Op::Bmm, "{} reached the kernels", op_text(desc.op));
  invariant(desc.body.empty(), "a matmul with a body is made with its epilogue");
  invariant(desc.inputs.size() == 2 && desc.outputs.size() == 1, "{} with {} inputs and {} outputs",
            op_text(desc.op), desc.inputs.size(), desc.outputs.size());
  switch (desc.inputs[0].dtype) {
    case DType::F32:
    case DType::F16:
    case DType::BF16:
      return std::make_unique<MatmulKernel>(desc, nullptr);
    default:
      return std::make_unique<PlainMatmulKernel>(desc);
  }
}

TensorRef matmul_epilogue_product(const StepDesc& desc) {
  const Problem p = problem_of(desc.op, desc.inputs[0].shape, desc.inputs[1].shape);
  struct Unused final : Epilogue {
    void run_box(std::byte* const*, int64_t, int64_t, int64_t, int64_t) const override {}
  };
  const int64_t ld = MatmulKernel(desc, std::make_unique<Unused>()).tile_ld();
  return {DType::F32, {p.batch * p.m, p.n}, {ld, 1}, 0, 0};
}

KernelPtr make_matmul_with_epilogue(const StepDesc& desc, std::unique_ptr<Epilogue> epilogue) {
  invariant(desc.op == Op::Mm || desc.op == Op::Bmm, "{} with an epilogue", op_text(desc.op));
  invariant(desc.inputs.size() >= 2 && is_float(desc.inputs[0].dtype) &&
                desc.inputs[0].dtype != DType::F64,
            "an epilogue needs f32, f16 or bf16 matrices");
  return std::make_unique<MatmulKernel>(desc, std::move(epilogue));
}

bool accepts_matmul(Op op, int index, const TensorRef& physical) {
  const auto first = static_cast<int>(first_matrix(op));
  if (index < first || index > first + 1)
    return index > first + 1 || physical.contiguous();  // body inputs
  const size_t r = physical.shape.size();
  if (r < 2) return physical.contiguous();
  return physical.strides[r - 1] == 1 || physical.strides[r - 2] == 1 ||
         physical.shape[r - 1] == 1 || physical.shape[r - 2] == 1;
}

}  // namespace tessera
