// SPDX-License-Identifier: Apache-2.0
// View ops: result shapes by ATen's rules (negative dims, inferred sizes, clamped slices), and the
// strides and offset of the result as an alias of the operand.
#include "ops/view.h"

#include <algorithm>

#include "ops/registry.h"
#include "ops/sizes.h"

namespace tessera {

std::string text_of(const Dims& dims) {
  std::string s = "[";
  for (size_t i = 0; i < dims.size(); ++i) s += fmt::format("{}{}", i ? ", " : "", dims[i]);
  return s + "]";
}

namespace {

const Arg& arg_or_none(const Args& args, size_t i) {
  static const Arg none;
  return i < args.size() ? args.at(i) : none;
}

// Which dims a squeeze removes: those asked for (all, one or a list) that have size 1.
std::vector<bool> squeezed_dims(const Args& args, const Dims& shape) {
  std::vector<bool> drop(shape.size(), !args.has(1));
  if (args.has(1))
    for (int64_t d : args.ints(1)) {
      d = wrap_dim(d, static_cast<int64_t>(shape.size()));
      if (!shape.empty()) drop[d] = true;
    }
  for (size_t i = 0; i < shape.size(); ++i) drop[i] = drop[i] && shape[i] == 1;
  return drop;
}

std::vector<int64_t> permutation(const Args& args, size_t rank) {
  std::vector<int64_t> dims = args.ints(1);
  user_check(dims.size() == rank, "[permute] got {} dims for a tensor of rank {}", dims.size(),
             rank);
  std::vector<bool> seen(rank, false);
  for (int64_t& d : dims) {
    d = wrap_dim(d, static_cast<int64_t>(rank));
    user_check(!seen[d], "[permute] dim {} appears twice", d);
    seen[d] = true;
  }
  return dims;
}

int64_t select_index(const Args& args, const Dims& shape, int64_t dim) {
  const int64_t index = args.integer(2), size = shape[dim];
  user_check(index >= -size && index < size,
             "[select] index {} is out of range for dim {} of size {}", index, dim, size);
  return index < 0 ? index + size : index;
}

Dims viewed_shape(const Dims& in, Dims size) {
  const int64_t count = product(in);
  int64_t known = 1, inferred = -1;
  for (size_t i = 0; i < size.size(); ++i) {
    if (size[i] == -1) {
      user_check(inferred < 0, "[view] only one size can be inferred, got {}", text_of(size));
      inferred = static_cast<int64_t>(i);
    } else {
      user_check(size[i] >= 0, "[view] invalid size {} in {}", size[i], text_of(size));
      known = times(known, size[i]);
    }
  }
  if (inferred >= 0) {
    user_check(known != 0 && count % known == 0, "[view] shape {} does not fit {} elements",
               text_of(size), count);
    size[inferred] = count / known;
    known = count;
  }
  user_check(known == count, "[view] shape {} does not fit {} elements", text_of(size), count);
  return size;
}

Dims expanded_shape(const Dims& in, Dims size) {
  user_check(size.size() >= in.size(), "[expand] shape {} has fewer dims than {}", text_of(size),
             text_of(in));
  const size_t lead = size.size() - in.size();
  for (size_t i = 0; i < size.size(); ++i) {
    if (i < lead) {
      user_check(size[i] >= 0, "[expand] a new dim needs a size, got {}", text_of(size));
      continue;
    }
    const int64_t have = in[i - lead];
    if (size[i] == -1) size[i] = have;
    user_check(have == size[i] || have == 1, "[expand] cannot expand {} to {}", text_of(in),
               text_of(size));
  }
  return size;
}

bool is_dtype_view(Op op, const Args& args) {
  return op == Op::View && args.size() > 1 && args.at(1).kind == Arg::Kind::kDType;
}

// The two dims of a diagonal, and where and how long it is.
struct DiagonalRange {
  int64_t dim1, dim2, row, column, length;
};

DiagonalRange diagonal_range(const Args& args, const Dims& shape) {
  const auto rank = static_cast<int64_t>(shape.size());
  const int64_t offset = args.integer_or(1, 0);
  DiagonalRange r{wrap_dim(args.integer_or(2, 0), rank), wrap_dim(args.integer_or(3, 1), rank),
                  std::max<int64_t>(-offset, 0), std::max<int64_t>(offset, 0), 0};
  user_check(rank >= 2 && r.dim1 != r.dim2, "[diagonal] needs two different dims");
  r.length = std::max<int64_t>(0, std::min(shape[r.dim1] - r.row, shape[r.dim2] - r.column));
  return r;
}

// Dim, size and step of an unfold, checked.
struct Windows {
  int64_t dim, size, step, count;
};

Windows windows_of(const Args& args, const Dims& shape) {
  const auto rank = static_cast<int64_t>(shape.size());
  Windows w{wrap_dim(args.integer(1), rank), args.integer(2), args.integer(3), 0};
  const int64_t have = rank ? shape[w.dim] : 1;
  user_check(w.size >= 0 && w.size <= have && w.step > 0,
             "[unfold] windows of {} with step {} do not fit a dim of size {}", w.size, w.step,
             have);
  w.count = (have - w.size) / w.step + 1;
  return w;
}

// Offset in elements; the farthest element must lie inside the operand.
int64_t strided_offset(const Args& args, int64_t count) {
  const Dims size = args.ints(1), stride = args.ints(2);
  const int64_t offset = args.integer_or(3, 0);
  user_check(size.size() == stride.size(), "[as_strided] {} sizes and {} strides", size.size(),
             stride.size());
  int64_t last = offset;
  for (size_t i = 0; i < size.size(); ++i) {
    user_check(stride[i] >= 0 && size[i] >= 0, "[as_strided] negative sizes or strides");
    if (size[i] > 0) last += times(size[i] - 1, stride[i]);
    user_check(last < int64_t{1} << 62, "[as_strided] reaches beyond any memory");
  }
  checked_product(size);
  user_check(product(size) == 0 || (offset >= 0 && last < count),
             "[as_strided] reaches element {} of a tensor of {}", last, count);
  return product(size) == 0 ? 0 : offset;
}

// Strides of `shape` over the elements of `in`, innermost first. Dims of the operand that are
// contiguous with each other form one run; the new dims must cut the runs, not cross them.
std::optional<Dims> viewed_strides(const TensorRef& in, const Dims& shape) {
  if (product(shape) == 0) return dense_strides(shape);
  struct Run {
    int64_t size, stride;
  };
  std::vector<Run> runs;  // innermost first
  for (size_t i = in.shape.size(); i-- > 0;) {
    if (in.shape[i] == 1) continue;
    if (!runs.empty() && in.strides[i] == runs.back().stride * runs.back().size)
      runs.back().size *= in.shape[i];
    else
      runs.push_back({in.shape[i], in.strides[i]});
  }
  Dims strides(shape.size());
  size_t r = 0;
  int64_t left = runs.empty() ? 1 : runs[0].size, step = runs.empty() ? 1 : runs[0].stride;
  for (size_t i = shape.size(); i-- > 0;) {
    if (shape[i] != 1 && left == 1) {
      if (++r >= runs.size()) return std::nullopt;
      left = runs[r].size;
      step = runs[r].stride;
    }
    strides[i] = step;
    if (left % shape[i] != 0) return std::nullopt;
    left /= shape[i];
    step *= shape[i];
  }
  return strides;
}

}  // namespace

int64_t wrap_dim(int64_t dim, int64_t rank) {
  const int64_t n = std::max<int64_t>(rank, 1);
  user_check(dim >= -n && dim < n, "dim {} is out of range for a tensor of rank {}", dim, rank);
  return dim < 0 ? dim + n : dim;
}

SliceRange slice_range(int64_t size, const Arg& start, const Arg& end, int64_t step) {
  user_check(step > 0, "[slice] step must be positive, got {}", step);
  auto clamped = [size](int64_t i) {
    if (i < 0) i += size;
    return std::clamp<int64_t>(i, 0, size);
  };
  const int64_t b = start.is_none() ? 0 : clamped(start.i);
  const int64_t e = std::max(b, end.is_none() ? size : clamped(end.i));
  const int64_t span = e - b;
  return {b, step, span / step + (span % step != 0)};
}

std::vector<TensorType> infer_view(const Graph& g, const Node& n) {
  const TensorType& in = g.type(n.arg_value(0));
  const int64_t rank = in.rank();
  TensorType out{in.dtype, in.shape, {}};
  switch (n.op) {
    case Op::AsStrided:
      strided_offset(n.args, in.count());
      out.shape = n.args.ints(1);
      break;
    case Op::Diagonal: {
      const DiagonalRange r = diagonal_range(n.args, in.shape);
      out.shape.erase(out.shape.begin() + std::max(r.dim1, r.dim2));
      out.shape.erase(out.shape.begin() + std::min(r.dim1, r.dim2));
      out.shape.push_back(r.length);
      break;
    }
    case Op::Unfold: {
      const Windows w = windows_of(n.args, in.shape);
      if (rank > 0) out.shape[w.dim] = w.count;
      out.shape.push_back(w.size);
      break;
    }
    case Op::Expand:
      out.shape = expanded_shape(in.shape, n.args.ints(1));
      checked_product(out.shape);
      break;
    case Op::Permute: {
      const auto dims = permutation(n.args, in.shape.size());
      for (size_t i = 0; i < dims.size(); ++i) out.shape[i] = in.shape[dims[i]];
      break;
    }
    case Op::Select: {
      user_check(rank > 0, "[select] cannot select from a scalar");
      const int64_t dim = wrap_dim(n.args.integer(1), rank);
      select_index(n.args, in.shape, dim);
      out.shape.erase(out.shape.begin() + dim);
      break;
    }
    case Op::Slice: {
      user_check(rank > 0, "[slice] cannot slice a scalar");
      const int64_t dim = wrap_dim(n.args.integer_or(1, 0), rank);
      out.shape[dim] = slice_range(in.shape[dim], arg_or_none(n.args, 2), arg_or_none(n.args, 3),
                                   n.args.integer_or(4, 1))
                           .length;
      break;
    }
    case Op::Squeeze: {
      const auto drop = squeezed_dims(n.args, in.shape);
      out.shape.clear();
      for (size_t i = 0; i < drop.size(); ++i)
        if (!drop[i]) out.shape.push_back(in.shape[i]);
      break;
    }
    case Op::Transpose: {
      const int64_t a = wrap_dim(n.args.integer(1), rank), b = wrap_dim(n.args.integer(2), rank);
      if (rank > 0) std::swap(out.shape[a], out.shape[b]);
      break;
    }
    case Op::Unsqueeze: {
      const int64_t dim = wrap_dim(n.args.integer(1), rank + 1);
      out.shape.insert(out.shape.begin() + dim, 1);
      break;
    }
    case Op::View:
      if (is_dtype_view(n.op, n.args)) {
        out.dtype = static_cast<DType>(n.args.at(1).i);
        user_check(size_of(out.dtype) == size_of(in.dtype),
                   "[view] {} cannot be seen as {}: the element sizes differ", name_of(in.dtype),
                   name_of(out.dtype));
      } else {
        out.shape = viewed_shape(in.shape, n.args.ints(1));
      }
      break;
    default:
      invariant(false, "{} is not a view", op_text(n.op));
  }
  return {out};
}

std::optional<TensorRef> apply_view(Op op, const Args& args, const TensorRef& in,
                                    const Dims& out_shape) {
  const auto rank = static_cast<int64_t>(in.shape.size());
  TensorRef out = in;
  out.shape = out_shape;
  switch (op) {
    case Op::AsStrided:
      if (!in.contiguous()) return std::nullopt;
      out.offset += strided_offset(args, in.count()) * size_of(in.dtype);
      out.strides = args.ints(2);
      break;
    case Op::Diagonal: {
      const DiagonalRange r = diagonal_range(args, in.shape);
      if (r.length > 0)
        out.offset +=
            (r.row * in.strides[r.dim1] + r.column * in.strides[r.dim2]) * size_of(in.dtype);
      out.strides.erase(out.strides.begin() + std::max(r.dim1, r.dim2));
      out.strides.erase(out.strides.begin() + std::min(r.dim1, r.dim2));
      out.strides.push_back(in.strides[r.dim1] + in.strides[r.dim2]);
      break;
    }
    case Op::Unfold: {
      const Windows w = windows_of(args, in.shape);
      const int64_t step = rank > 0 ? in.strides[w.dim] : 1;
      if (rank > 0) out.strides[w.dim] = step * w.step;
      out.strides.push_back(step);
      break;
    }
    case Op::Expand: {
      const size_t lead = out_shape.size() - in.shape.size();
      out.strides.assign(out_shape.size(), 0);
      for (size_t i = lead; i < out_shape.size(); ++i)
        if (in.shape[i - lead] == out_shape[i]) out.strides[i] = in.strides[i - lead];
      break;
    }
    case Op::Permute: {
      const auto dims = permutation(args, in.shape.size());
      for (size_t i = 0; i < dims.size(); ++i) out.strides[i] = in.strides[dims[i]];
      break;
    }
    case Op::Select: {
      const int64_t dim = wrap_dim(args.integer(1), rank);
      out.offset += select_index(args, in.shape, dim) * in.strides[dim] * size_of(in.dtype);
      out.strides.erase(out.strides.begin() + dim);
      break;
    }
    case Op::Slice: {
      const int64_t dim = wrap_dim(args.integer_or(1, 0), rank);
      const SliceRange s = slice_range(in.shape[dim], arg_or_none(args, 2), arg_or_none(args, 3),
                                       args.integer_or(4, 1));
      // An empty slice may start one past the end: keep the pointer inside the buffer.
      if (s.length > 0) out.offset += s.start * in.strides[dim] * size_of(in.dtype);
      out.strides[dim] = in.strides[dim] * s.step;
      break;
    }
    case Op::Squeeze: {
      const auto drop = squeezed_dims(args, in.shape);
      out.strides.clear();
      for (size_t i = 0; i < drop.size(); ++i)
        if (!drop[i]) out.strides.push_back(in.strides[i]);
      break;
    }
    case Op::Transpose: {
      const int64_t a = wrap_dim(args.integer(1), rank), b = wrap_dim(args.integer(2), rank);
      if (rank > 0) std::swap(out.strides[a], out.strides[b]);
      break;
    }
    case Op::Unsqueeze: {
      const int64_t dim = wrap_dim(args.integer(1), rank + 1);
      const int64_t step = dim < rank ? in.shape[dim] * in.strides[dim] : 1;
      out.strides.insert(out.strides.begin() + dim, step);
      break;
    }
    case Op::View: {
      if (is_dtype_view(op, args)) {
        out.dtype = static_cast<DType>(args.at(1).i);
        break;
      }
      auto strides = viewed_strides(in, out_shape);
      if (!strides) return std::nullopt;
      out.strides = std::move(*strides);
      break;
    }
    default:
      invariant(false, "{} is not a view", op_text(op));
  }
  return out;
}

}  // namespace tessera
