// SPDX-License-Identifier: Apache-2.0
// cat([xs], dim), slice_scatter(dst, src, dim, start, end, step) and constant_pad_nd(x, pad,
// value): results put together from disjoint blocks, each copied or filled by all threads.
#include <algorithm>
#include <cstring>

#include "kernels/simd.h"
#include "ops/copy_nest.h"
#include "ops/registry.h"
#include "ops/view.h"

namespace tessera {
namespace {

// One block of the result and where it comes from; a fill has no source.
struct Piece {
  TensorRef from;
  Nest<2> nest;                           // {result, source}
  int64_t out_first = 0, from_first = 0;  // elements
  bool fills = false;
};

class JoinKernel final : public Kernel {
 public:
  explicit JoinKernel(const TensorRef& out) : out_(out), size_(size_of(out.dtype)) {}

  // The box [begin, begin + shape) of the result, stepping by `step` along `dim`, copied from a box
  // of `from` that starts at `from_begin`; filled if `from` is null.
  void add_box(const Dims& begin, const Dims& shape, const TensorRef* from, const Dims& from_begin,
               int64_t dim = 0, int64_t step = 1) {
    Piece p;
    p.fills = from == nullptr;
    if (from) p.from = *from;
    for (size_t i = 0; i < shape.size(); ++i) {
      const int64_t out_step = out_.strides[i] * (static_cast<int64_t>(i) == dim ? step : 1);
      p.nest.push_back({shape[i], {out_step, from ? from->strides[i] : 0}});
      p.out_first += begin[i] * out_.strides[i];
      if (from) p.from_first += from_begin[i] * from->strides[i];
    }
    p.nest = collapse(p.nest);
    if (count_of(p.nest) > 0) pieces_.push_back(std::move(p));
  }
  // Pieces added from now on overwrite earlier ones.
  void then() { barrier_before_.push_back(pieces_.size()); }
  void set_value(const std::byte* bytes) { std::memcpy(value_, bytes, static_cast<size_t>(size_)); }

  bool single_thread() const override { return out_.bytes() < kCopySmall; }
  void run(const RunCtx& c) const override {
    if (side_by_side()) {
      interleaved(c);
      return;
    }
    size_t next = 0;
    for (size_t i = 0; i < pieces_.size(); ++i) {
      if (next < barrier_before_.size() && barrier_before_[next] == i) {
        c.barrier();
        ++next;
      }
      const Piece& p = pieces_[i];
      std::byte* out = c.ptr<std::byte>(out_) + p.out_first * size_;
      if (p.fills) {
        const auto step = p.nest.back().step;
        const auto [begin, end] = thread_range(c, count_of(p.nest), 64);
        for_runs(p.nest, begin, end, [&](const auto& at, int64_t n) {
          kernels::fill_strided(value_, out + at[0] * size_, step[0], n, size_);
        });
      } else {
        copy_share(c, p.nest, c.ptr<const std::byte>(p.from) + p.from_first * size_, out, size_);
      }
    }
  }

 private:
  // Several copies whose rows alternate in the result, as in a cat of the last dim.
  bool side_by_side() const {
    if (pieces_.size() < 2 || !barrier_before_.empty()) return false;
    for (const Piece& p : pieces_)
      if (p.fills || p.nest.size() != 2 || p.nest[0].size != pieces_[0].nest[0].size ||
          p.nest[0].step[0] != pieces_[0].nest[0].step[0])
        return false;
    return true;
  }

  // A few rows of every piece in turn, so that the result is written once from front to back.
  void interleaved(const RunCtx& c) const {
    const Loop<2>& outer = pieces_[0].nest[0];
    const int64_t block = std::max<int64_t>(1, 16384 / std::max<int64_t>(1, outer.step[0] * size_));
    const auto [begin, end] = thread_range(c, outer.size);
    for (int64_t r = begin; r < end; r += block)
      for (const Piece& p : pieces_) {
        const auto row = p.nest[0].step, step = p.nest[1].step;
        kernels::copy_rows(c.ptr<const std::byte>(p.from) + (p.from_first + r * row[1]) * size_,
                           row[1], step[1],
                           c.ptr<std::byte>(out_) + (p.out_first + r * row[0]) * size_, row[0],
                           step[0], std::min(block, end - r), p.nest[1].size, size_);
      }
  }

  TensorRef out_;
  int64_t size_;
  std::vector<Piece> pieces_;
  std::vector<size_t> barrier_before_;
  alignas(16) std::byte value_[16] = {};
};

// ATen lets empty tensors of one dim stand in a cat of any rank.
bool is_placeholder(const Dims& shape) {
  return shape.size() == 1 && shape[0] == 0;
}

KernelPtr make_cat(const StepDesc& d) {
  const TensorRef& out = d.outputs[0];
  auto k = std::make_unique<JoinKernel>(out);
  const int64_t dim = wrap_dim(d.args.integer_or(1, 0), static_cast<int64_t>(out.shape.size()));
  Dims begin(out.shape.size(), 0);
  const Dims zero(out.shape.size(), 0);
  for (const Arg& a : d.args.at(0).list) {
    const TensorRef& x = d.inputs[a.i];
    if (is_placeholder(x.shape)) continue;
    invariant(x.dtype == out.dtype, "cat of {} into {}", name_of(x.dtype), name_of(out.dtype));
    k->add_box(begin, x.shape, &x, zero);
    begin[dim] += x.shape[dim];
  }
  return k;
}

KernelPtr make_slice_scatter(const StepDesc& d) {
  const TensorRef &out = d.outputs[0], &dst = d.inputs[d.args.operand(0)],
                  &src = d.inputs[d.args.operand(1)];
  auto k = std::make_unique<JoinKernel>(out);
  const int64_t dim = wrap_dim(d.args.integer_or(2, 0), static_cast<int64_t>(out.shape.size()));
  const Arg none;
  const SliceRange r =
      slice_range(out.shape[dim], d.args.size() > 3 ? d.args.at(3) : none,
                  d.args.size() > 4 ? d.args.at(4) : none, d.args.integer_or(5, 1));
  const Dims zero(out.shape.size(), 0);
  Dims begin = zero, shape = out.shape;
  if (r.step == 1 || r.length <= 1) {
    // Before, inside and behind the slice: every element is written once.
    shape[dim] = r.start;
    k->add_box(zero, shape, &dst, zero);
    begin[dim] = r.start + r.length;
    shape[dim] = out.shape[dim] - begin[dim];
    k->add_box(begin, shape, &dst, begin);
  } else {
    k->add_box(zero, out.shape, &dst, zero);
    k->then();
  }
  begin[dim] = r.start;
  k->add_box(begin, src.shape, &src, zero, dim, r.step);
  return k;
}

// Low and high padding of each dim; the argument lists the last dim first.
struct Padding {
  Dims low, high;
  Padding(const Args& args, size_t rank) : low(rank, 0), high(rank, 0) {
    const auto pad = args.ints(1);
    user_check(pad.size() % 2 == 0 && pad.size() / 2 <= rank,
               "[constant_pad_nd] {} paddings for a tensor of rank {}", pad.size(), rank);
    for (size_t i = 0; i < pad.size() / 2; ++i) {
      low[rank - 1 - i] = pad[2 * i];
      high[rank - 1 - i] = pad[2 * i + 1];
    }
  }
};

void put_value(const Args& args, DType dtype, JoinKernel& k) {
  alignas(16) std::byte bytes[16] = {};
  auto put = [&](auto v) { std::memcpy(bytes, &v, sizeof v); };
  const double v = args.real_or(2, 0.0);
  const int64_t whole = args.integer_or(2, 0);
  switch (dtype) {
    case DType::F32:
      put(static_cast<float>(v));
      break;
    case DType::F64:
      put(v);
      break;
    case DType::I64:
      put(whole);
      break;
    case DType::I32:
      put(static_cast<int32_t>(whole));
      break;
    case DType::I16:
      put(static_cast<int16_t>(whole));
      break;
    case DType::I8:
    case DType::U8:
      put(static_cast<uint8_t>(whole));
      break;
    case DType::Bool:
      put(static_cast<uint8_t>(v != 0));
      break;
    case DType::F16:
      put(kernels::v3::f32_to_f16(static_cast<float>(v)));
      break;
    case DType::BF16:
      put(kernels::v3::f32_to_bf16(static_cast<float>(v)));
      break;
    default:
      invariant(v == 0, "constant_pad_nd cannot fill {}", name_of(dtype));
  }
  k.set_value(bytes);
}

KernelPtr make_pad(const StepDesc& d) {
  const TensorRef &out = d.outputs[0], &x = d.inputs[d.args.operand(0)];
  const size_t rank = out.shape.size();
  auto k = std::make_unique<JoinKernel>(out);
  put_value(d.args, out.dtype, *k);
  const Padding pad(d.args, rank);
  // The inner box in coordinates of the result, and where it starts in the operand; negative
  // padding crops.
  Dims first(rank), from(rank), inside(rank);
  for (size_t i = 0; i < rank; ++i) {
    first[i] = std::clamp<int64_t>(pad.low[i], 0, out.shape[i]);
    from[i] = std::max<int64_t>(-pad.low[i], 0);
    const int64_t end = std::min(out.shape[i], pad.low[i] + x.shape[i]);
    inside[i] = std::max<int64_t>(0, end - first[i]);
  }
  k->add_box(first, inside, &x, from);
  // Around it: for each dim the slabs below and above, the dims before it limited to the inside.
  Dims begin(rank, 0), shape = out.shape;
  for (size_t i = 0; i < rank; ++i) {
    begin[i] = 0;
    shape[i] = first[i];
    k->add_box(begin, shape, nullptr, begin);
    begin[i] = first[i] + inside[i];
    shape[i] = out.shape[i] - begin[i];
    k->add_box(begin, shape, nullptr, begin);
    begin[i] = first[i];
    shape[i] = inside[i];
  }
  return k;
}

}  // namespace

std::vector<TensorType> infer_join(const Graph& g, const Node& n) {
  if (n.op == Op::Cat) {
    const auto& list = n.args.at(0).list;
    user_check(!list.empty(), "[cat] needs at least one tensor");
    TensorType out = g.type(n.operands[list[0].i]);
    bool first = true;
    int64_t dim = 0;
    for (const Arg& a : list) {
      const TensorType& x = g.type(n.operands[a.i]);
      user_check(x.dtype == out.dtype, "[cat] tensors of {} and {}", name_of(out.dtype),
                 name_of(x.dtype));
      if (is_placeholder(x.shape)) continue;
      if (first) {
        out.shape = x.shape;
        dim = wrap_dim(n.args.integer_or(1, 0), x.rank());
        user_check(x.rank() > 0, "[cat] cannot join scalars");
        first = false;
        continue;
      }
      user_check(x.shape.size() == out.shape.size(), "[cat] tensors of rank {} and {}", out.rank(),
                 x.rank());
      for (int64_t i = 0; i < x.rank(); ++i)
        user_check(i == dim || x.shape[i] == out.shape[i], "[cat] sizes {} and {} differ in dim {}",
                   out.shape[i], x.shape[i], i);
      out.shape[dim] += x.shape[dim];
    }
    out.order.clear();
    return {out};
  }
  const TensorType& x = g.type(n.arg_value(0));
  TensorType out{x.dtype, x.shape, {}};
  if (n.op == Op::SliceScatter) {
    const TensorType& src = g.type(n.arg_value(1));
    const int64_t dim = wrap_dim(n.args.integer_or(2, 0), x.rank());
    const Arg none;
    Dims want = x.shape;
    want[dim] = slice_range(x.shape[dim], n.args.size() > 3 ? n.args.at(3) : none,
                            n.args.size() > 4 ? n.args.at(4) : none, n.args.integer_or(5, 1))
                    .length;
    user_check(src.shape == want && src.dtype == x.dtype,
               "[slice_scatter] the source does not fit the slice");
    return {out};
  }
  const Padding pad(n.args, x.shape.size());
  for (size_t i = 0; i < x.shape.size(); ++i) {
    out.shape[i] += pad.low[i] + pad.high[i];
    user_check(out.shape[i] >= 0, "[constant_pad_nd] padding makes dim {} negative", i);
  }
  return {out};
}

Work work_join(const Graph& g, const Node& n) {
  return {WorkKind::kCopy, 0, 2 * g.type(n.results[0]).bytes()};
}

KernelPtr make_join(const StepDesc& d) {
  if (d.op == Op::Cat) return make_cat(d);
  if (d.op == Op::SliceScatter) return make_slice_scatter(d);
  return make_pad(d);
}

bool accepts_join(Op, int, const TensorRef&) {
  return true;
}

}  // namespace tessera
