// SPDX-License-Identifier: Apache-2.0
// The gather family: types and costs, and the ops that work along one dim: gather(x, dim, index),
// scatter_add(x, dim, index, src), scatter.value(x, dim, index, value). Indices are checked at run
// time.
#include <algorithm>
#include <array>
#include <cstring>

#include "ops/gather_impl.h"
#include "ops/registry.h"
#include "ops/run_error.h"
#include "ops/view.h"
#include "ops/widened.h"

namespace tessera {
namespace {

// The element that `value` is in `dtype`, as bytes.
std::array<std::byte, 16> element_bytes(double value, int64_t whole, DType dtype) {
  std::array<std::byte, 16> out{};
  auto put = [&](auto v) { std::memcpy(out.data(), &v, sizeof v); };
  switch (dtype) {
    case DType::F32:
      put(static_cast<float>(value));
      break;
    case DType::F64:
      put(value);
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
    case DType::Bool:
      put(static_cast<uint8_t>(value != 0 || whole != 0));
      break;
    default:
      put(static_cast<uint8_t>(whole));
      break;
  }
  return out;
}

// Index, source and result move together over all dims but one; along that dim the index decides.
// Each thread owns whole lines, so that additions to one element happen in one thread and in the
// order of the index.
class LinesKernel final : public Kernel {
 public:
  explicit LinesKernel(const StepDesc& d)
      : op_(d.op),
        x_(d.inputs[d.args.operand(0)]),
        index_(d.inputs[d.args.operand(2)]),
        out_(d.outputs[0]) {
    const auto rank = static_cast<int64_t>(x_.shape.size());
    const int64_t dim = wrap_dim(d.args.integer(1), rank);
    size_ = size_of(x_.dtype);
    if (op_ == Op::ScatterAdd) src_ = d.inputs[d.args.operand(3)];
    if (op_ == Op::ScatterValue) {
      const Arg& v = d.args.at(3);
      value_ = element_bytes(
          v.number(), v.kind == Arg::Kind::kFloat ? static_cast<int64_t>(v.f) : v.i, x_.dtype);
    }
    const bool scalar = rank == 0 || index_.shape.empty();
    if (!scalar) {
      extent_ = x_.shape[dim];
      x_step_ = gathers() ? x_.strides[dim] : out_.strides[dim];
      index_step_ = index_.strides[dim];
      len_ = index_.shape[dim];
    }
    // Tensor 1 is read or written beside the index: the result of a gather, the source of a
    // scatter.
    const TensorRef& beside = gathers() ? out_ : op_ == Op::ScatterAdd ? src_ : index_;
    const TensorRef& target = gathers() ? x_ : out_;
    if (!scalar) beside_step_ = beside.strides[dim];
    Nest<3> lines;
    for (int64_t i = 0; !scalar && i < rank; ++i)
      if (i != dim)
        lines.push_back(
            {index_.shape[i], {index_.strides[i], beside.strides[i], target.strides[i]}});
    lines_ = collapse(lines);
    if (!gathers()) copy_ = collapse(shared_loops<2>({&out_, &x_}));
    across_ = len_ > 1 && lines_.back().size > 1 &&
              std::abs(lines_.back().step[0]) < std::abs(index_step_);
  }

  bool single_thread() const override { return index_.count() < 8192 && out_.bytes() < kCopySmall; }
  bool may_fail() const override { return true; }

  void run(const RunCtx& c) const override {
    if (!gathers()) {
      copy_share(c, copy_, c.ptr<const std::byte>(x_), c.ptr<std::byte>(out_), size_);
      c.barrier();
    }
    const auto [begin, end] = thread_range(c, count_of(lines_), 16);
    const auto line = lines_.back().step;
    if (across_) {
      // The index is contiguous across lines: walk it that way, all lines of this thread at each
      // place.
      for (int64_t k = 0; k < len_; ++k)
        for_runs(lines_, begin, end, [&](const auto& at, int64_t n) {
          walk(c, {at[0] + k * index_step_, at[1] + k * beside_step_, at[2]}, line, n);
        });
    } else {
      for_each(lines_, begin, end, [&](const auto& at) {
        walk(c, at, {index_step_, beside_step_, 0}, len_);
      });
    }
  }

 private:
  bool gathers() const { return op_ == Op::Gather; }

  // n entries from offsets `at` with steps `step` (index, beside, target); a bad index is reported
  // and passed over.
  void walk(const RunCtx& c, std::array<int64_t, 3> at, const std::array<int64_t, 3>& step,
            int64_t n) const {
    const int64_t index_size = size_of(index_.dtype);
    while (n > 0) {
      const kernels::IndexWalk w{c.ptr<const std::byte>(index_) + at[0] * index_size,
                                 index_.dtype,
                                 step[0],
                                 n,
                                 extent_,
                                 step[2],
                                 x_step_};
      int64_t done = 0;
      if (gathers())
        done = kernels::gather_walk(w, c.ptr<const std::byte>(x_) + at[2] * size_,
                                    c.ptr<std::byte>(out_) + at[1] * size_, step[1], size_);
      else if (op_ == Op::ScatterValue)
        done =
            kernels::scatter_walk(w, c.ptr<std::byte>(out_) + at[2] * size_, value_.data(), size_);
      else
        done = kernels::scatter_add_walk(w, c.ptr<std::byte>(out_) + at[2] * size_,
                                         c.ptr<const std::byte>(src_) + at[1] * size_, step[1],
                                         x_.dtype);
      if (done >= n) return;
      fail_run(c, "[{}] index {} is out of bounds for a dim of size {}", op_text(op_),
               kernels::read_index(w.index, done * step[0], index_.dtype), extent_);
      for (size_t i = 0; i < 3; ++i) at[i] += (done + 1) * step[i];
      n -= done + 1;
    }
  }

  Op op_;
  TensorRef x_, index_, src_, out_;
  std::array<std::byte, 16> value_{};
  int64_t size_ = 4, extent_ = 1, len_ = 1;
  int64_t x_step_ = 0, index_step_ = 0, beside_step_ = 0;  // along the dim
  bool across_ = false;
  Nest<3> lines_;
  Nest<2> copy_;
};

void check_index_dtype(Op op, const TensorType& t) {
  user_check(is_int(t.dtype), "[{}] needs an integer index, got {}", op_text(op), name_of(t.dtype));
}

TensorType infer_lines(const Graph& g, const Node& n) {
  const TensorType& x = g.type(n.arg_value(0));
  const TensorType& index = g.type(n.arg_value(2));
  const int64_t dim = wrap_dim(n.args.integer(1), x.rank());
  check_index_dtype(n.op, index);
  user_check(std::max(index.rank(), 1) == std::max(x.rank(), 1),
             "[{}] index has {} dims, the tensor {}", op_text(n.op), index.rank(), x.rank());
  for (int64_t i = 0; i < index.rank() && i < x.rank(); ++i)
    user_check(i == dim || index.shape[i] <= x.shape[i],
               "[{}] index is larger than the tensor in dim {}", op_text(n.op), i);
  if (n.op == Op::Gather) return {x.dtype, index.shape, {}};
  if (n.op == Op::ScatterAdd) {
    const TensorType& src = g.type(n.arg_value(3));
    user_check(src.dtype == x.dtype, "[scatter_add] source is {}, the tensor {}",
               name_of(src.dtype), name_of(x.dtype));
    for (int64_t i = 0; i < index.rank() && i < src.rank(); ++i)
      user_check(index.shape[i] <= src.shape[i],
                 "[scatter_add] index is larger than the source in dim {}", i);
  }
  return {x.dtype, x.shape, {}};
}

}  // namespace

IndexList index_list(const Arg& list) {
  IndexList out;
  for (size_t i = 0; i < list.list.size(); ++i)
    if (list.list[i].is_operand()) {
      out.operand.push_back(static_cast<int>(list.list[i].i));
      out.dim.push_back(static_cast<int64_t>(i));
    }
  return out;
}

Dims broadcast_shapes(const std::vector<Dims>& shapes) {
  Dims out;
  for (const Dims& s : shapes) {
    if (s.size() > out.size()) out.insert(out.begin(), s.size() - out.size(), 1);
    for (size_t i = 0; i < s.size(); ++i) {
      int64_t& o = out[out.size() - s.size() + i];
      user_check(o == s[i] || o == 1 || s[i] == 1,
                 "[index] index tensors do not broadcast: {} and {}", o, s[i]);
      if (o == 1) o = s[i];
    }
  }
  return out;
}

int64_t index_position(const IndexList& list) {
  for (size_t i = 1; i < list.dim.size(); ++i)
    if (list.dim[i] != list.dim[i - 1] + 1) return 0;
  return list.dim.empty() ? 0 : list.dim[0];
}

Dims indexed_shape(const Dims& x, const IndexList& list, const Dims& index_shape) {
  std::vector<bool> indexed(x.size(), false);
  for (int64_t d : list.dim) indexed[d] = true;
  Dims out;
  for (size_t i = 0; i < x.size(); ++i)
    if (!indexed[i]) out.push_back(x[i]);
  const int64_t at = index_position(list);
  out.insert(out.begin() + at, index_shape.begin(), index_shape.end());
  return out;
}

std::vector<TensorType> infer_gather(const Graph& g, const Node& n) {
  const TensorType& x = g.type(n.arg_value(0));
  switch (n.op) {
    case Op::Embedding: {
      const TensorType& index = g.type(n.arg_value(1));
      check_index_dtype(n.op, index);
      user_check(x.rank() == 2, "[embedding] the table needs two dims, got {}", x.rank());
      Dims shape = index.shape;
      shape.push_back(x.shape[1]);
      return {{x.dtype, shape, {}}};
    }
    case Op::EmbeddingGrad: {
      const TensorType& index = g.type(n.arg_value(1));
      check_index_dtype(n.op, index);
      user_check(x.rank() == index.rank() + 1,
                 "[embedding] gradient and index do not belong together");
      return {{x.dtype, {n.args.integer(2), x.shape.back()}, {}}};
    }
    case Op::IndexSelect: {
      const TensorType& index = g.type(n.arg_value(2));
      check_index_dtype(n.op, index);
      user_check(index.rank() <= 1, "[index_select] the index needs one dim, got {}", index.rank());
      const int64_t dim = wrap_dim(n.args.integer(1), x.rank());
      Dims shape = x.shape;
      if (!shape.empty()) shape[dim] = index.count();
      return {{x.dtype, shape, {}}};
    }
    case Op::Index:
    case Op::IndexPut: {
      const IndexList list = index_list(n.args.at(1));
      user_check(n.args.at(1).list.size() <= x.shape.size(),
                 "[{}] {} indices for a tensor of rank {}", op_text(n.op), n.args.at(1).list.size(),
                 x.rank());
      std::vector<Dims> shapes;
      for (int k : list.operand) {
        const TensorType& index = g.type(n.operands[k]);
        check_index_dtype(n.op, index);
        shapes.push_back(index.shape);
      }
      const Dims shape = indexed_shape(x.shape, list, broadcast_shapes(shapes));
      if (n.op == Op::Index) return {{x.dtype, shape, {}}};
      const TensorType& values = g.type(n.arg_value(2));
      user_check(values.dtype == x.dtype, "[index_put] values are {}, the tensor {}",
                 name_of(values.dtype), name_of(x.dtype));
      user_check(broadcast_shapes({shape, values.shape}) == shape,
                 "[index_put] the values do not broadcast to the "
                 "indexed shape");
      return {{x.dtype, x.shape, {}}};
    }
    default:
      return {infer_lines(g, n)};
  }
}

Work work_gather(const Graph& g, const Node& n) {
  const TensorType& out = g.type(n.results[0]);
  int64_t bytes = 2 * out.bytes();
  if (n.op == Op::EmbeddingGrad) bytes = out.bytes() + 3 * g.type(n.arg_value(0)).bytes();
  const bool adds = n.op == Op::EmbeddingGrad || n.op == Op::ScatterAdd || n.op == Op::IndexPut;
  return {WorkKind::kGather, adds ? g.type(n.arg_value(0)).count() : 0, bytes};
}

KernelPtr make_gather(const StepDesc& d) {
  // Moving elements is the same for all types of a size; sums of halves are taken in f32.
  const bool adds = d.op == Op::ScatterAdd || d.op == Op::EmbeddingGrad ||
                    (d.op == Op::IndexPut && d.args.boolean_or(3, false));
  const DType dtype = d.outputs[0].dtype;
  if (adds && (dtype == DType::F16 || dtype == DType::BF16)) return make_widened(d, make_gather);
  if (d.op == Op::Gather || d.op == Op::ScatterAdd || d.op == Op::ScatterValue)
    return std::make_unique<LinesKernel>(d);
  return make_indexed(d);
}

bool accepts_gather(Op, int, const TensorRef&) {
  return true;
}

}  // namespace tessera
