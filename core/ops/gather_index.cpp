// SPDX-License-Identifier: Apache-2.0
// Ops in which index tensors select whole blocks. First the offset of every selected block is
// computed and checked, then blocks are moved or combined.
//   embedding(table, index), index_select(x, dim, index), index(x, [indices]), take(flat, index);
//   index_put(x, [indices], values, accumulate), put(flat, index, values, accumulate),
//   index_add, index_copy and index_fill(x, dim, index, values),
//   index_reduce(x, dim, index, values, reduce)
// Values broadcast to the indexed shape.
#include <algorithm>
#include <limits>
#include <tuple>

#include "ops/gather_impl.h"
#include "ops/registry.h"
#include "ops/view.h"

namespace tessera {
namespace {

using kernels::Combine;

// What a call asks for, the same for all ops of this file.
struct IndexedCall {
  IndexList list;
  bool wraps = false;  // negative indices count from the end
  int values = -1;     // operand that is written, none if blocks are read
  Combine how = Combine::kSet;
};

IndexedCall indexed_call(Op op, const Args& a, int64_t rank) {
  auto along = [&](int index, int64_t dim) { return IndexList{{index}, {wrap_dim(dim, rank)}}; };
  auto added = [&](size_t i) { return a.boolean_or(i, false) ? Combine::kSum : Combine::kSet; };
  switch (op) {
    case Op::Embedding:
      return {along(a.operand(1), 0)};
    case Op::IndexSelect:
      return {along(a.operand(2), a.integer(1))};
    case Op::Index:
      return {index_list(a.at(1)), true};
    case Op::Take:
      return {along(a.operand(1), 0), true};
    case Op::IndexPut:
      return {index_list(a.at(1)), true, a.operand(2), added(3)};
    case Op::Put:
      return {along(a.operand(1), 0), true, a.operand(2), added(3)};
    case Op::IndexAdd:
      return {along(a.operand(2), a.integer(1)), false, a.operand(3), Combine::kSum};
    case Op::IndexReduce:
      return {along(a.operand(2), a.integer(1)), false, a.operand(3), combination(a.text(4))};
    default:  // index_copy, index_fill
      return {along(a.operand(2), a.integer(1)), op == Op::IndexFill, a.operand(3)};
  }
}

// What one index tensor contributes to the offset of a block.
struct IndexTerm {
  TensorRef index;
  Nest<1> nest;          // over the broadcast index shape, in its order
  int64_t extent, step;  // of the indexed dim of the target
};

// The blocks of `target` that the index tensors select.
struct Selection {
  Op op;
  bool wraps;
  std::vector<IndexTerm> terms;
  int64_t blocks = 0, per_block = 1, run = 1;
  Nest<1> positions;  // of the blocks in the other tensor (result or values)
  Nest<2> block;      // the dims that no index touches, without the run: {other, target}

  // `other` has the indexed shape, possibly broadcast by strides of zero.
  Selection(const StepDesc& d, const TensorRef& target, const IndexedCall& call,
            const TensorRef& other)
      : op(d.op), wraps(call.wraps) {
    const IndexList& list = call.list;
    std::vector<Dims> shapes;
    for (int k : list.operand) shapes.push_back(d.inputs[k].shape);
    const Dims common = broadcast_shapes(shapes);
    blocks = product(common);
    for (size_t t = 0; t < list.operand.size(); ++t) {
      const TensorRef& index = d.inputs[list.operand[t]];
      Nest<1> nest;
      const size_t lead = common.size() - index.shape.size();
      for (size_t i = 0; i < common.size(); ++i)
        nest.push_back(
            {common[i], {i < lead || index.shape[i - lead] == 1 ? 0 : index.strides[i - lead]}});
      terms.push_back(
          {index, collapse(nest, true), target.shape[list.dim[t]], target.strides[list.dim[t]]});
    }
    const auto at = static_cast<size_t>(index_position(list));
    for (size_t i = 0; i < common.size(); ++i)
      positions.push_back({common[i], {other.strides[at + i]}});
    positions = collapse(positions, true);
    std::vector<bool> indexed(target.shape.size(), false);
    for (int64_t k : list.dim) indexed[k] = true;
    size_t o = 0;
    for (size_t i = 0; i < target.shape.size(); ++i) {
      if (indexed[i]) continue;
      if (o == at) o += common.size();
      block.push_back({target.shape[i], {other.strides[o++], target.strides[i]}});
    }
    std::stable_sort(block.begin(), block.end(), [](const auto& a, const auto& b) {
      return std::abs(a.step[1]) > std::abs(b.step[1]);
    });
    block = collapse(block, true);
    per_block = count_of(block);
    // The innermost dim is a run if its elements are neighbours in both tensors. What is left of a
    // block is walked element by element for many blocks together.
    const Loop<2>& inner = block.back();
    if (inner.step[1] == 1 && inner.step[0] == 1) {
      run = inner.size;
      block.pop_back();
      if (block.empty()) block.push_back({});
    }
  }

  // Whether all indices of this thread's share are in range; reports one that is not.
  bool check(const RunCtx& c) const {
    const auto [begin, end] = thread_range(c, blocks, 8);
    bool good = true;
    for (const IndexTerm& t : terms)
      for_runs(t.nest, begin, end, [&](const auto& at, int64_t n) {
        good &= kernels::indices_in_range(walk(c, t, at[0], n), wraps);
      });
    int64_t offsets[kOffsetChunk];
    for (int64_t b = begin; !good && b < end; b += kOffsetChunk)
      find(c, b, std::min(kOffsetChunk, end - b), offsets);
    return good;
  }

  // Blocks [b0, b1) in pieces: f(offsets, position of the first, step of positions).
  template <typename F>
  void for_blocks(const RunCtx& c, int64_t b0, int64_t b1, F f) const {
    int64_t offsets[kOffsetChunk], b = b0;
    for_runs(positions, b0, b1, [&](const auto& position, int64_t n) {
      const int64_t step = positions.back().step[0];
      for (int64_t done = 0; done < n; done += kOffsetChunk) {
        const int64_t m = std::min(kOffsetChunk, n - done);
        const bool good = find(c, b, m, offsets);
        kernels::Offsets o{offsets, m, !good, 0, std::numeric_limits<int64_t>::max()};
        f(o, position[0] + done * step, step);
        b += m;
      }
    });
  }

 private:
  static kernels::IndexWalk walk(const RunCtx& c, const IndexTerm& t, int64_t at, int64_t n) {
    const std::byte* index = c.ptr<const std::byte>(t.index) + at * size_of(t.index.dtype);
    return {index, t.index.dtype, t.nest.back().step[0], n, t.extent, 0, t.step};
  }

  // Offsets of the n blocks from b in `target`, in elements, negative where an index is wrong.
  bool find(const RunCtx& c, int64_t b, int64_t n, int64_t* offsets) const {
    std::fill(offsets, offsets + n, 0);
    bool good = true;
    for (const IndexTerm& t : terms) {
      int64_t* to = offsets;
      for_runs(t.nest, b, b + n, [&](const auto& at, int64_t m) {
        good &= add_offsets(c, op, walk(c, t, at[0], m), wraps, to);
        to += m;
      });
    }
    return good;
  }
};

// A part of every block: positions [e0, e1) outside the run, and `run` elements of the run from
// `first`.
struct Inside {
  int64_t e0, e1, first, run;
};

Inside whole(const Selection& s) {
  return {0, count_of(s.block), 0, s.run};
}

// This thread's part.
Inside inside(const RunCtx& c, const Selection& s) {
  Inside part = whole(s);
  if (part.e1 >= 2 * c.threads) {
    std::tie(part.e0, part.e1) = thread_range(c, part.e1);
    return part;
  }
  const auto [begin, end] = thread_range(c, s.run, 16);
  part.first = begin;
  part.run = end - begin;
  if (part.run == 0) part.e1 = 0;
  return part;
}

// Result blocks are copied from the selected positions.
class IndexKernel final : public Kernel {
 public:
  IndexKernel(const StepDesc& d, const IndexedCall& call)
      : x_(d.inputs[d.args.operand(0)]),
        out_(d.outputs[0]),
        select_(d, x_, call, out_),
        size_(size_of(x_.dtype)) {}
  bool single_thread() const override { return out_.bytes() < kCopySmall; }
  bool may_fail() const override { return true; }

  void run(const RunCtx& c) const override {
    const std::byte* x = c.ptr<const std::byte>(x_);
    std::byte* out = c.ptr<std::byte>(out_);
    // Few large blocks are cut inside, many small ones between.
    const bool cut_inside = select_.blocks < 4 * c.threads;
    const auto [b0, b1] =
        cut_inside ? std::pair{int64_t{0}, select_.blocks} : thread_range(c, select_.blocks, 16);
    const Inside part = cut_inside ? inside(c, select_) : whole(select_);
    select_.for_blocks(c, b0, b1, [&](const auto& offsets, int64_t first, int64_t step) {
      for_each(select_.block, part.e0, part.e1, [&](const auto& at) {
        kernels::gather_runs(offsets, part.run, x + (at[1] + part.first) * size_,
                             out + (first + at[0] + part.first) * size_, step, size_);
      });
    });
  }

 private:
  TensorRef x_, out_;
  Selection select_;
  int64_t size_;
};

// Values broadcast to the indexed shape.
TensorRef broadcast_to(TensorRef t, const Dims& shape) {
  const size_t lead = shape.size() - t.shape.size();
  Dims strides(shape.size(), 0);
  for (size_t i = lead; i < shape.size(); ++i)
    if (t.shape[i - lead] != 1) strides[i] = t.strides[i - lead];
  t.shape = shape;
  t.strides = std::move(strides);
  return t;
}

TensorRef values_of(const StepDesc& d, const TensorRef& x, const IndexedCall& call) {
  std::vector<Dims> shapes;
  for (int k : call.list.operand) shapes.push_back(d.inputs[k].shape);
  return broadcast_to(d.inputs[call.values],
                      indexed_shape(x.shape, call.list, broadcast_shapes(shapes)));
}

// Blocks are written to or combined with a copy of x. What meets in one element meets in one thread
// and in the order of the index: a thread owns a part of every block or, if blocks are small, a
// range of offsets. Nothing is written if an index is wrong.
class IndexPutKernel final : public Kernel {
 public:
  IndexPutKernel(const StepDesc& d, const IndexedCall& call)
      : x_(d.inputs[d.args.operand(0)]),
        out_(d.outputs[0]),
        values_(values_of(d, x_, call)),
        select_(d, out_, call, values_),
        copy_(collapse(shared_loops<2>({&out_, &x_}))),
        size_(size_of(x_.dtype)),
        how_(call.how) {
    for (const IndexTerm& t : select_.terms) span_ += (t.extent - 1) * t.step;
    invariant(how_ == Combine::kSet || kernels::has_arithmetic(x_.dtype), "{} cannot combine {}",
              op_text(d.op), name_of(x_.dtype));
  }
  bool single_thread() const override { return out_.bytes() + values_.bytes() < kCopySmall; }
  bool may_fail() const override { return true; }
  int64_t scratch_bytes(int threads) const override { return threads; }

  void run(const RunCtx& c) const override {
    if (!in_place(c, x_, out_))
      copy_share(c, copy_, c.ptr<const std::byte>(x_), c.ptr<std::byte>(out_), size_);
    auto* good = reinterpret_cast<bool*>(c.scratch);
    good[c.thread] = select_.check(c);
    c.barrier();
    if (!std::all_of(good, good + c.threads, [](bool g) { return g; })) return;
    const std::byte* values = c.ptr<const std::byte>(values_);
    std::byte* out = c.ptr<std::byte>(out_);
    const bool cut_inside = select_.per_block >= 64 * c.threads;
    const auto [own, past] = cut_inside ? std::pair{int64_t{0}, span_} : thread_range(c, span_, 16);
    const Inside part = cut_inside ? inside(c, select_) : whole(select_);
    select_.for_blocks(
        c, 0, select_.blocks,
        [&, own = own, past = past](kernels::Offsets offsets, int64_t first, int64_t step) {
          if (c.threads > 1 && !cut_inside) offsets = {offsets.at, offsets.n, true, own, past};
          put(offsets, part, values + first * size_, step, out);
        });
  }

 private:
  void put(const kernels::Offsets& offsets, const Inside& part, const std::byte* values,
           int64_t step, std::byte* out) const {
    for_each(select_.block, part.e0, part.e1, [&](const auto& at) {
      kernels::scatter_runs(offsets, part.run, out + (at[1] + part.first) * size_,
                            values + (at[0] + part.first) * size_, step, x_.dtype, how_);
    });
  }

  TensorRef x_, out_, values_;
  Selection select_;
  Nest<2> copy_;
  int64_t size_, span_ = 1;
  Combine how_;
};

}  // namespace

std::vector<TensorType> infer_indexed(const Graph& g, const Node& n) {
  const TensorType& x = g.type(n.arg_value(0));
  if (n.op == Op::EmbeddingGrad) {
    const TensorType& index = g.type(n.arg_value(1));
    check_index_dtype(n.op, index);
    user_check(x.rank() == index.rank() + 1,
               "[embedding] gradient and index do not belong together");
    user_check(x.dtype == DType::F32 || x.dtype == DType::F16 || x.dtype == DType::BF16,
               "[embedding_dense_backward] has no kernel for {}", name_of(x.dtype));
    return {{x.dtype, {n.args.integer(2), x.shape.back()}, {}}};
  }
  const bool lists = n.op == Op::Index || n.op == Op::IndexPut;
  user_check(!lists || n.args.at(1).list.size() <= x.shape.size(),
             "[{}] {} indices for a tensor of rank {}", op_text(n.op),
             lists ? n.args.at(1).list.size() : 0, x.rank());
  user_check(n.op != Op::Embedding || x.rank() == 2, "[embedding] the table needs two dims, got {}",
             x.rank());
  const IndexedCall call = indexed_call(n.op, n.args, x.rank());
  std::vector<Dims> shapes;
  for (int k : call.list.operand) {
    const TensorType& index = g.type(n.operands[k]);
    check_index_dtype(n.op, index);
    // Along one dim the index is a vector; only embedding and take give its shape to the result.
    user_check(lists || n.op == Op::Embedding || n.op == Op::Take || n.op == Op::Put ||
                   index.rank() == 1 || n.op == Op::IndexSelect,
               "[{}] the index needs one dim, got {}", op_text(n.op), index.rank());
    shapes.push_back(index.shape);
  }
  if (n.op == Op::IndexSelect) {
    user_check(shapes[0].size() <= 1, "[index_select] the index needs one dim, got {}",
               shapes[0].size());
    Dims shape = x.shape;
    if (!shape.empty()) shape[call.list.dim[0]] = product(shapes[0]);
    return {{x.dtype, shape, {}}};
  }
  const Dims shape = indexed_shape(x.shape, call.list, broadcast_shapes(shapes));
  if (call.values < 0) return {{x.dtype, shape, {}}};
  const TensorType& values = g.type(n.operands[call.values]);
  user_check(values.dtype == x.dtype, "[{}] values are {}, the tensor {}", op_text(n.op),
             name_of(values.dtype), name_of(x.dtype));
  user_check(broadcast_shapes({shape, values.shape}) == shape,
             "[{}] the values do not broadcast to the indexed shape", op_text(n.op));
  return {{x.dtype, x.shape, {}}};
}

KernelPtr make_indexed(const StepDesc& d) {
  StepDesc e = d;
  if (d.op == Op::IndexSelect) {  // a scalar, as tensor or as index, has one dim here
    for (int k : {d.args.operand(0), d.args.operand(2)}) e.inputs[k] = at_least_1d(d.inputs[k]);
    e.outputs[0] = at_least_1d(d.outputs[0]);
  }
  const auto rank = static_cast<int64_t>(e.inputs[d.args.operand(0)].shape.size());
  const IndexedCall call = indexed_call(d.op, d.args, rank);
  if (call.values < 0) return std::make_unique<IndexKernel>(e, call);
  return std::make_unique<IndexPutKernel>(e, call);
}

}  // namespace tessera
