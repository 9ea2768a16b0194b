// SPDX-License-Identifier: Apache-2.0
// Sums of table rows and their gradients: the gradient of embedding, and bags of rows.
//   embedding_bag(table, indices, offsets, mode, weights|none, padding)
//       -> result, bag of each index, rows in each bag, row of each maximum (mode max)
//   embedding_bag_grad(grad, indices, offsets, rows, mode, weights|none, by_frequency, padding,
//                      maxima|none) -> gradient of the table
//   embedding_bag_weight_grad(grad, table, indices, offsets, padding)
// Bag b is indices[offsets[b]] .. indices[offsets[b + 1]], the last one to the end unless there is
// an offset after it. Modes: 0 sum, 1 mean, 2 max.
#include <algorithm>

#include "ops/gather_impl.h"
#include "ops/registry.h"
#include "ops/run_error.h"

namespace tessera {
namespace {

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
        kernels::combine_strided(reinterpret_cast<const std::byte*>(g + from), g_step,
                                 reinterpret_cast<std::byte*>(row), 1, width_, DType::F32,
                                 kernels::Combine::kSum);
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

// Which indices belong to which bag.
struct Bags {
  TensorRef indices, offsets;
  int64_t bags = 0, rows = 0, padding = -1;
  Op op = Op::EmbeddingBag;

  // [begin, end) of a bag; offsets that make no sense are reported and give an empty bag.
  std::pair<int64_t, int64_t> range(const RunCtx& c, int64_t b) const {
    const std::byte* p = c.ptr<const std::byte>(offsets);
    auto at = [&](int64_t i) {
      return i < offsets.shape[0] ? kernels::read_index(p, i * offsets.strides[0], offsets.dtype)
                                  : indices.shape[0];
    };
    const int64_t begin = at(b), end = at(b + 1);
    if (begin < 0 || end < begin || end > indices.shape[0]) [[unlikely]] {
      fail_run(c, "[{}] offsets {} and {} do not cut {} indices", op_text(op), begin, end,
               indices.shape[0]);
      return {0, 0};
    }
    return {begin, end};
  }

  // f(position in the index list, row) for every row of [begin, end) that is not padding.
  template <typename F>
  void for_rows(const RunCtx& c, std::pair<int64_t, int64_t> range, F f) const {
    const std::byte* p = c.ptr<const std::byte>(indices);
    for (int64_t k = range.first; k < range.second; ++k) {
      const int64_t i = kernels::read_index(p, k * indices.strides[0], indices.dtype);
      if (i < 0 || i >= rows) [[unlikely]]
        fail_run(c, "[{}] index {} is out of bounds for a table of {} rows", op_text(op), i, rows);
      else if (i != padding)
        f(k, i);
    }
  }
};

constexpr int64_t kMean = 1, kMax = 2;

float weight_at(const RunCtx& c, const TensorRef& weights, int64_t k) {
  return weights.shape.empty() ? 1.0f : c.ptr<const float>(weights)[k * weights.strides[0]];
}

class BagKernel final : public Kernel {
 public:
  explicit BagKernel(const StepDesc& d)
      : table_(d.inputs[d.args.operand(0)]), out_(d.outputs), mode_(d.args.integer(3)) {
    bags_ = {d.inputs[d.args.operand(1)],
             d.inputs[d.args.operand(2)],
             out_[0].shape[0],
             table_.shape[0],
             d.args.integer(5),
             d.op};
    if (d.args.has(4)) weights_ = d.inputs[d.args.operand(4)];
  }
  bool single_thread() const override { return bags_.indices.count() * width() < 8192; }
  bool may_fail() const override { return true; }
  int64_t scratch_bytes(int threads) const override {
    return threads * ((width() + 15) / 16 * 16) * 4;
  }

  void run(const RunCtx& c) const override {
    const auto [begin, end] = thread_range(c, bags_.bags);
    for (int64_t b = begin; b < end; ++b) {
      const auto range = bags_.range(c, b);
      float* out = c.ptr<float>(out_[0]) + b * width();
      const int64_t count = mode_ == kMax ? take_max(c, range, out, b) : add(c, range, out);
      if (mode_ == kMean && count > 1)
        for (int64_t j = 0; j < width(); ++j) out[j] /= static_cast<float>(count);
      put(c, 2, b, count);
      for (int64_t k = range.first; k < range.second; ++k) put(c, 1, k, b);
    }
  }

 private:
  static constexpr int64_t kAtOnce = 64;
  int64_t width() const { return table_.shape[1]; }
  float* spare(const RunCtx& c) const {
    return reinterpret_cast<float*>(c.scratch) + c.thread * ((width() + 15) / 16 * 16);
  }
  // Asks for the row of a later index: rows lie anywhere in the table.
  void fetch(const RunCtx& c, int64_t k) const {
    if (k >= bags_.indices.shape[0]) return;
    const int64_t i = kernels::read_index(c.ptr<const std::byte>(bags_.indices),
                                          k * bags_.indices.strides[0], bags_.indices.dtype);
    if (i < 0 || i >= bags_.rows) return;
    const float* from = row(c, i);
    for (int64_t j = 0; j < width() && j < 128; j += 16) __builtin_prefetch(from + j);
  }
  const float* row(const RunCtx& c, int64_t i) const {
    return c.ptr<const float>(table_) + i * table_.strides[0];
  }

  int64_t add(const RunCtx& c, std::pair<int64_t, int64_t> range, float* out) const {
    int64_t count = 0;
    const int64_t step = table_.strides[1];
    const bool weighted = !weights_.shape.empty();
    // Rows are summed many at a time: the sums stay in registers.
    int64_t rows[kAtOnce];
    float weights[kAtOnce];
    float* to = out;
    int64_t waiting = 0;
    auto flush = [&] {
      kernels::sum_rows(c.ptr<const float>(table_), table_.strides[0], rows,
                        weighted ? weights : nullptr, waiting, to, width());
      if (to != out) kernels::add_scaled(to, out, width(), 1.0f);
      to = spare(c);
      waiting = 0;
    };
    if (step != 1) std::fill(out, out + width(), 0.0f);
    bags_.for_rows(c, range, [&](int64_t k, int64_t i) {
      ++count;
      const float scale = weight_at(c, weights_, k);
      if (step != 1) {
        const float* from = row(c, i);
        for (int64_t j = 0; j < width(); ++j) out[j] += from[j * step] * scale;
        return;
      }
      fetch(c, k + 16);
      rows[waiting] = i;
      weights[waiting++] = scale;
      if (waiting == kAtOnce) flush();
    });
    if (step == 1 && (waiting > 0 || to == out)) flush();
    return count;
  }

  int64_t take_max(const RunCtx& c, std::pair<int64_t, int64_t> range, float* out,
                   int64_t b) const {
    int64_t count = 0;
    const int64_t step = table_.strides[1], first = b * width();
    bags_.for_rows(c, range, [&](int64_t, int64_t i) {
      const float* from = row(c, i);
      const bool wide = out_[3].dtype == DType::I64;
      auto* where = c.ptr<int64_t>(out_[3]) + first;
      for (int64_t j = 0; j < width(); ++j) {
        const float x = from[j * step];
        if (count > 0 && !(x > out[j])) continue;
        out[j] = x;
        if (wide)
          where[j] = i;
        else
          put(c, 3, first + j, i);
      }
      ++count;
    });
    for (int64_t j = 0; count == 0 && j < width(); ++j) {
      out[j] = 0.0f;
      put(c, 3, first + j, -1);
    }
    return count;
  }

  // Element i of an integer result, if it is wanted.
  void put(const RunCtx& c, size_t result, int64_t i, int64_t value) const {
    const TensorRef& t = out_[result];
    if (i >= t.count()) return;
    if (t.dtype == DType::I64)
      c.ptr<int64_t>(t)[i] = value;
    else
      c.ptr<int32_t>(t)[i] = static_cast<int32_t>(value);
  }

  TensorRef table_, weights_;
  std::vector<TensorRef> out_;
  Bags bags_;
  int64_t mode_;
};

// A thread owns a range of table rows, as in the gradient of embedding.
class BagGradKernel final : public Kernel {
 public:
  explicit BagGradKernel(const StepDesc& d)
      : grad_(d.inputs[d.args.operand(0)]),
        out_(d.outputs[0]),
        mode_(d.args.integer(4)),
        by_frequency_(d.args.boolean(6)) {
    bags_ = {d.inputs[d.args.operand(1)],
             d.inputs[d.args.operand(2)],
             grad_.shape[0],
             out_.shape[0],
             d.args.integer(7),
             d.op};
    if (d.args.has(5)) weights_ = d.inputs[d.args.operand(5)];
    if (d.args.has(8)) maxima_ = d.inputs[d.args.operand(8)];
  }
  bool single_thread() const override { return out_.bytes() + grad_.bytes() < kCopySmall; }
  bool may_fail() const override { return true; }
  int64_t scratch_bytes(int) const override { return by_frequency_ ? bags_.rows * 4 : 0; }

  void run(const RunCtx& c) const override {
    const auto [own, past] = thread_range(c, bags_.rows);
    if (own >= past) return;
    const int64_t width = out_.shape[1];
    kernels::zero_bytes(reinterpret_cast<std::byte*>(c.ptr<float>(out_) + own * width),
                        (past - own) * width * 4);
    if (mode_ == kMax) return add_maxima(c, own, past);
    auto* counts = reinterpret_cast<int32_t*>(c.scratch);
    const std::pair all{int64_t{0}, bags_.indices.shape[0]};
    if (by_frequency_) {
      std::fill(counts + own, counts + past, 0);
      bags_.for_rows(c, all, [&, own = own, past = past](int64_t, int64_t i) {
        if (i >= own && i < past) ++counts[i];
      });
    }
    for (int64_t b = 0; b < bags_.bags; ++b) {
      const auto range = bags_.range(c, b);
      int64_t in_bag = 0;
      if (mode_ == kMean) bags_.for_rows(c, range, [&](int64_t, int64_t) { ++in_bag; });
      bags_.for_rows(c, range, [&, own = own, past = past](int64_t k, int64_t i) {
        if (i < own || i >= past) return;
        float scale = weight_at(c, weights_, k);
        if (by_frequency_) scale /= static_cast<float>(counts[i]);
        if (mode_ == kMean) scale /= static_cast<float>(in_bag);
        add_row(c, b, i, scale);
      });
    }
  }

 private:
  void add_row(const RunCtx& c, int64_t b, int64_t i, float scale) const {
    const float* g = c.ptr<const float>(grad_) + b * grad_.strides[0];
    float* to = c.ptr<float>(out_) + i * out_.shape[1];
    if (grad_.strides[1] == 1)
      kernels::add_scaled(g, to, out_.shape[1], scale);
    else
      for (int64_t j = 0; j < out_.shape[1]; ++j) to[j] += g[j * grad_.strides[1]] * scale;
  }

  void add_maxima(const RunCtx& c, int64_t own, int64_t past) const {
    const std::byte* m = c.ptr<const std::byte>(maxima_);
    const auto* g = c.ptr<const float>(grad_);
    auto* out = c.ptr<float>(out_);
    for (int64_t b = 0; b < bags_.bags; ++b)
      for (int64_t j = 0; j < out_.shape[1]; ++j) {
        const int64_t i =
            kernels::read_index(m, b * maxima_.strides[0] + j * maxima_.strides[1], maxima_.dtype);
        if (i >= own && i < past)
          out[i * out_.shape[1] + j] += g[b * grad_.strides[0] + j * grad_.strides[1]];
      }
  }

  TensorRef grad_, weights_, maxima_, out_;
  Bags bags_;
  int64_t mode_;
  bool by_frequency_;
};

// The gradient of a weight is the product of its row with the gradient of its bag.
KernelPtr make_weight_grad(const StepDesc& d) {
  const TensorRef &grad = d.inputs[d.args.operand(0)], &table = d.inputs[d.args.operand(1)],
                  &out = d.outputs[0];
  const Bags bags{d.inputs[d.args.operand(2)],
                  d.inputs[d.args.operand(3)],
                  grad.shape[0],
                  table.shape[0],
                  d.args.integer(4),
                  d.op};
  return make_kernel(
      [=](const RunCtx& c) {
        const auto [begin, end] = thread_range(c, bags.bags);
        for (int64_t b = begin; b < end; ++b) {
          const auto range = bags.range(c, b);
          auto* to = c.ptr<float>(out);
          std::fill(to + range.first, to + range.second, 0.0f);
          const float* g = c.ptr<const float>(grad) + b * grad.strides[0];
          bags.for_rows(c, range, [&](int64_t k, int64_t i) {
            const float* row = c.ptr<const float>(table) + i * table.strides[0];
            float sum = 0;
            for (int64_t j = 0; j < grad.shape[1]; ++j)
              sum += g[j * grad.strides[1]] * row[j * table.strides[1]];
            to[k] = sum;
          });
        }
      },
      0, bags.indices.count() * grad.shape[1] < 8192);
}

}  // namespace

std::vector<TensorType> infer_bag(const Graph& g, const Node& n) {
  auto type = [&](size_t arg) -> const TensorType& { return g.type(n.arg_value(arg)); };
  const size_t first = n.op == Op::EmbeddingBagWeightGrad ? 2 : 1;
  const TensorType &indices = type(first), &offsets = type(first + 1);
  check_index_dtype(n.op, indices);
  check_index_dtype(n.op, offsets);
  user_check(indices.rank() == 1 && offsets.rank() == 1 && type(0).rank() == 2,
             "[{}] needs a table of two dims, a vector of indices and a vector of offsets",
             op_text(n.op));
  const DType dtype = type(0).dtype;
  if (n.op == Op::EmbeddingBagWeightGrad) return {{dtype, indices.shape, {}}};
  if (n.op == Op::EmbeddingBagGrad) return {{dtype, {n.args.integer(3), type(0).shape[1]}, {}}};
  // With an offset after the last bag there is one bag less than offsets.
  const int64_t bags = offsets.shape[0] - (n.args.boolean_or(6, false) ? 1 : 0);
  const int64_t width = type(0).shape[1];
  const bool max = n.args.integer(3) == kMax;
  return {{dtype, {bags, width}, {}},
          {indices.dtype, indices.shape, {}},
          {indices.dtype, {bags}, {}},
          {indices.dtype, {max ? bags : 0, width}, {}}};
}

KernelPtr make_bag(const StepDesc& d) {
  if (d.op == Op::EmbeddingBag) return std::make_unique<BagKernel>(d);
  if (d.op == Op::EmbeddingBagGrad) return std::make_unique<BagGradKernel>(d);
  return make_weight_grad(d);
}

KernelPtr make_embedding_grad(const StepDesc& d) {
  return std::make_unique<EmbeddingGradKernel>(d);
}

}  // namespace tessera
