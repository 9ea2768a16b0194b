// SPDX-License-Identifier: Apache-2.0
// Ops on the values of a composition.
#ifndef TESSERA_BUILDER_OPS_H
#define TESSERA_BUILDER_OPS_H

#include "tessera/builder.h"

namespace tessera {
namespace custom {

#define TESSERA_DETAIL_BINARY(function, row, gives_bool)           \
  inline Value function(const Value& a, const Value& b) {          \
    return a.builder().pointwise(row, {a, b}, {a, b}, gives_bool); \
  }                                                                \
  inline Value function(const Value& a, double b) {                \
    return a.builder().pointwise(row, {a}, {a, b}, gives_bool);    \
  }                                                                \
  inline Value function(double a, const Value& b) {                \
    return b.builder().pointwise(row, {b}, {a, b}, gives_bool);    \
  }
TESSERA_DETAIL_BINARY(operator+, "add", false)
TESSERA_DETAIL_BINARY(operator-, "sub", false)
TESSERA_DETAIL_BINARY(operator*, "mul", false)
TESSERA_DETAIL_BINARY(operator/, "div", false)
TESSERA_DETAIL_BINARY(operator<, "lt", true)
TESSERA_DETAIL_BINARY(operator<=, "le", true)
TESSERA_DETAIL_BINARY(operator>, "gt", true)
TESSERA_DETAIL_BINARY(operator>=, "ge", true)
TESSERA_DETAIL_BINARY(equal, "eq", true)
TESSERA_DETAIL_BINARY(maximum, "maximum", false)
TESSERA_DETAIL_BINARY(minimum, "minimum", false)
TESSERA_DETAIL_BINARY(pow, "pow", false)
#undef TESSERA_DETAIL_BINARY

#define TESSERA_DETAIL_UNARY(function, row) \
  inline Value function(const Value& x) {   \
    return x.builder().unary(row, x);       \
  }
TESSERA_DETAIL_UNARY(operator-, "neg")
TESSERA_DETAIL_UNARY(abs, "abs")
TESSERA_DETAIL_UNARY(ceil, "ceil")
TESSERA_DETAIL_UNARY(cos, "cos")
TESSERA_DETAIL_UNARY(erf, "erf")
TESSERA_DETAIL_UNARY(exp, "exp")
TESSERA_DETAIL_UNARY(floor, "floor")
TESSERA_DETAIL_UNARY(gelu, "gelu")
TESSERA_DETAIL_UNARY(log, "log")
TESSERA_DETAIL_UNARY(reciprocal, "reciprocal")
TESSERA_DETAIL_UNARY(relu, "relu")
TESSERA_DETAIL_UNARY(round, "round")
TESSERA_DETAIL_UNARY(rsqrt, "rsqrt")
TESSERA_DETAIL_UNARY(sigmoid, "sigmoid")
TESSERA_DETAIL_UNARY(sign, "sign")
TESSERA_DETAIL_UNARY(silu, "silu")
TESSERA_DETAIL_UNARY(sin, "sin")
TESSERA_DETAIL_UNARY(sqrt, "sqrt")
TESSERA_DETAIL_UNARY(square, "square")
TESSERA_DETAIL_UNARY(tanh, "tanh")
#undef TESSERA_DETAIL_UNARY

inline Value where(const Value& condition, const Value& a, const Value& b) {
  return a.builder().pointwise("where", {condition, a, b}, {condition, a, b});
}
inline Value where(const Value& condition, const Value& a, double b) {
  return a.builder().pointwise("where", {condition, a}, {condition, a, b});
}
inline Value where(const Value& condition, double a, const Value& b) {
  return b.builder().pointwise("where", {condition, b}, {condition, a, b});
}

namespace detail {
inline int64_t wrapped(int64_t dim, int rank) {
  if (dim < -rank || dim >= rank)
    throw std::out_of_range("dim " + std::to_string(dim) + " of a tensor of rank " +
                            std::to_string(rank));
  return dim < 0 ? dim + rank : dim;
}
inline Value reduced(const char* row, const Value& x, std::vector<int64_t> dims, bool keep) {
  std::vector<bool> drop(x.shape().size(), dims.empty());
  for (int64_t& d : dims) drop[static_cast<size_t>(d = wrapped(d, x.rank()))] = true;
  Type t = x.type();
  t.shape.clear();
  for (size_t i = 0; i < drop.size(); ++i)
    if (!drop[i] || keep) t.shape.push_back(drop[i] ? 1 : x.shape()[i]);
  return x.builder().node(row, {x, dims, keep}, t);
}
inline Type shaped(const Value& x, const std::vector<int64_t>& shape) {
  Type t = x.type();
  t.shape = shape;
  return t;
}
}  // namespace detail

inline Value Value::cast(DType to) const {
  Type t = type_;
  t.dtype = to;
  return b_->node("_to_copy", {*this}, t);
}
inline Value Value::reshape(const std::vector<int64_t>& to) const {
  return b_->node("view", {*this, to}, detail::shaped(*this, to));
}
inline Value Value::expand(const std::vector<int64_t>& to) const {
  return b_->node("expand", {*this, to}, detail::shaped(*this, to));
}
inline Value Value::permute(const std::vector<int64_t>& dims) const {
  std::vector<int64_t> to;
  for (int64_t d : dims) to.push_back(shape()[static_cast<size_t>(detail::wrapped(d, rank()))]);
  return b_->node("permute", {*this, dims}, detail::shaped(*this, to));
}
inline Value Value::transpose(int a, int b) const {
  std::vector<int64_t> to = shape();
  std::swap(to[static_cast<size_t>(detail::wrapped(a, rank()))],
            to[static_cast<size_t>(detail::wrapped(b, rank()))]);
  return b_->node("transpose", {*this, a, b}, detail::shaped(*this, to));
}
inline Value Value::slice(int dim, int64_t begin, int64_t end) const {
  std::vector<int64_t> to = shape();
  int64_t& size = to[static_cast<size_t>(detail::wrapped(dim, rank()))];
  if (begin < 0 || end < begin || end > size) throw std::out_of_range("a slice out of range");
  size = end - begin;
  return b_->node("slice", {*this, dim, begin, end, 1}, detail::shaped(*this, to));
}
inline Value Value::sum(const std::vector<int64_t>& dims, bool keep) const {
  return detail::reduced("sum", *this, dims, keep);
}
inline Value Value::mean(const std::vector<int64_t>& dims, bool keep) const {
  return detail::reduced("mean", *this, dims, keep);
}
inline Value Value::amax(const std::vector<int64_t>& dims, bool keep) const {
  return detail::reduced("amax", *this, dims, keep);
}
inline Value Value::amin(const std::vector<int64_t>& dims, bool keep) const {
  return detail::reduced("amin", *this, dims, keep);
}
inline Value Value::softmax(int dim) const {
  return b_->node("_softmax", {*this, dim, false}, type_);
}

// Matrix products of rank 2, or of rank 3 with equal first dims.
inline Value matmul(const Value& a, const Value& b) {
  if (a.rank() != b.rank() || (a.rank() != 2 && a.rank() != 3))
    throw std::invalid_argument("matmul: ranks must both be 2 or 3");
  std::vector<int64_t> to = a.shape();
  to.back() = b.shape().back();
  return a.builder().node(a.rank() == 2 ? "mm" : "bmm", {a, b}, detail::shaped(a, to));
}
inline Value cat(const std::vector<Value>& values, int dim) {
  if (values.empty()) throw std::invalid_argument("cat: of nothing");
  const Value& first = values[0];
  std::vector<int64_t> to = first.shape();
  const auto at = static_cast<size_t>(detail::wrapped(dim, first.rank()));
  for (size_t i = 1; i < values.size(); ++i) to[at] += values[i].shape().at(at);
  return first.builder().node("cat", {values, dim}, detail::shaped(first, to));
}
inline Value gather(const Value& x, int dim, const Value& index) {
  return x.builder().node("gather", {x, dim, index}, detail::shaped(x, index.shape()));
}

}  // namespace custom
}  // namespace tessera

#endif
