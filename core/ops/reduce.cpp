// SPDX-License-Identifier: Apache-2.0
// Reductions over any dims of any strides: sum, prod, amax, amin, any, all (x, dims, keepdim,
// dtype) and argmax, argmin (x, dim, keepdim). The work is cut by the shape alone, never by the
// number of threads, so that bits do not depend on it.
#include "kernels/reduce.h"

#include <algorithm>

#include "ops/loops.h"
#include "ops/registry.h"
#include "ops/view.h"
#include "ops/widened.h"

namespace tessera {
namespace {

using kernels::ArgFns;
using kernels::PartType;
using kernels::ReduceFns;
using kernels::ReduceKind;

constexpr int64_t kSmall = 16384;      // elements below which one thread does it
constexpr int64_t kChunk = 16384;      // elements worth a task of their own
constexpr int64_t kTasks = 16;         // tasks wanted when one result has much work
constexpr int64_t kColumnTile = 1024;  // columns of a task
constexpr int64_t kRowBatch = 128;     // results finished together

bool is_arg(Op op) {
  return op == Op::Argmax || op == Op::Argmin;
}

ReduceKind kind_of(Op op) {
  switch (op) {
    case Op::Sum:
      return ReduceKind::kSum;
    case Op::Prod:
      return ReduceKind::kProd;
    case Op::Amax:
      return ReduceKind::kMax;
    case Op::Amin:
      return ReduceKind::kMin;
    case Op::Any:
      return ReduceKind::kAny;
    default:
      return ReduceKind::kAll;
  }
}

// Overloads differ in which arguments they have; the kinds of the arguments tell them apart.
struct ReduceArgs {
  std::vector<bool> reduced;
  bool keepdim = false;
  const Arg* dtype = nullptr;

  ReduceArgs(const Args& args, int64_t rank) : reduced(static_cast<size_t>(rank), false) {
    bool all = true;
    for (size_t i = 1; i < args.size(); ++i) {
      const Arg& a = args.at(i);
      if (a.kind == Arg::Kind::kDType) dtype = &a;
      if (a.kind == Arg::Kind::kBool) keepdim = a.i != 0;
      if (i != 1 || (a.kind != Arg::Kind::kInt && a.kind != Arg::Kind::kList)) continue;
      for (int64_t d : args.ints(i)) {
        all = false;
        d = wrap_dim(d, rank);
        if (rank == 0) continue;
        user_check(!reduced[d], "[reduce] dim {} appears twice", d);
        reduced[d] = true;
      }
    }
    if (all) reduced.assign(reduced.size(), true);
  }
};

Dims reduced_shape(const Dims& in, const ReduceArgs& a) {
  Dims out;
  for (size_t i = 0; i < in.size(); ++i) {
    if (!a.reduced[i])
      out.push_back(in[i]);
    else if (a.keepdim)
      out.push_back(1);
  }
  return out;
}

DType result_dtype(Op op, DType in, const ReduceArgs& a) {
  if (is_arg(op)) return DType::I64;
  if (op == Op::Amax || op == Op::Amin) return in;
  if (op == Op::Any || op == Op::All) return in == DType::U8 ? DType::U8 : DType::Bool;
  if (a.dtype) return static_cast<DType>(a.dtype->i);
  return is_float(in) ? in : DType::I64;
}

// Loops over the kept dims (steps of input and output) and over the reduced ones (step of the
// input).
struct Loops {
  Nest<2> kept;
  Nest<1> reduced;

  Loops(const TensorRef& x, const TensorRef& out, const ReduceArgs& a, bool logical_order) {
    size_t o = 0;
    for (size_t i = 0; i < x.shape.size(); ++i) {
      if (a.reduced[i]) {
        reduced.push_back({x.shape[i], {x.strides[i]}});
        o += a.keepdim;
      } else {
        kept.push_back({x.shape[i], {x.strides[i], out.strides[o++]}});
      }
    }
    kept = collapse(kept);
    reduced = collapse(reduced, logical_order);
  }
};

template <typename From>
void write_as(const void* part, int64_t n, std::byte* out, int64_t step, DType dtype) {
  const auto* p = static_cast<const From*>(part);
  auto put = [&](auto* o) {
    using To = std::remove_pointer_t<decltype(o)>;
    for (int64_t i = 0; i < n; ++i) o[i * step] = static_cast<To>(p[i]);
  };
  switch (dtype) {
    case DType::F32:
      put(reinterpret_cast<float*>(out));
      break;
    case DType::F64:
      put(reinterpret_cast<double*>(out));
      break;
    case DType::I64:
      put(reinterpret_cast<int64_t*>(out));
      break;
    case DType::I32:
      put(reinterpret_cast<int32_t*>(out));
      break;
    case DType::I16:
      put(reinterpret_cast<int16_t*>(out));
      break;
    case DType::I8:
      put(reinterpret_cast<int8_t*>(out));
      break;
    default:
      put(reinterpret_cast<uint8_t*>(out));
      break;
  }
}

void write_parts(PartType type, const void* part, int64_t n, std::byte* out, int64_t step,
                 DType dtype) {
  switch (type) {
    case PartType::kF64:
      write_as<double>(part, n, out, step, dtype);
      break;
    case PartType::kF32:
      write_as<float>(part, n, out, step, dtype);
      break;
    case PartType::kI64:
      write_as<int64_t>(part, n, out, step, dtype);
      break;
    case PartType::kI32:
      write_as<int32_t>(part, n, out, step, dtype);
      break;
    case PartType::kU8:
      write_as<uint8_t>(part, n, out, step, dtype);
      break;
  }
}

class ReduceKernel final : public Kernel {
 public:
  ReduceKernel(const StepDesc& d, const ReduceArgs& a)
      : x_(d.inputs[d.args.operand(0)]), out_(d.outputs[0]), loops_(x_, out_, a, false) {
    fns_ = kernels::reduce_kernels().find(kind_of(d.op), x_.dtype);
    user_check(fns_ != nullptr, "no {} kernel for {}", op_text(d.op), name_of(x_.dtype));
    part_ = kernels::part_size(fns_->part);
    const Loop<2>& inner = loops_.kept.back();
    by_columns_ = inner.step[0] == 1 && inner.size > 1 && loops_.reduced.back().step[0] != 1;
    depth_ = count_of(loops_.reduced);
    if (by_columns_) {
      width_ = inner.size;
      out_step_ = inner.step[1];
      tile_ = std::min(width_, kColumnTile);
      tiles_ = (width_ + tile_ - 1) / tile_;
      loops_.kept.pop_back();
      if (loops_.kept.empty()) loops_.kept.push_back({});
    }
    blocks_ = count_of(loops_.kept) * tiles_;
    const int64_t per_block = depth_ * tile_;
    int64_t chunks = 1;
    if (blocks_ > 0 && blocks_ < kTasks)
      chunks = std::min((per_block + kChunk - 1) / kChunk, (kTasks + blocks_ - 1) / blocks_);
    chunk_ = std::max<int64_t>(
        1, (depth_ + std::max<int64_t>(chunks, 1) - 1) / std::max<int64_t>(chunks, 1));
    chunks_ = std::max<int64_t>(1, (depth_ + chunk_ - 1) / chunk_);
  }

  bool single_thread() const override { return x_.count() < kSmall; }
  int64_t scratch_bytes(int threads) const override {
    const int64_t rows = chunks_ > 1 ? blocks_ * chunks_ : threads;
    return rows * row_bytes();
  }

  void run(const RunCtx& c) const override {
    if (blocks_ == 0) return;
    if (chunks_ == 1 && !by_columns_)
      whole_rows(c);
    else if (chunks_ == 1)
      whole_columns(c);
    else
      in_chunks(c);
  }

 private:
  // Partial results of one block: a tile of columns or one result, padded against false sharing.
  int64_t row_bytes() const { return whole_lines((by_columns_ ? tile_ : kRowBatch) * part_); }
  const std::byte* x_at(const RunCtx& c, int64_t element) const {
    return c.ptr<const std::byte>(x_) + element * size_of(x_.dtype);
  }
  std::byte* out_at(const RunCtx& c, int64_t element) const {
    return c.ptr<std::byte>(out_) + element * size_of(out_.dtype);
  }

  void whole_rows(const RunCtx& c) const {
    std::byte* part = c.scratch + c.thread * row_bytes();
    const auto [begin, end] = thread_range(c, blocks_);
    const auto step = loops_.kept.back().step;
    const Loop<1>& inner = loops_.reduced.back();
    for_runs(loops_.kept, begin, end, [&](const auto& at, int64_t n) {
      for (int64_t k = 0; k < n; k += kRowBatch) {
        const int64_t m = std::min(kRowBatch, n - k);
        fns_->init(part, m);
        for_runs(loops_.reduced, 0, depth_, [&](const auto& r, int64_t len) {
          fns_->rows(x_at(c, at[0] + k * step[0] + r[0]), m, step[0], len, inner.step[0], part);
        });
        write_parts(fns_->part, part, m, out_at(c, at[1] + k * step[1]), step[1], out_.dtype);
      }
    });
  }

  void whole_columns(const RunCtx& c) const {
    std::byte* part = c.scratch + c.thread * row_bytes();
    const auto [begin, end] = thread_range(c, blocks_);
    for (int64_t b = begin; b < end; ++b) {
      const int64_t first = b % tiles_ * tile_, n = std::min(tile_, width_ - first);
      for_each(loops_.kept, b / tiles_, b / tiles_ + 1, [&](const auto& at) {
        fns_->init(part, n);
        columns(c, at[0] + first, 0, depth_, n, part);
        write_parts(fns_->part, part, n, out_at(c, at[1] + first * out_step_), out_step_,
                    out_.dtype);
      });
    }
  }

  void columns(const RunCtx& c, int64_t x_first, int64_t begin, int64_t end, int64_t n,
               std::byte* part) const {
    for_runs(loops_.reduced, begin, end, [&](const auto& r, int64_t rows) {
      fns_->cols(x_at(c, x_first + r[0]), rows, loops_.reduced.back().step[0], n, part);
    });
  }

  // Every (block, chunk) leaves a partial result; they are merged in the order of the chunks.
  void in_chunks(const RunCtx& c) const {
    const auto [begin, end] = thread_range(c, blocks_ * chunks_);
    for (int64_t t = begin; t < end; ++t) {
      std::byte* part = c.scratch + t * row_bytes();
      const int64_t b = t / chunks_, from = t % chunks_ * chunk_,
                    to = std::min(depth_, from + chunk_);
      const int64_t first = b % tiles_ * tile_,
                    n = by_columns_ ? std::min(tile_, width_ - first) : 1;
      fns_->init(part, n);
      for_each(loops_.kept, b / tiles_, b / tiles_ + 1, [&](const auto& at) {
        if (by_columns_) {
          columns(c, at[0] + first, from, to, n, part);
        } else {
          for_runs(loops_.reduced, from, to, [&](const auto& r, int64_t len) {
            fns_->rows(x_at(c, at[0] + r[0]), 1, 0, len, loops_.reduced.back().step[0], part);
          });
        }
      });
    }
    c.barrier();
    for (int64_t b = 0; b < blocks_; ++b) {
      const int64_t first = b % tiles_ * tile_,
                    n = by_columns_ ? std::min(tile_, width_ - first) : 1;
      const auto [w_begin, w_end] = thread_range(c, n, 64);
      if (w_begin >= w_end) continue;
      std::byte* total = c.scratch + b * chunks_ * row_bytes() + w_begin * part_;
      for (int64_t k = 1; k < chunks_; ++k)
        fns_->merge(total, total + k * row_bytes(), w_end - w_begin);
      for_each(loops_.kept, b / tiles_, b / tiles_ + 1,
               [&, w_begin = w_begin, w_end = w_end](const auto& at) {
                 write_parts(fns_->part, total, w_end - w_begin,
                             out_at(c, at[1] + (first + w_begin) * out_step_), out_step_,
                             out_.dtype);
               });
    }
  }

  TensorRef x_, out_;
  Loops loops_;
  const ReduceFns* fns_ = nullptr;
  int64_t part_ = 8;
  bool by_columns_ = false;
  int64_t width_ = 1, out_step_ = 0, tile_ = 1, tiles_ = 1;  // columns of a block
  int64_t depth_ = 1, blocks_ = 0, chunk_ = 1, chunks_ = 1;
};

// argmax and argmin. A chunk leaves the index of its best element; values are compared again when
// merging.
class ArgKernel final : public Kernel {
 public:
  ArgKernel(const StepDesc& d, const ReduceArgs& a)
      : x_(d.inputs[d.args.operand(0)]),
        out_(d.outputs[0]),
        loops_(x_, out_, a, true),
        fns_(kernels::reduce_kernels().find_arg(x_.dtype)),
        largest_(d.op == Op::Argmax) {
    user_check(fns_ != nullptr, "no {} kernel for {}", op_text(d.op), name_of(x_.dtype));
    depth_ = count_of(loops_.reduced);
    by_columns_ = loops_.reduced.size() == 1 && loops_.kept.back().step[0] == 1 &&
                  loops_.kept.back().size >= 8 && loops_.reduced.back().step[0] != 1;
    results_ = count_of(loops_.kept);
    if (!by_columns_ && results_ < kTasks)
      chunks_ = std::clamp<int64_t>(depth_ / kChunk, 1, kTasks);
    chunk_ = (depth_ + chunks_ - 1) / chunks_;
    chunks_ = std::max<int64_t>(1, (depth_ + chunk_ - 1) / std::max<int64_t>(1, chunk_));
  }

  bool single_thread() const override { return x_.count() < kSmall; }
  int64_t scratch_bytes(int) const override { return chunks_ > 1 ? results_ * chunks_ * 8 : 0; }

  void run(const RunCtx& c) const override {
    if (by_columns_) {
      columns(c);
      return;
    }
    auto* best = reinterpret_cast<int64_t*>(c.scratch);
    int64_t* out = c.ptr<int64_t>(out_);
    const auto [begin, end] = thread_range(c, results_ * chunks_);
    if (chunks_ == 1) {
      for_each(loops_.kept, begin, end,
               [&](const auto& at) { out[at[1]] = search(c, at[0], 0, depth_); });
      return;
    }
    for (int64_t t = begin; t < end; ++t)
      for_each(loops_.kept, t / chunks_, t / chunks_ + 1, [&](const auto& at) {
        const int64_t from = t % chunks_ * chunk_, to = std::min(depth_, from + chunk_);
        best[t] = search(c, at[0], from, to);
      });
    c.barrier();
    const auto [rb, re] = thread_range(c, results_);
    for (int64_t r = rb; r < re; ++r)
      for_each(loops_.kept, r, r + 1, [&](const auto& at) {
        int64_t top = best[r * chunks_];
        for (int64_t k = 1; k < chunks_; ++k) {
          const int64_t i = best[r * chunks_ + k];
          if (fns_->beyond(element(c, at[0], i), element(c, at[0], top), largest_)) top = i;
        }
        out[at[1]] = top;
      });
  }

 private:
  const std::byte* element(const RunCtx& c, int64_t base, int64_t index) const {
    int64_t at = base;
    for (size_t d = loops_.reduced.size(); d-- > 0;) {
      at += index % loops_.reduced[d].size * loops_.reduced[d].step[0];
      index /= loops_.reduced[d].size;
    }
    return c.ptr<const std::byte>(x_) + at * size_of(x_.dtype);
  }

  int64_t search(const RunCtx& c, int64_t base, int64_t from, int64_t to) const {
    if (loops_.reduced.size() == 1) {
      const int64_t step = loops_.reduced[0].step[0];
      return from + fns_->row(c.ptr<const std::byte>(x_) + (base + from * step) * size_of(x_.dtype),
                              to - from, step, largest_);
    }
    int64_t best = from, at = from;
    const std::byte* value = nullptr;
    const int64_t step = loops_.reduced.back().step[0], bytes = size_of(x_.dtype);
    for_runs(loops_.reduced, from, to, [&](const auto& r, int64_t n) {
      const std::byte* p = c.ptr<const std::byte>(x_) + (base + r[0]) * bytes;
      const int64_t i = fns_->row(p, n, step, largest_);
      const std::byte* v = p + i * step * bytes;
      if (!value || fns_->beyond(v, value, largest_)) {
        value = v;
        best = at + i;
      }
      at += n;
    });
    return best;
  }

  void columns(const RunCtx& c) const {
    int64_t index[kernels::kArgWidth];
    int64_t* out = c.ptr<int64_t>(out_);
    const int64_t out_step = loops_.kept.back().step[1];
    const auto [begin, end] = thread_range(c, results_, 64);
    for_runs(loops_.kept, begin, end, [&](const auto& at, int64_t n) {
      for (int64_t k = 0; k < n; k += kernels::kArgWidth) {
        const int64_t w = std::min(kernels::kArgWidth, n - k);
        fns_->cols(c.ptr<const std::byte>(x_) + (at[0] + k) * size_of(x_.dtype), depth_,
                   loops_.reduced.back().step[0], w, largest_, index);
        for (int64_t i = 0; i < w; ++i) out[at[1] + (k + i) * out_step] = index[i];
      }
    });
  }

  TensorRef x_, out_;
  Loops loops_;
  const ArgFns* fns_;
  bool largest_, by_columns_ = false;
  int64_t depth_ = 1, results_ = 0, chunk_ = 1, chunks_ = 1;
};

}  // namespace

std::vector<TensorType> infer_reduce(const Graph& g, const Node& n) {
  const TensorType& x = g.type(n.arg_value(0));
  const ReduceArgs a(n.args, x.rank());
  const DType out = result_dtype(n.op, x.dtype, a);
  const bool needs_element = is_arg(n.op) || n.op == Op::Amax || n.op == Op::Amin;
  for (size_t i = 0; needs_element && i < x.shape.size(); ++i)
    user_check(!a.reduced[i] || x.shape[i] > 0, "[{}] has no value over an empty dim {}",
               op_text(n.op), i);
  if (n.op != Op::Mean) return {{out, reduced_shape(x.shape, a), {}}};
  const DType stated = g.type(n.results[0]).dtype;
  user_check(is_float(stated), "[mean] has no result of type {}", name_of(stated));
  return {{stated, reduced_shape(x.shape, a), {}}};
}

Work work_reduce(const Graph& g, const Node& n) {
  const TensorType& x = g.type(n.arg_value(0));
  return {WorkKind::kReduce, x.count(), x.bytes() + g.type(n.results[0]).bytes()};
}

// Pieces of the longest dim that is kept.
Pieces reduce_pieces(const StepDesc& d) {
  const TensorRef& x = d.inputs[d.args.operand(0)];
  const ReduceArgs a(d.args, static_cast<int64_t>(x.shape.size()));
  Pieces p;
  int64_t longest = 1;
  int out = 0;
  for (size_t i = 0; i < x.shape.size(); ++i) {
    if (!a.reduced[i] && x.shape[i] > longest) {
      longest = x.shape[i];
      p = {{static_cast<int>(i)}, {out}, x.strides[i] == 1 ? kRowBatch : 1};
    }
    out += a.keepdim || !a.reduced[i];
  }
  return p;
}

KernelPtr make_reduce(const StepDesc& desc) {
  invariant(desc.op != Op::Mean, "no pass made a sum of mean");
  auto make = [](const StepDesc& d) -> KernelPtr {
    const TensorRef& x = d.inputs[d.args.operand(0)];
    const ReduceArgs a(d.args, static_cast<int64_t>(x.shape.size()));
    if (is_arg(d.op)) return std::make_unique<ArgKernel>(d, a);
    return std::make_unique<ReduceKernel>(d, a);
  };
  return make_widened(desc, make, reduce_pieces(desc));
}

bool accepts_reduce(Op, int, const TensorRef&) {
  return true;
}

}  // namespace tessera
