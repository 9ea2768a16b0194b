// SPDX-License-Identifier: Apache-2.0
// Scaled dot-product attention and its gradient as single steps; see kernels/attention.h for how.
// Heads in half precision are widened one at a time, and stay in cache.
#include "kernels/attention.h"

#include <algorithm>
#include <cmath>

#include "ops/registry.h"
#include "ops/sizes.h"
#include "ops/widened.h"

namespace tessera {

namespace {

// Argument positions of the two ops (ops.def).
struct Positions {
  size_t q, mask, key, stream;
};
constexpr Positions kForward{0, 3, 4, 5};
constexpr Positions kBackward{1, 4, 7, 8};
constexpr size_t kOut = 5, kLse = 6;  // of the gradient

const Positions& positions(Op op) {
  return op == Op::Sdpa ? kForward : kBackward;
}

struct Sizes {
  int64_t batch, heads, queries, keys, depth, value_depth;
};

Sizes sizes_of(Op op, const Dims& q, const Dims& k, const Dims& v) {
  user_check(q.size() == 4 && k.size() == 4 && v.size() == 4,
             "{}: query, key and value must have four dimensions, they have {}, {} and {}",
             op_text(op), q.size(), k.size(), v.size());
  user_check(k[0] == q[0] && v[0] == q[0] && k[1] == q[1] && v[1] == q[1],
             "{}: query, key and value differ in batch or number of heads", op_text(op));
  user_check(k[3] == q[3] && v[2] == k[2], "{}: key does not fit query, or value does not fit key",
             op_text(op));
  return {q[0], q[1], q[2], k[2], q[3], v[3]};
}

// Strides of an operand seen as [batch, heads, queries, keys]: broadcast dims step by zero.
Dims broadcast_strides(Op op, const TensorRef& t, const Dims& full) {
  user_check(t.shape.size() <= 4, "{}: mask with {} dimensions", op_text(op), t.shape.size());
  Dims out(4, 0);
  const size_t skip = 4 - t.shape.size();
  for (size_t i = 0; i < t.shape.size(); ++i) {
    user_check(t.shape[i] == 1 || t.shape[i] == full[skip + i],
               "{}: mask of size {} in dimension {} does not broadcast to {}", op_text(op),
               t.shape[i], i, full[skip + i]);
    out[skip + i] = t.shape[i] == 1 ? 0 : t.strides[i];
  }
  return out;
}

class AttentionKernel : public Kernel {
 public:
  explicit AttentionKernel(const StepDesc& d) : desc_(d), at_(positions(d.op)) {
    const DType dtype = input(at_.q).dtype;
    for (size_t i = at_.q; i < at_.q + 3; ++i)
      user_check(is_float(dtype) && size_of(dtype) <= 4 && input(i).dtype == dtype,
                 "{}: {} attention is not implemented", op_text(d.op), name_of(input(i).dtype));
    half_ = dtype != DType::F32;
    s_ = sizes_of(d.op, input(at_.q).shape, input(at_.q + 1).shape, input(at_.q + 2).shape);
    shape_.queries = s_.queries, shape_.keys = s_.keys;
    shape_.depth = s_.depth, shape_.value_depth = s_.value_depth;
    shape_.drop_p = static_cast<float>(d.args.real_or(at_.stream + 1, 0));
    shape_.drop = shape_.drop_p > 0;
    shape_.causal = d.args.boolean_or(at_.stream + 2, false);
    shape_.scale = static_cast<float>(
        d.args.real_or(at_.stream + 3, 1.0 / std::sqrt(static_cast<double>(s_.depth))));
    user_check(shape_.drop_p < 1, "{}: dropout probability {} leaves nothing", op_text(d.op),
               shape_.drop_p);
    invariant(!shape_.drop || d.args.has(at_.key), "attention dropout without a random key");
    if (d.args.has(at_.mask)) {
      const TensorRef& m = input(at_.mask);
      user_check(m.dtype == DType::F32 || m.dtype == DType::Bool, "{}: mask of type {}",
                 op_text(d.op), name_of(m.dtype));
      mask_ = broadcast_strides(d.op, m, {s_.batch, s_.heads, s_.queries, s_.keys});
    }
  }

  bool single_thread() const override {
    return static_cast<double>(heads() * s_.queries) * static_cast<double>(s_.keys * s_.depth) <
           16384;
  }

 protected:
  const TensorRef& input(size_t arg) const { return desc_.inputs[desc_.args.operand(arg)]; }

  int64_t heads() const { return s_.batch * s_.heads; }

  // Offset of a head in a tensor [batch, heads, tokens, depth] or [batch, heads, tokens].
  int64_t head_at(const TensorRef& t, int64_t head) const {
    return head / s_.heads * t.strides[0] + head % s_.heads * t.strides[1];
  }

  // Floats of one head, as it is copied.
  static int64_t head_floats(const TensorRef& t) {
    return (t.shape[2] * t.shape[3] + 15) / 16 * 16;
  }

  // A head to dense f32 rows, and its tokens [begin, end) back.
  void widen_head(const RunCtx& ctx, const TensorRef& t, int64_t head, float* to) const {
    const std::byte* from = ctx.ptr<std::byte>(t) + head_at(t, head) * size_of(t.dtype);
    for (int64_t i = 0; i < t.shape[2]; ++i)
      widen_row(from + i * t.strides[2] * size_of(t.dtype), t.dtype, t.strides[3],
                to + i * t.shape[3], t.shape[3]);
  }
  void narrow_head(const RunCtx& ctx, const float* from, const TensorRef& t, int64_t head,
                   int64_t begin, int64_t end) const {
    std::byte* to = ctx.ptr<std::byte>(t) + head_at(t, head) * size_of(t.dtype);
    for (int64_t i = begin; i < end; ++i)
      narrow_row(from + i * t.shape[3], to + i * t.strides[2] * size_of(t.dtype), t.dtype,
                 t.strides[3], t.shape[3]);
  }

  // What a thread needs for the operands of one head in half precision.
  int64_t wide_floats() const {
    if (!half_) return 0;
    int64_t n = 0;
    for (size_t i = at_.q; i < at_.q + 3; ++i) n += head_floats(input(i));
    return n;
  }

  float* head_of(const RunCtx& ctx, const TensorRef& t, int64_t head) const {
    return ctx.ptr<float>(t) + head_at(t, head);
  }

  // `wide`: wide_floats(); filled unless it holds this head already.
  kernels::AttentionHead head(const RunCtx& ctx, int64_t n, float* wide,
                              bool filled = false) const {
    kernels::AttentionHead h;
    const TensorRef &q = input(at_.q), &k = input(at_.q + 1), &v = input(at_.q + 2);
    if (half_) {
      float *wide_k = wide + head_floats(q), *wide_v = wide_k + head_floats(k);
      if (!filled) {
        widen_head(ctx, q, n, wide);
        widen_head(ctx, k, n, wide_k);
        widen_head(ctx, v, n, wide_v);
      }
      h.q = wide, h.k = wide_k, h.v = wide_v;
      h.q_stride = h.k_stride = s_.depth, h.v_stride = s_.value_depth;
    } else {
      h.q = head_of(ctx, q, n), h.k = head_of(ctx, k, n), h.v = head_of(ctx, v, n);
      h.q_stride = q.strides[2], h.k_stride = k.strides[2], h.v_stride = v.strides[2];
    }
    if (!mask_.empty()) {
      const TensorRef& m = input(at_.mask);
      h.mask_is_bool = m.dtype == DType::Bool;
      h.mask = ctx.ptr<std::byte>(m) +
               (n / s_.heads * mask_[0] + n % s_.heads * mask_[1]) * size_of(m.dtype);
      h.mask_q = mask_[2], h.mask_k = mask_[3];
    }
    if (shape_.drop) {
      const int64_t* key = ctx.ptr<int64_t>(input(at_.key));
      h.key = kernels::random_key(kernels::random_fold(key[0]), kernels::random_fold(key[1]),
                                  static_cast<uint32_t>(desc_.args.integer(at_.stream)),
                                  static_cast<uint32_t>(n));
    }
    return h;
  }

  StepDesc desc_;
  Positions at_;
  bool half_ = false;
  Sizes s_{};
  kernels::AttentionShape shape_;
  Dims mask_;
};

bool unit_depth(const TensorRef& t) {
  return t.strides[3] == 1 || t.shape[3] == 1;
}

class ForwardKernel final : public AttentionKernel {
 public:
  explicit ForwardKernel(const StepDesc& d) : AttentionKernel(d) {
    direct_ = !half_ && unit_depth(d.outputs[0]);
    const TensorRef& lse = d.outputs[1];
    invariant(s_.queries == 1 || lse.strides[2] == 1, "sdpa: logsumexp must be stored query-minor");
    floats_ = kernels::attention_forward_floats(shape_);
  }

  int64_t scratch_bytes(int threads) const override { return 4 * threads * thread_floats(); }

  void run(const RunCtx& ctx) const override {
    float* scratch = reinterpret_cast<float*>(ctx.scratch) + ctx.thread * thread_floats();
    float* wide = scratch + floats_ + bounce_floats();
    int64_t last = -1;
    const int64_t block = kernels::attention_query_block(shape_);
    const int64_t blocks = (s_.queries + block - 1) / block;
    const auto [begin, end] = thread_range(ctx, heads() * blocks);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t n = i / blocks, q0 = i % blocks * block, q1 = std::min(q0 + block, s_.queries);
      const TensorRef& out = desc_.outputs[0];
      float* lse = head_of(ctx, desc_.outputs[1], n);
      const kernels::AttentionHead h = head(ctx, n, wide, n == last);
      last = n;
      if (direct_) {
        kernels::attention_forward(shape_, h, q0, q1, head_of(ctx, out, n), out.strides[2], lse,
                                   scratch);
      } else {
        float* bounce = scratch + floats_;
        kernels::attention_forward(shape_, h, q0, q1, bounce, s_.value_depth, lse, scratch);
        narrow_head(ctx, bounce, out, n, q0, q1);
      }
    }
  }

 private:
  int64_t bounce_floats() const {
    return direct_ ? 0 : (s_.queries * s_.value_depth + 15) / 16 * 16;
  }
  int64_t thread_floats() const { return floats_ + bounce_floats() + wide_floats(); }

  bool direct_ = true;
  int64_t floats_ = 0;
};

class BackwardKernel final : public AttentionKernel {
 public:
  explicit BackwardKernel(const StepDesc& d) : AttentionKernel(d) {
    for (int i = 0; i < 3; ++i) {
      const TensorRef& t = d.outputs[i];
      bounce_at_[i] = !half_ && unit_depth(t) ? -1 : floats_;
      if (bounce_at_[i] >= 0) floats_ += head_floats(t);
    }
    wide_at_ = floats_;
    floats_ += wide_floats() + (half_ ? 2 * head_floats(input(kOut)) : 0);
    work_at_ = floats_;
    floats_ += kernels::attention_backward_floats(shape_);
  }

  int64_t scratch_bytes(int threads) const override { return 4 * threads * floats_; }

  void run(const RunCtx& ctx) const override {
    float* scratch = reinterpret_cast<float*>(ctx.scratch) + ctx.thread * floats_;
    const TensorRef &grad = input(0), &out = input(kOut), &lse = input(kLse);
    const auto [begin, end] = thread_range(ctx, heads());
    for (int64_t n = begin; n < end; ++n) {
      kernels::AttentionGrads g;
      if (half_) {
        float* dout = scratch + wide_at_ + wide_floats();
        widen_head(ctx, grad, n, dout);
        widen_head(ctx, out, n, dout + head_floats(out));
        g.dout = dout, g.out = dout + head_floats(out);
        g.dout_stride = g.out_stride = s_.value_depth;
      } else {
        g.dout = head_of(ctx, grad, n), g.dout_stride = grad.strides[2];
        g.out = head_of(ctx, out, n), g.out_stride = out.strides[2];
      }
      g.lse = head_of(ctx, lse, n);
      float* to[3];
      int64_t stride[3];
      for (int i = 0; i < 3; ++i) {
        const TensorRef& t = desc_.outputs[i];
        to[i] = bounce_at_[i] < 0 ? head_of(ctx, t, n) : scratch + bounce_at_[i];
        stride[i] = bounce_at_[i] < 0 ? t.strides[2] : t.shape[3];
      }
      g.dq = to[0], g.dk = to[1], g.dv = to[2];
      g.dq_stride = stride[0], g.dk_stride = stride[1], g.dv_stride = stride[2];
      kernels::attention_backward(shape_, head(ctx, n, scratch + wide_at_), g, scratch + work_at_);
      for (int i = 0; i < 3; ++i) {
        const TensorRef& t = desc_.outputs[i];
        if (bounce_at_[i] >= 0) narrow_head(ctx, to[i], t, n, 0, t.shape[2]);
      }
    }
  }

 private:
  int64_t floats_ = 0, wide_at_ = 0, work_at_ = 0;
  int64_t bounce_at_[3] = {-1, -1, -1};
};

}  // namespace

std::vector<TensorType> infer_attention(const Graph& g, const Node& n) {
  const size_t first = positions(n.op).q;
  const TensorType &q = g.type(n.arg_value(first)), &k = g.type(n.arg_value(first + 1)),
                   &v = g.type(n.arg_value(first + 2));
  const Sizes s = sizes_of(n.op, q.shape, k.shape, v.shape);
  const Dims out{s.batch, s.heads, s.queries, s.value_depth}, lse{s.batch, s.heads, s.queries};
  const Positions& at = positions(n.op);
  if (const ValueId mask = n.arg_value_or_none(at.mask); mask != kNoValue) {
    const TensorType& m = g.type(mask);
    user_check(m.dtype == DType::Bool || m.dtype == q.dtype || m.dtype == DType::F32,
               "{}: a mask of type {}", op_text(n.op), name_of(m.dtype));
    broadcast_strides(n.op, {m.dtype, m.shape, dense_strides(m.shape)},
                      {s.batch, s.heads, s.queries, s.keys});
  }
  const double p = n.args.real_or(at.stream + 1, 0);
  user_check(p >= 0 && p <= 1, "{}: dropout with probability {}", op_text(n.op), p);
  const ValueId key = n.arg_value_or_none(at.key);
  user_check(key == kNoValue ? p == 0 : g.type(key).same_logical({DType::I64, {2}, {}}),
             "{}: dropout needs a key of type i64[2]", op_text(n.op));
  if (n.op == Op::SdpaGrad) {
    auto has = [&](size_t arg, const TensorType& want) {
      user_check(g.type(n.arg_value(arg)).same_logical(want),
                 "{}: argument {} does not have the type of the forward pass", op_text(n.op), arg);
    };
    has(0, {q.dtype, out, {}});
    has(kOut, {q.dtype, out, {}});
    has(kLse, {DType::F32, lse, {}});
    return {{q.dtype, q.shape, {}}, {k.dtype, k.shape, {}}, {v.dtype, v.shape, {}}};
  }
  return {{q.dtype, out, {}}, {DType::F32, lse, {}}};
}

Work work_attention(const Graph& g, const Node& n) {
  const size_t first = positions(n.op).q;
  const Sizes s =
      sizes_of(n.op, g.type(n.arg_value(first)).shape, g.type(n.arg_value(first + 1)).shape,
               g.type(n.arg_value(first + 2)).shape);
  Work w;
  w.kind = WorkKind::kMatMul;
  const int64_t products = n.op == Op::Sdpa ? 2 : 5;
  w.m = s.queries, w.n = s.keys, w.k = s.depth;
  w.batch = operations({products, s.batch, s.heads});
  w.flops = operations({2, w.batch, w.m, w.n, w.k});
  for (ValueId v : n.operands) w.bytes += g.type(v).bytes();
  for (ValueId v : n.results) w.bytes += g.type(v).bytes();
  return w;
}

KernelPtr make_attention(const StepDesc& desc) {
  invariant(desc.op == Op::Sdpa || desc.op == Op::SdpaGrad, "{} is not attention",
            op_text(desc.op));
  const auto make = [](const StepDesc& d) -> KernelPtr {
    if (d.op == Op::Sdpa) return std::make_unique<ForwardKernel>(d);
    return std::make_unique<BackwardKernel>(d);
  };
  const size_t mask = positions(desc.op).mask;
  const bool half_mask =
      desc.args.has(mask) && size_of(desc.inputs[desc.args.operand(mask)].dtype) == 2;
  return half_mask ? make_widened(desc, make) : make(desc);
}

bool accepts_attention(Op op, int index, const TensorRef& physical) {
  // Operand order is argument order without the absent ones; what has four dims and floats is a
  // token tensor or a mask. Masks may have any strides, but a mask is read correctly with the
  // stricter rule too.
  (void)op;
  (void)index;
  if (physical.dtype == DType::Bool || physical.dtype == DType::F16 ||
      physical.dtype == DType::BF16)
    return true;
  if (physical.shape.size() == 4 && physical.dtype == DType::F32) return unit_depth(physical);
  return physical.contiguous();
}

}  // namespace tessera
