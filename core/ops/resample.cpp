// SPDX-License-Identifier: Apache-2.0
// resample(x, mode, size, align_corners, numbers): the last size.size() dims mapped to `size` by
// upsampling or padding, and resample_backward(gy, ...) with the size of x. See kernels/resample.h.
#include "kernels/resample.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "ops/convolution.h"
#include "ops/registry.h"
#include "ops/widened.h"

namespace tessera {
namespace {

using kernels::AxisMap;

// Elements written below which a second thread costs more than it saves.
constexpr int64_t kSmall = 8 * 1024;

// One map per spatial dim, outermost first, from the operand's to the result's extents.
std::vector<AxisMap> axis_maps(Op op, const Args& args, const Dims& from, const Dims& to) {
  const auto mode = kernels::map_mode(args.text(1));
  const size_t spatial = args.ints(2).size();
  const auto& numbers = args.at(4).list;
  user_check(numbers.size() == spatial && from.size() == to.size() && from.size() >= spatial,
             "[resample] {} numbers for {} spatial dims", numbers.size(), spatial);
  const bool back = op == Op::ResampleGrad;
  std::vector<AxisMap> maps;
  for (size_t i = 0; i < spatial; ++i) {
    const int64_t a = from[from.size() - spatial + i], b = to[to.size() - spatial + i];
    AxisMap m = kernels::axis_map(mode, back ? b : a, back ? a : b, args.boolean(3),
                                  numbers[i].number(), back);
    maps.push_back(back ? kernels::transposed(m) : std::move(m));
  }
  return maps;
}

// By the definition, for any strides: every output looks at the product of its taps.
template <typename T>
class ResampleReference final : public Kernel {
 public:
  ResampleReference(const StepDesc& d, std::vector<AxisMap> maps)
      : x_(d.inputs[d.args.operand(0)]), y_(d.outputs[0]), maps_(std::move(maps)) {}
  void run(const RunCtx& c) const override {
    const T* x = c.ptr<T>(x_);
    T* y = c.ptr<T>(y_);
    const size_t lead = y_.shape.size() - maps_.size();
    const auto [begin, end] = thread_range(c, y_.count());
    for (int64_t k = begin; k < end; ++k) {
      int64_t rest = k, to = 0, from = 0;
      int64_t at[16] = {};
      for (size_t i = y_.shape.size(); i-- > 0;) {
        at[i] = rest % y_.shape[i];
        rest /= y_.shape[i];
        to += at[i] * y_.strides[i];
        if (i < lead) from += at[i] * x_.strides[i];
      }
      y[to] = sum(x + from, at + lead, lead, 0);
    }
  }

 private:
  T sum(const T* x, const int64_t* at, size_t lead, size_t axis) const {
    if (axis == maps_.size()) return *x;
    const AxisMap& m = maps_[axis];
    T total = 0;
    for (int32_t t = m.begin[at[axis]]; t < m.begin[at[axis] + 1]; ++t)
      total = static_cast<T>(total +
                             static_cast<T>(m.weight[t]) *
                                 sum(x + m.index[t] * x_.strides[lead + axis], at, lead, axis + 1));
    return total;
  }
  TensorRef x_, y_;
  std::vector<AxisMap> maps_;
};

KernelPtr make_reference(const StepDesc& d) {
  return std::make_unique<ResampleReference<float>>(
      d, axis_maps(d.op, d.args, d.inputs[d.args.operand(0)].shape, d.outputs[0].shape));
}

class ResampleKernel final : public Kernel {
 public:
  ResampleKernel(const StepDesc& d, std::vector<AxisMap> maps, int inner_dim)
      : x_(d.inputs[d.args.operand(0)]), y_(d.outputs[0]), row_(std::move(maps.back())) {
    maps.pop_back();
    bytes_ = size_of(y_.dtype);
    const size_t lead = y_.shape.size() - maps.size() - 1;
    planes_ = 1;
    for (size_t i = 0; i < lead; ++i) planes_ *= y_.shape[i];
    if (inner_dim >= 0) {
      inner_ = y_.shape[inner_dim];
      planes_ /= inner_;
    }
    plan_ = kernels::row_plan(row_);
    // The rows of the operand that each row of the result adds up: all outer axes as one.
    AxisMap all;
    all.in = all.out = 1;
    all.add(0, 1.0f);
    all.next();
    for (const AxisMap& m : maps) {
      AxisMap next;
      next.in = all.in * m.in, next.out = all.out * m.out;
      for (int64_t r = 0; r < all.out; ++r)
        for (int64_t o = 0; o < m.out; ++o, next.next())
          for (int32_t k = all.begin[r]; k < all.begin[r + 1]; ++k)
            for (int32_t t = m.begin[o]; t < m.begin[o + 1]; ++t) {
              next.index.push_back(static_cast<int32_t>(all.index[k] * m.in + m.index[t]));
              next.weight.push_back(all.weight[k] * m.weight[t]);
            }
      all = std::move(next);
    }
    for (int32_t i : all.index) offsets_.push_back(i * row_.in * inner_);
    for (int64_t r = 0; r < all.out; ++r) {
      const int32_t first = all.begin[r], count = all.begin[r + 1] - first;
      Source s{first, count, false, 0};
      if (r > 0 && count == sources_.back().count)
        s.repeats = std::equal(&all.index[first], &all.index[first] + count,
                               &all.index[sources_.back().first]) &&
                    std::equal(&all.weight[first], &all.weight[first] + count,
                               &all.weight[sources_.back().first]);
      s.direct = count == 1 && all.weight[first] == 1.0f && y_.dtype == DType::F32;
      sources_.push_back(s);
    }
    for (size_t r = sources_.size(); r-- > 1;)
      if (sources_[r - 1].direct && sources_[r].direct && !sources_[r].repeats)
        sources_[r - 1].direct += sources_[r].direct;
    weights_ = std::move(all.weight);
    x_plane_ = all.in * row_.in * inner_;
    moves_ = !is_float(y_.dtype);
  }

  bool single_thread() const override { return y_.count() < kSmall; }
  int64_t scratch_bytes(int threads) const override { return threads * row_bytes(); }
  void run(const RunCtx& c) const override {
    const kernels::ResampleKernels& k = kernels::resample_kernels();
    const auto rows = static_cast<int64_t>(sources_.size());
    const auto [begin, end] = thread_range(c, planes_ * rows);
    auto* sum = reinterpret_cast<float*>(c.scratch + c.thread * row_bytes());
    const int64_t out_bytes = row_.out * inner_ * bytes_;
    std::byte* to = c.ptr<std::byte>(y_) + begin * out_bytes;
    const std::byte* plane = c.ptr<std::byte>(x_) + begin / rows * x_plane_ * bytes_;
    int64_t r = begin % rows;
    for (int64_t unit = begin, n = 1; unit < end; unit += n, r += n, to += n * out_bytes) {
      if (r == rows) r = 0, plane += x_plane_ * bytes_;
      n = 1;
      const Source& s = sources_[r];
      const int64_t* offsets = offsets_.data() + s.first;
      if (s.repeats && unit > begin) {
        std::memcpy(to, to - out_bytes, out_bytes);
        continue;
      }
      if (moves_) {
        move_row(plane + offsets[0] * bytes_, to);
        continue;
      }
      const float* row = sum;
      if (s.direct > 0)
        row = reinterpret_cast<const float*>(plane);
      else
        k.add_rows(y_.dtype, plane, offsets, weights_.data() + s.first, s.count, row_.in * inner_,
                   sum);
      const int64_t start = 0, *from = s.direct > 0 ? offsets : &start;
      if (inner_ == 1) {
        n = std::clamp<int64_t>(s.direct, 1, end - unit);
        k.spread(y_.dtype, plan_, row, from, n, to);
      } else {
        k.spread_inner(y_.dtype, row_, row + from[0], inner_, to);
      }
    }
  }

 private:
  int64_t row_bytes() const { return whole_lines(row_.in * inner_ * 4); }

  template <typename T>
  void move_elements(const std::byte* from, std::byte* to) const {
    const T* x = reinterpret_cast<const T*>(from);
    T* y = reinterpret_cast<T*>(to);
    for (int64_t o = 0; o < row_.out; ++o) y[o] = x[row_.index[o]];
  }
  void move_row(const std::byte* from, std::byte* to) const {
    const int64_t n = inner_ * bytes_;
    switch (n) {
      case 1:
        return move_elements<uint8_t>(from, to);
      case 2:
        return move_elements<uint16_t>(from, to);
      case 4:
        return move_elements<uint32_t>(from, to);
      case 8:
        return move_elements<uint64_t>(from, to);
      default:
        for (int64_t o = 0; o < row_.out; ++o) std::memcpy(to + o * n, from + row_.index[o] * n, n);
    }
  }

  TensorRef x_, y_;
  AxisMap row_;
  kernels::RowPlan plan_;
  // Taps [first, first + count) of a result row. It may repeat the row before; `direct` rows from
  // here on are single rows of x.
  struct Source {
    int32_t first, count;
    bool repeats;
    int32_t direct;
  };
  std::vector<Source> sources_;
  std::vector<int64_t> offsets_;  // elements from the plane's start
  std::vector<float> weights_;
  int64_t planes_ = 1, inner_ = 1, x_plane_ = 0, bytes_ = 4;
  bool moves_ = false;  // elements are moved, not added
};

}  // namespace

std::vector<TensorType> infer_resample(const Graph& g, const Node& n) {
  const TensorType& x = g.type(n.arg_value(0));
  const Dims size = n.args.ints(2);
  user_check(!size.empty() && size.size() <= x.shape.size() && size.size() <= 3,
             "[resample] {} spatial dims of a tensor with {}", size.size(), x.rank());
  TensorType y{x.dtype, x.shape, {}};
  std::copy(size.begin(), size.end(), y.shape.end() - static_cast<int64_t>(size.size()));
  for (int64_t s : size) user_check(s >= 0, "[resample] negative size");
  kernels::map_mode(n.args.text(1));
  user_check(n.args.at(4).kind == Arg::Kind::kList && n.args.at(4).list.size() == size.size(),
             "[resample] {} numbers for {} spatial dims", n.args.at(4).list.size(), size.size());
  // Paddings, or scales whose reciprocals are positions in an image.
  for (const Arg& a : n.args.at(4).list) {
    const double v = std::fabs(a.number());
    user_check(v == 0 || (v > 1e-9 && v < 1e9), "[resample] {} is neither scale nor padding",
               a.number());
  }
  return {y};
}

Work work_resample(const Graph& g, const Node& n) {
  const TensorType& x = g.type(n.arg_value(0));
  const TensorType& y = g.type(n.results[0]);
  Work work{.kind = WorkKind::kCopy, .bytes = x.bytes() + y.bytes()};
  if (x.count() == 0 || y.count() == 0) return work;
  int64_t flops = y.count();
  bool adds = false;
  for (const AxisMap& m : axis_maps(n.op, n.args, x.shape, y.shape)) {
    adds |= !m.picks();
    const auto taps = static_cast<int64_t>(m.index.size());
    flops = std::max(flops, y.count() / m.out * taps);
  }
  if (adds) work.kind = WorkKind::kReduce, work.flops = 2 * flops;
  return work;
}

KernelPtr make_resample(const StepDesc& d) {
  const TensorRef &x = d.inputs[d.args.operand(0)], &y = d.outputs[0];
  if (y.count() == 0) return make_kernel([](const RunCtx&) {}, 0, true);
  std::vector<AxisMap> maps = axis_maps(d.op, d.args, x.shape, y.shape);
  bool picks = true;
  for (const AxisMap& m : maps) picks = picks && m.picks();
  const bool sums = y.dtype == DType::F32 || y.dtype == DType::F16 || y.dtype == DType::BF16;
  user_check(picks || sums, "[resample] no kernel for {} tensors ({})", name_of(y.dtype), d.where);
  for (int inner : {-1, 1, 0})
    if ((inner < 0 || x.shape.size() == maps.size() + 2) && is_dense_with_inner(x, inner) &&
        is_dense_with_inner(y, inner))
      return std::make_unique<ResampleKernel>(d, std::move(maps), inner);
  if (sums) return make_widened(d, make_reference);
  switch (size_of(y.dtype)) {  // elements are only moved
    case 1:
      return std::make_unique<ResampleReference<uint8_t>>(d, std::move(maps));
    case 2:
      return std::make_unique<ResampleReference<uint16_t>>(d, std::move(maps));
    case 4:
      return std::make_unique<ResampleReference<uint32_t>>(d, std::move(maps));
    default:
      return std::make_unique<ResampleReference<uint64_t>>(d, std::move(maps));
  }
}

bool accepts_resample(Op, int, const TensorRef& physical) {
  if (physical.contiguous()) return true;
  return physical.shape.size() >= 4 &&
         (is_dense_with_inner(physical, 0) || is_dense_with_inner(physical, 1));
}

}  // namespace tessera
