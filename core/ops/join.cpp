// SPDX-License-Identifier: Apache-2.0
// cat([xs], dim), constant_pad_nd(x, pad, value), flip(x, dims), and sources written through a
// view: slice_scatter(x, src, dim, start, end, step), diagonal_scatter(x, src, offset, dim1, dim2),
// as_strided_scatter(x, src, size, stride, offset). Results are put together from disjoint blocks,
// each copied or filled by all threads. unfold_backward(grad, shape, dim, size, step) adds up
// windows.
#include <algorithm>

#include "ops/copy_nest.h"
#include "ops/element.h"
#include "ops/pad.h"
#include "ops/registry.h"
#include "ops/view.h"
#include "ops/widened.h"

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
  // All of `from`, written to (or read through) `at`, an alias of the result.
  void add_view(const TensorRef& at, const TensorRef& from) {
    Piece p{from, collapse(shared_loops<2>({&at, &from})), (at.offset - out_.offset) / size_, 0,
            false};
    if (count_of(p.nest) > 0) pieces_.push_back(std::move(p));
  }
  // Pieces added from now on overwrite earlier ones.
  void then() { barrier_before_.push_back(pieces_.size()); }
  void set_value(const Element& value) { value_ = value; }

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
      // In place: what comes from there is there.
      if (!p.fills && c.ptr<std::byte>(p.from) == c.ptr<std::byte>(out_)) continue;
      std::byte* out = c.ptr<std::byte>(out_) + p.out_first * size_;
      if (p.fills) {
        const auto step = p.nest.back().step;
        const auto [begin, end] = thread_range(c, count_of(p.nest), 64);
        for_runs(p.nest, begin, end, [&](const auto& at, int64_t n) {
          kernels::fill_strided(value_.data(), out + at[0] * size_, step[0], n, size_);
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
  alignas(16) Element value_{};
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
    // Before, inside and after the slice: every element is written once.
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

// A copy of x with src written through a view of it.
KernelPtr make_view_scatter(const StepDesc& d, Op view) {
  const TensorRef &out = d.outputs[0], &x = d.inputs[d.args.operand(0)],
                  &src = d.inputs[d.args.operand(1)];
  auto k = std::make_unique<JoinKernel>(out);
  const Dims zero(out.shape.size(), 0);
  k->add_box(zero, out.shape, &x, zero);
  k->then();
  Args args{{d.args.at(0)}};
  args.list.insert(args.list.end(), d.args.list.begin() + 2, d.args.list.end());
  const auto at = apply_view(view, args, out, src.shape);
  invariant(at.has_value(), "{} into a result that is not row-major", op_text(d.op));
  k->add_view(*at, src);
  return k;
}

KernelPtr make_flip(const StepDesc& d) {
  const TensorRef& out = d.outputs[0];
  TensorRef x = d.inputs[d.args.operand(0)];
  auto k = std::make_unique<JoinKernel>(out);
  for (int64_t dim : d.args.ints(1)) {
    dim = wrap_dim(dim, static_cast<int64_t>(x.shape.size()));
    if (x.shape.empty() || x.count() == 0) continue;
    x.offset += (x.shape[dim] - 1) * x.strides[dim] * size_of(x.dtype);
    x.strides[dim] = -x.strides[dim];
  }
  k->add_view(out, x);
  return k;
}

// Each thread owns a part of the other dims and adds the windows' first elements, then their second
// ones, and so on: the order does not depend on the number of threads.
KernelPtr make_unfold_grad(const StepDesc& d) {
  const TensorRef &grad = d.inputs[d.args.operand(0)], &out = d.outputs[0];
  const auto rank = static_cast<int64_t>(out.shape.size());
  const int64_t dim = wrap_dim(d.args.integer(2), rank), step = d.args.integer(4);
  Nest<2> lines;  // {result, gradient}
  for (int64_t i = 0; i < rank; ++i)
    if (i != dim) lines.push_back({out.shape[i], {out.strides[i], grad.strides[i]}});
  const Loop<2> window{grad.shape.back(), {rank ? out.strides[dim] : 1, grad.strides.back()}};
  const Loop<2> along{rank ? grad.shape[dim] : 1,
                      {window.step[0] * step, rank ? grad.strides[dim] : 0}};
  const Loop<2> whole{rank ? out.shape[dim] : 1, {window.step[0], 0}};
  // The innermost loop is whichever dim of the result lies closest.
  lines = collapse(lines);
  const bool across = lines.back().size > 1 && lines.back().step[0] < along.step[0];
  Loop<2> inner = across ? lines.back() : along;
  if (across) lines.pop_back();
  if (lines.empty()) lines.push_back({});
  const int64_t size = size_of(out.dtype);
  return make_kernel(
      [=](const RunCtx& c) {
        const Element zero{};
        // Across: the inner run is cut, the lines are walked by all.
        const auto [l0, l1] =
            across ? std::pair{int64_t{0}, count_of(lines)} : thread_range(c, count_of(lines));
        const auto [i0, i1] =
            across ? thread_range(c, inner.size, 16) : std::pair{int64_t{0}, inner.size};
        const int64_t n = i1 - i0;
        std::byte* to = c.ptr<std::byte>(out);
        const std::byte* from = c.ptr<const std::byte>(grad);
        for_each(lines, l0, l1, [&, i0 = i0](const auto& at) {
          std::byte* t = to + (at[0] + (across ? i0 * inner.step[0] : 0)) * size;
          const std::byte* f = from + (at[1] + (across ? i0 * inner.step[1] : 0)) * size;
          if (across)
            for (int64_t k = 0; k < whole.size; ++k)
              kernels::fill_strided(zero.data(), t + k * whole.step[0] * size, inner.step[0], n,
                                    size);
          else
            kernels::fill_strided(zero.data(), t, whole.step[0], whole.size, size);
          for (int64_t j = 0; j < window.size; ++j)
            for (int64_t k = 0; k < (across ? along.size : 1); ++k)
              kernels::combine_strided(f + (j * window.step[1] + k * along.step[1]) * size,
                                       inner.step[1],
                                       t + (j * window.step[0] + k * along.step[0]) * size,
                                       inner.step[0], n, out.dtype, kernels::Combine::kSum);
        });
      },
      0, grad.bytes() < kCopySmall);
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

KernelPtr make_pad(const StepDesc& d) {
  const TensorRef &out = d.outputs[0], &x = d.inputs[d.args.operand(0)];
  const size_t rank = out.shape.size();
  const Element value = d.args.has(2) ? element_of(d.args.at(2), out.dtype) : Element{};
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
  if (KernelPtr rows = make_row_pad(x, out, {first, inside, from, value})) return rows;
  auto k = std::make_unique<JoinKernel>(out);
  k->set_value(value);
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
  if (n.op == Op::DiagonalScatter || n.op == Op::AsStridedScatter) {
    Node view = n;  // of the result, which the source is written to
    view.op = n.op == Op::DiagonalScatter ? Op::Diagonal : Op::AsStrided;
    view.args.list.erase(view.args.list.begin() + 1);
    const TensorType want = infer_view(g, view)[0];
    user_check(g.type(n.arg_value(1)).same_logical(want), "[{}] the source is not {}",
               op_text(n.op), to_string(want));
    return {out};
  }
  if (n.op == Op::UnfoldGrad) {
    // Windows of the size and step asked for, as the forward makes them.
    const Dims made = n.args.ints(1);
    for (int64_t d : made) user_check(d >= 0, "[unfold_backward] a negative size");
    const auto rank = static_cast<int64_t>(made.size());
    const int64_t dim = wrap_dim(n.args.integer(2), rank), size = n.args.integer(3),
                  step = n.args.integer(4), have = rank ? made[dim] : 1;
    user_check(size >= 0 && size <= have && step > 0,
               "[unfold_backward] windows of {} with step {} do not fit {}", size, step, have);
    Dims want = made;
    if (rank) want[dim] = (have - size) / step + 1;
    want.push_back(size);
    user_check(x.shape == want, "[unfold_backward] a gradient of {} for windows of {}",
               text_of(x.shape), text_of(want));
    out.shape = made;
    return {out};
  }
  if (n.op == Op::Flip) {
    for (int64_t d : n.args.ints(1)) wrap_dim(d, x.rank());
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
  const int64_t out = g.type(n.results[0]).bytes();
  if (n.op != Op::UnfoldGrad) return {WorkKind::kCopy, 0, 2 * out};
  const TensorType& grad = g.type(n.operands[0]);
  return {WorkKind::kCopy, grad.count(), out + grad.bytes()};
}

KernelPtr make_join(const StepDesc& d) {
  switch (d.op) {
    case Op::Cat:
      return make_cat(d);
    case Op::SliceScatter:
      return make_slice_scatter(d);
    case Op::DiagonalScatter:
      return make_view_scatter(d, Op::Diagonal);
    case Op::AsStridedScatter:
      return make_view_scatter(d, Op::AsStrided);
    case Op::Flip:
      return make_flip(d);
    case Op::UnfoldGrad: {
      const auto rank = static_cast<int64_t>(d.outputs[0].shape.size());
      const bool cut = rank > 0 && wrap_dim(d.args.integer(2), rank) != 0;
      return make_widened(d, make_unfold_grad, cut ? Pieces::along(d, 0) : Pieces{});
    }
    default:
      return make_pad(d);
  }
}

bool accepts_join(Op, int, const TensorRef&) {
  return true;
}

}  // namespace tessera
