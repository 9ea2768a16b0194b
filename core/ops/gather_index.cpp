// SPDX-License-Identifier: Apache-2.0
// Ops in which index tensors select whole blocks: embedding, index_select, index, index_put and the
// gradient of embedding. First the offset of every selected block is computed and checked, then
// blocks are moved or added.
#include <algorithm>

#include "ops/gather_impl.h"
#include "ops/registry.h"
#include "ops/run_error.h"
#include "ops/view.h"

namespace tessera {
namespace {

constexpr int64_t kInvalid = -1;

// What one index tensor contributes to the offset of a block.
struct IndexTerm {
  TensorRef index;
  Nest<1> nest;          // over the broadcast index shape, in its order
  int64_t extent, step;  // of the indexed dim of the target
};

// The blocks of `target` that the index tensors select.
struct Selection {
  Op op;
  bool wraps = false;  // negative indices count from the end
  std::vector<IndexTerm> terms;
  int64_t blocks = 0;
  Nest<1> places;  // of the blocks in the other tensor (result or values)
  Nest<2> block;   // the dims that no index touches: {other, target}

  // `other` has the indexed shape, possibly broadcast by strides of zero.
  Selection(const StepDesc& d, const TensorRef& target, const IndexList& list,
            const TensorRef& other)
      : op(d.op) {
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
      places.push_back({common[i], {other.strides[at + i]}});
    places = collapse(places, true);
    std::vector<bool> indexed(target.shape.size(), false);
    for (int64_t k : list.dim) indexed[k] = true;
    size_t o = 0;
    for (size_t i = 0; i < target.shape.size(); ++i) {
      if (indexed[i]) continue;
      if (o == at) o += common.size();
      block.push_back({target.shape[i], {other.strides[o++], target.strides[i]}});
    }
    block = collapse(block);
  }

  int64_t scratch_bytes() const { return blocks * 8; }

  // Offsets of the blocks in `target`, in elements, kInvalid where an index is out of range. Ends
  // with a barrier.
  int64_t* find(const RunCtx& c) const {
    auto* offsets = reinterpret_cast<int64_t*>(c.scratch);
    const auto [begin, end] = thread_range(c, blocks, 8);
    std::fill(offsets + begin, offsets + end, 0);
    for (const IndexTerm& t : terms) {
      const std::byte* p = c.ptr<const std::byte>(t.index);
      int64_t b = begin;
      for_each(t.nest, begin, end, [&](const auto& at) {
        int64_t i = kernels::read_index(p, at[0], t.index.dtype);
        const int64_t asked = i;
        if (wraps && i < 0) i += t.extent;
        if (i < 0 || i >= t.extent) [[unlikely]] {
          fail_run(c, "[{}] index {} is out of bounds for a dim of size {}", op_text(op), asked,
                   t.extent);
          offsets[b] = kInvalid;
        }
        if (offsets[b] != kInvalid) offsets[b] += i * t.step;
        ++b;
      });
    }
    c.barrier();
    return offsets;
  }
};

// Result blocks are copied from the selected places.
class IndexKernel final : public Kernel {
 public:
  IndexKernel(const StepDesc& d, const IndexList& list)
      : x_(d.inputs[d.args.operand(0)]),
        out_(d.outputs[0]),
        select_(d, x_, list, out_),
        size_(size_of(x_.dtype)) {
    select_.wraps = d.op == Op::Index;
    per_block_ = count_of(select_.block);
  }
  bool single_thread() const override { return out_.bytes() < kCopySmall; }
  bool may_fail() const override { return true; }
  int64_t scratch_bytes(int) const override { return select_.scratch_bytes(); }

  void run(const RunCtx& c) const override {
    const int64_t* offsets = select_.find(c);
    const std::byte* x = c.ptr<const std::byte>(x_);
    std::byte* out = c.ptr<std::byte>(out_);
    const auto step = select_.block.back().step;
    // Few large blocks are cut inside, many small ones between.
    const bool cut_inside = select_.blocks < 4 * c.threads;
    const auto [b0, b1] =
        cut_inside ? std::pair{int64_t{0}, select_.blocks} : thread_range(c, select_.blocks);
    const auto [e0, e1] =
        cut_inside ? thread_range(c, per_block_, 64) : std::pair{int64_t{0}, per_block_};
    int64_t b = b0;
    for_each(select_.places, b0, b1, [&, e0 = e0, e1 = e1](const auto& place) {
      const int64_t from = offsets[b++];
      if (from == kInvalid) return;
      for_runs(select_.block, e0, e1, [&](const auto& at, int64_t n) {
        kernels::copy_strided(x + (from + at[1]) * size_, step[1], out + (place[0] + at[0]) * size_,
                              step[0], n, size_);
      });
    });
  }

 private:
  TensorRef x_, out_;
  Selection select_;
  int64_t size_, per_block_ = 1;
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

TensorRef index_put_values(const StepDesc& d, const TensorRef& x, const IndexList& list) {
  std::vector<Dims> shapes;
  for (int k : list.operand) shapes.push_back(d.inputs[k].shape);
  return broadcast_to(d.inputs[d.args.operand(2)],
                      indexed_shape(x.shape, list, broadcast_shapes(shapes)));
}

// Blocks are written or added to a copy of x. A block belongs to the thread that owns its offset:
// results do not depend on the number of threads, and of blocks written twice the last one stays.
class IndexPutKernel final : public Kernel {
 public:
  IndexPutKernel(const StepDesc& d, const IndexList& list)
      : x_(d.inputs[d.args.operand(0)]),
        out_(d.outputs[0]),
        values_(index_put_values(d, x_, list)),
        select_(d, out_, list, values_),
        copy_(collapse(shared_loops<2>({&out_, &x_}))),
        size_(size_of(x_.dtype)),
        accumulate_(d.args.boolean_or(3, false)) {
    select_.wraps = true;
    for (const IndexTerm& t : select_.terms) span_ += (t.extent - 1) * t.step;
    invariant(!accumulate_ || kernels::has_add(x_.dtype), "index_put cannot add {}",
              name_of(x_.dtype));
  }
  bool single_thread() const override { return out_.bytes() + values_.bytes() < kCopySmall; }
  bool may_fail() const override { return true; }
  int64_t scratch_bytes(int) const override { return select_.scratch_bytes(); }

  void run(const RunCtx& c) const override {
    copy_share(c, copy_, c.ptr<const std::byte>(x_), c.ptr<std::byte>(out_), size_);
    const int64_t* offsets = select_.find(c);
    const std::byte* values = c.ptr<const std::byte>(values_);
    std::byte* out = c.ptr<std::byte>(out_);
    const auto [own, past] = thread_range(c, span_);
    const auto step = select_.block.back().step;
    int64_t b = 0;
    for_each(select_.places, 0, select_.blocks, [&, own = own, past = past](const auto& place) {
      const int64_t to = offsets[b++];
      if (to < own || to >= past) return;
      for_runs(select_.block, 0, count_of(select_.block), [&](const auto& at, int64_t n) {
        const std::byte* src = values + (place[0] + at[0]) * size_;
        std::byte* dst = out + (to + at[1]) * size_;
        if (accumulate_)
          kernels::add_strided(src, step[0], dst, step[1], n, x_.dtype);
        else
          kernels::copy_strided(src, step[0], dst, step[1], n, size_);
      });
    });
  }

 private:
  TensorRef x_, out_, values_;
  Selection select_;
  Nest<2> copy_;
  int64_t size_, span_ = 1;
  bool accumulate_;
};

// A thread owns a range of table rows: it zeroes them and adds the gradient rows that fall into it,
// in order.
class EmbeddingGradKernel final : public Kernel {
 public:
  explicit EmbeddingGradKernel(const StepDesc& d)
      : g_(d.inputs[d.args.operand(0)]),
        index_(d.inputs[d.args.operand(1)]),
        out_(d.outputs[0]),
        rows_(d.args.integer(2)),
        padding_(d.args.integer_or(3, -1)),
        by_frequency_(d.args.boolean_or(4, false)),
        width_(out_.shape[1]) {
    invariant(out_.contiguous() && out_.dtype == DType::F32,
              "embedding gradient must be row-major f32");
    for (size_t i = 0; i < index_.shape.size(); ++i)
      nest_.push_back({index_.shape[i], {index_.strides[i], g_.strides[i]}});
    nest_ = collapse(nest_, true);
  }
  bool single_thread() const override { return out_.bytes() + g_.bytes() < kCopySmall; }
  bool may_fail() const override { return true; }
  int64_t scratch_bytes(int) const override { return by_frequency_ ? rows_ * 4 : 0; }

  void run(const RunCtx& c) const override {
    const auto [own, past] = thread_range(c, rows_);
    float* out = c.ptr<float>(out_);
    if (own >= past) return;
    kernels::zero_bytes(reinterpret_cast<std::byte*>(out + own * width_),
                        (past - own) * width_ * 4);
    auto* counts = reinterpret_cast<int32_t*>(c.scratch);
    const std::byte* index = c.ptr<const std::byte>(index_);
    auto each_row = [&, own = own, past = past](auto f) {
      for_each(nest_, 0, count_of(nest_), [&](const auto& at) {
        const int64_t i = kernels::read_index(index, at[0], index_.dtype);
        if (i >= own && i < past && i != padding_) f(i, at[1]);
        if ((i < 0 || i >= rows_) && i != padding_) [[unlikely]]
          fail_run(c, "[embedding_dense_backward] index {} is out of bounds for a table of {} rows",
                   i, rows_);
      });
    };
    if (by_frequency_) {
      std::fill(counts + own, counts + past, 0);
      each_row([&](int64_t i, int64_t) { ++counts[i]; });
    }
    const float* g = c.ptr<const float>(g_);
    const int64_t g_step = g_.strides.back();
    each_row([&](int64_t i, int64_t from) {
      float* row = out + i * width_;
      if (by_frequency_ && g_step == 1) {
        kernels::add_scaled(g + from, row, width_, 1.0f / static_cast<float>(counts[i]));
      } else if (by_frequency_) {
        for (int64_t k = 0; k < width_; ++k)
          row[k] += g[from + k * g_step] * (1.0f / static_cast<float>(counts[i]));
      } else {
        kernels::add_strided(reinterpret_cast<const std::byte*>(g + from), g_step,
                             reinterpret_cast<std::byte*>(row), 1, width_, DType::F32);
      }
    });
  }

 private:
  TensorRef g_, index_, out_;
  int64_t rows_, padding_;
  bool by_frequency_;
  int64_t width_;
  Nest<2> nest_;
};

}  // namespace

KernelPtr make_indexed(const StepDesc& d) {
  switch (d.op) {
    case Op::EmbeddingGrad:
      return std::make_unique<EmbeddingGradKernel>(d);
    case Op::Embedding:
      return std::make_unique<IndexKernel>(d, IndexList{{d.args.operand(1)}, {0}});
    case Op::IndexSelect: {
      const TensorRef& x = d.inputs[d.args.operand(0)];
      const int64_t dim = wrap_dim(d.args.integer(1), static_cast<int64_t>(x.shape.size()));
      StepDesc e = d;
      // A scalar, as tensor or as index, has one dim here.
      for (TensorRef* t :
           {&e.inputs[d.args.operand(0)], &e.inputs[d.args.operand(2)], &e.outputs[0]})
        if (t->shape.empty()) t->shape = {1}, t->strides = {1};
      return std::make_unique<IndexKernel>(e, IndexList{{d.args.operand(2)}, {dim}});
    }
    case Op::Index:
      return std::make_unique<IndexKernel>(d, index_list(d.args.at(1)));
    default:
      return std::make_unique<IndexPutKernel>(d, index_list(d.args.at(1)));
  }
}

}  // namespace tessera
