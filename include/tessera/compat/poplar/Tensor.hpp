// SPDX-License-Identifier: Apache-2.0
// Views of variables. A copy of a Tensor is the same view.
#pragma once

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "ArrayRef.hpp"
#include "Interval.hpp"
#include "Type.hpp"
#include "exceptions.hpp"

namespace poplar {

class Tensor {
 public:
  Tensor() : v_(nullptr) {}
  explicit Tensor(const tessera_view* v) : v_(v) {}

  const tessera_view* handle() const {
    if (!v_) throw graph_error("a Tensor that is not of a graph is used");
    return v_;
  }
  bool valid() const { return v_ != nullptr; }

  Type elementType() const { return Type(handle()->type); }
  std::size_t numElements() const { return static_cast<std::size_t>(handle()->elements); }
  unsigned rank() const { return static_cast<unsigned>(handle()->rank); }
  std::vector<std::size_t> shape() const {
    return std::vector<std::size_t>(handle()->shape, v_->shape + v_->rank);
  }
  std::size_t dim(unsigned i) const {
    if (i >= rank())
      throw graph_error(std::string("dim(") + std::to_string(i) + ") of a tensor of shape " +
                        shapeToString());
    return static_cast<std::size_t>(v_->shape[i]);
  }
  std::string shapeToString() const {
    std::string s = "{";
    for (std::size_t d : shape()) {
      if (s.size() > 1) s += ',';
      s += std::to_string(d);
    }
    return s + "}";
  }
  bool containsAliases() const { return false; }
  bool containsConstant() const { return false; }
  bool isParallelWriteable() const { return true; }
  bool isContiguous() const {
    int64_t n = 0;
    tessera_rec_regions(handle(), &n);
    return n <= 1;
  }

  Tensor reshape(ArrayRef<std::size_t> shape) const {
    return made(TESSERA_VIEW_RESHAPE, std::vector<int64_t>(shape.begin(), shape.end()));
  }
  Tensor flatten() const { return reshape({numElements()}); }
  Tensor flatten(unsigned begin, unsigned end) const {
    std::vector<std::size_t> s = shape(), out(s.begin(), s.begin() + begin);
    std::size_t n = 1;
    for (unsigned i = begin; i < end; ++i) n *= s.at(i);
    out.push_back(n);
    out.insert(out.end(), s.begin() + end, s.end());
    return reshape(out);
  }
  Tensor reshapePartial(unsigned begin, unsigned end, ArrayRef<std::size_t> sizes) const {
    std::vector<std::size_t> s = shape(), out(s.begin(), s.begin() + begin);
    out.insert(out.end(), sizes.begin(), sizes.end());
    out.insert(out.end(), s.begin() + end, s.end());
    return reshape(out);
  }
  // Dims of size 1 before the dims of those numbers.
  Tensor expand(ArrayRef<std::size_t> where) const {
    const std::vector<std::size_t> s = shape();
    std::vector<std::size_t> out;
    for (std::size_t i = 0; i <= s.size(); ++i) {
      for (std::size_t k : where)
        if (k == i) out.push_back(1);
      if (i < s.size()) out.push_back(s[i]);
    }
    return reshape(out);
  }
  Tensor squeeze(ArrayRef<std::size_t> dims) const {
    const std::vector<std::size_t> s = shape();
    std::vector<std::size_t> out;
    for (std::size_t i = 0; i < s.size(); ++i) {
      const bool gone = std::find(dims.begin(), dims.end(), i) != dims.end();
      if (gone && s[i] != 1)
        throw graph_error(std::string("squeeze: dimension ") + std::to_string(i) + " of " +
                          shapeToString());
      if (!gone) out.push_back(s[i]);
    }
    return reshape(out);
  }

  Tensor slice(std::size_t begin, std::size_t end, unsigned dim = 0) const {
    return made(TESSERA_VIEW_SLICE, {static_cast<int64_t>(dim), static_cast<int64_t>(begin),
                                     static_cast<int64_t>(end)});
  }
  Tensor slice(const Interval& i, unsigned dim = 0) const { return slice(i.begin(), i.end(), dim); }
  Tensor slice(ArrayRef<std::size_t> begin, ArrayRef<std::size_t> end) const {
    Tensor t = *this;
    if (begin.size() != end.size()) throw graph_error("slice: begins and ends differ in number");
    for (std::size_t i = 0; i < begin.size(); ++i)
      t = t.slice(begin[i], end[i], static_cast<unsigned>(i));
    return t;
  }
  std::vector<Tensor> slices(ArrayRef<Interval> intervals, unsigned dim = 0) const {
    std::vector<Tensor> out;
    for (const Interval& i : intervals) out.push_back(slice(i, dim));
    return out;
  }
  std::vector<Tensor> slices(const std::vector<std::vector<Interval>>& intervals,
                             unsigned dim = 0) const;
  Tensor operator[](std::size_t i) const { return slice(i, i + 1).squeeze({0}); }
  Tensor index(ArrayRef<std::size_t> indices) const {
    Tensor t = *this;
    for (std::size_t i : indices) t = t[i];
    return t;
  }

  Tensor dimShuffle(ArrayRef<unsigned> order) const {
    return made(TESSERA_VIEW_PERMUTE, std::vector<int64_t>(order.begin(), order.end()));
  }
  Tensor dimShufflePartial(ArrayRef<unsigned> from, ArrayRef<unsigned> to) const {
    std::vector<unsigned> order(rank(), rank());
    std::vector<bool> used(rank(), false);
    for (std::size_t i = 0; i < from.size(); ++i) {
      order.at(to[i]) = from[i];
      used.at(from[i]) = true;
    }
    unsigned next = 0;
    for (unsigned& d : order) {
      if (d != rank()) continue;
      while (used[next]) ++next;
      d = next++;
    }
    return dimShuffle(order);
  }
  Tensor dimRoll(unsigned from, unsigned to = 0) const {
    std::vector<unsigned> order;
    for (unsigned i = 0; i < rank(); ++i)
      if (i != from) order.push_back(i);
    order.insert(order.begin() + to, from);
    return dimShuffle(order);
  }
  Tensor transpose() const {
    std::vector<unsigned> order(rank());
    std::iota(order.rbegin(), order.rend(), 0u);
    return dimShuffle(order);
  }
  Tensor reverse(unsigned dim) const { return made(TESSERA_VIEW_REVERSE, {dim}); }
  Tensor broadcast(unsigned n, unsigned dim) const {
    return made(TESSERA_VIEW_BROADCAST, {static_cast<int64_t>(dim), static_cast<int64_t>(n)});
  }
  Tensor subSample(unsigned stride, unsigned dim) const;
  Tensor upsample(unsigned scale, unsigned dim) const {
    return expand({dim + 1u}).broadcast(scale, dim + 1).flatten(dim, dim + 2);
  }
  Tensor reinterpret(const Type& type) const { return made(TESSERA_VIEW_REINTERPRET, {type.id()}); }

  // The parts of the flattened tensor that lie in one piece each.
  std::vector<Interval> getContiguousRegions() const {
    int64_t n = 0;
    const tessera_tile_interval* r = tessera_rec_regions(handle(), &n);
    std::vector<Interval> out;
    std::size_t at = 0;
    for (int64_t i = 0; i < n; ++i) {
      const std::size_t size = static_cast<std::size_t>(r[i].end - r[i].begin);
      out.emplace_back(at, at + size);
      at += size;
    }
    return out;
  }
  std::string getDebugStr() const { return shapeToString(); }

  friend bool operator==(const Tensor& a, const Tensor& b) { return a.v_ == b.v_; }
  friend bool operator!=(const Tensor& a, const Tensor& b) { return a.v_ != b.v_; }

 private:
  Tensor made(tessera_view_kind kind, const std::vector<int64_t>& args) const {
    const tessera_view* parent = handle();
    return Tensor(detail::checked(
        tessera_rec_view(kind, &parent, 1, args.data(), static_cast<int64_t>(args.size()))));
  }

  const tessera_view* v_;
};

namespace detail {
// Views of the tensors, for calls of the recorder.
inline std::vector<const tessera_view*> handles(ArrayRef<Tensor> ts) {
  std::vector<const tessera_view*> out;
  for (const Tensor& t : ts) out.push_back(t.handle());
  return out;
}
}  // namespace detail

inline Tensor concat(ArrayRef<Tensor> ts, unsigned dim = 0) {
  const std::vector<const tessera_view*> parts = detail::handles(ts);
  const int64_t d = dim;
  return Tensor(detail::checked(tessera_rec_view(TESSERA_VIEW_CONCAT, parts.data(),
                                                 static_cast<int64_t>(parts.size()), &d, 1)));
}
inline Tensor concat(const Tensor& a, const Tensor& b, unsigned dim = 0) {
  return concat({a, b}, dim);
}
inline Tensor append(const Tensor& a, const Tensor& b, unsigned dim) {
  return concat({a, b.expand({dim})}, dim);
}

inline std::vector<Tensor> Tensor::slices(const std::vector<std::vector<Interval>>& intervals,
                                          unsigned dim) const {
  std::vector<Tensor> out;
  for (const auto& one : intervals) {
    const std::vector<Tensor> parts = slices(ArrayRef<Interval>(one), dim);
    out.push_back(parts.empty() ? slice(0, 0, dim) : concat(parts, dim));
  }
  return out;
}

inline Tensor Tensor::subSample(unsigned stride, unsigned dim) const {
  std::vector<Tensor> parts;
  for (std::size_t i = 0; i < this->dim(dim); i += stride) parts.push_back(slice(i, i + 1, dim));
  return concat(parts, dim);
}

inline std::ostream& operator<<(std::ostream& os, const Tensor& t) {
  return os << t.elementType() << t.shapeToString();
}

}  // namespace poplar
