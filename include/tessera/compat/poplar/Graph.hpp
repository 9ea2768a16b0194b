// SPDX-License-Identifier: Apache-2.0
// The graph that an Opx adds to: variables, constants and where they lie; vertices by
// GraphVertices.hpp.
#pragma once

#include <string>
#include <type_traits>
#include <vector>

#include "ArrayRef.hpp"
#include "DebugContext.hpp"
#include "GraphVertices.hpp"
#include "Interval.hpp"
#include "OptionFlags.hpp"
#include "Program.hpp"
#include "Target.hpp"
#include "Tensor.hpp"
#include "TensorCloneMethod.hpp"
#include "Type.hpp"
#include "VariableMappingMethod.hpp"
#include "exceptions.hpp"

namespace poplar {

class Graph : public GraphVertices {
 public:
  using TileToTensorMapping = std::vector<std::vector<Interval>>;

  using GraphVertices::setInitialValue;
  using GraphVertices::setTileMapping;

  explicit Graph(tessera_recorder* r) : GraphVertices(r), r_(r) {}
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  tessera_recorder* recorder() const { return r_; }
  const Target& getTarget() const { return target_; }
  unsigned getReplicationFactor() const {
    return static_cast<unsigned>(tessera_fact("replicas", 1));
  }
  Graph& getTopLevelGraph() { return *this; }

  Function addFunction(const program::Program& p) { return Function(p); }

  Tensor addVariable(const Type& type, ArrayRef<std::size_t> shape, const DebugContext& dc = {}) {
    const std::vector<int64_t> s(shape.begin(), shape.end());
    return Tensor(detail::checked(tessera_rec_variable(
        r_, type.id(), static_cast<int32_t>(s.size()), s.data(), -1, dc.getPathName().c_str())));
  }
  Tensor addVariable(const Type& type, ArrayRef<std::size_t> shape, VariableMappingMethod,
                     const DebugContext& dc = {}) {
    return addVariable(type, shape, dc);
  }

  template <typename T,
            typename = typename std::enable_if<std::is_convertible<T, double>::value>::type>
  Tensor addConstant(const Type& type, ArrayRef<std::size_t> shape, T value,
                     const DebugContext& = {}) {
    return constant(type, shape, ArrayRef<T>(&value, 1));
  }
  template <typename T>
  Tensor addConstant(const Type& type, ArrayRef<std::size_t> shape, ArrayRef<T> values,
                     const DebugContext& = {}) {
    return constant(type, shape, values);
  }
  template <typename T>
  Tensor addConstant(const Type& type, ArrayRef<std::size_t> shape, const std::vector<T>& values,
                     const DebugContext& = {}) {
    return constant(type, shape, ArrayRef<T>(values));
  }
  template <typename T>
  Tensor addConstant(const Type& type, ArrayRef<std::size_t> shape, const T* values,
                     const DebugContext& = {}) {
    std::size_t n = 1;
    for (std::size_t d : shape) n *= d;
    return constant(type, shape, ArrayRef<T>(values, n));
  }

  Tensor clone(const Type& type, const Tensor& t, const DebugContext& dc = {},
               TensorCloneMethod = TensorCloneMethod::PRESERVE_ORDER_UNLESS_ALIASES) {
    Tensor out = addVariable(type, t.shape(), dc);
    tessera_rec_copy_mapping(t.handle(), out.handle());
    return out;
  }
  Tensor clone(const Tensor& t, const DebugContext& dc = {},
               TensorCloneMethod m = TensorCloneMethod::PRESERVE_ORDER_UNLESS_ALIASES) {
    return clone(t.elementType(), t, dc, m);
  }
  // n of them, along a new first dim.
  Tensor cloneN(const Type& type, const Tensor& t, std::size_t n, const DebugContext& dc = {},
                TensorCloneMethod m = TensorCloneMethod::PRESERVE_ORDER_UNLESS_ALIASES) {
    std::vector<Tensor> parts;
    for (std::size_t i = 0; i < n; ++i) parts.push_back(clone(type, t, dc, m).expand({0}));
    return concat(parts);
  }
  Tensor cloneN(const Tensor& t, std::size_t n, const DebugContext& dc = {},
                TensorCloneMethod m = TensorCloneMethod::PRESERVE_ORDER_UNLESS_ALIASES) {
    return cloneN(t.elementType(), t, n, dc, m);
  }

  void setTileMapping(const Tensor& t, unsigned tile) {
    const tessera_tile_interval all{tile, 0, static_cast<int64_t>(t.numElements())};
    detail::checked_zero(tessera_rec_set_mapping(t.handle(), &all, 1));
  }
  void setTileMapping(const Tensor& t, const TileToTensorMapping& mapping) {
    std::vector<tessera_tile_interval> flat;
    for (std::size_t tile = 0; tile < mapping.size(); ++tile)
      for (const Interval& i : mapping[tile])
        flat.push_back({static_cast<int64_t>(tile), static_cast<int64_t>(i.begin()),
                        static_cast<int64_t>(i.end())});
    detail::checked_zero(
        tessera_rec_set_mapping(t.handle(), flat.data(), static_cast<int64_t>(flat.size())));
  }
  // One list of intervals of the flattened tensor for every tile.
  TileToTensorMapping getTileMapping(const Tensor& t, bool requireComplete = true) const {
    (void)requireComplete;
    int64_t n = 0;
    const tessera_tile_interval* m = tessera_rec_mapping(t.handle(), &n);
    TileToTensorMapping out(target_.getNumTiles());
    for (int64_t i = 0; i < n; ++i)
      out[static_cast<std::size_t>(m[i].tile)].emplace_back(static_cast<std::size_t>(m[i].begin),
                                                            static_cast<std::size_t>(m[i].end));
    return out;
  }
  TileToTensorMapping getTileMapping(const Tensor& t, bool* isComplete) const {
    if (isComplete) *isComplete = true;
    return getTileMapping(t);
  }
  // The intervals as they are: views keep the order of their variables.
  std::vector<std::vector<Interval>> getSortedContiguousRegions(
      const Tensor& t, ArrayRef<Interval> regions, bool removeAliasedIntervals = false,
      std::vector<std::size_t>* aliases = nullptr) const {
    (void)t;
    (void)removeAliasedIntervals;
    (void)aliases;
    std::vector<std::vector<Interval>> out;
    for (const Interval& i : regions) {
      if (!out.empty() && out.back().back().end() == i.begin())
        out.back().back() = Interval(out.back().back().begin(), i.end());
      else
        out.push_back({i});
    }
    return out;
  }

  template <typename T,
            typename = typename std::enable_if<std::is_convertible<T, double>::value>::type>
  void setInitialValue(const Tensor& t, T value) {
    initial(t, ArrayRef<T>(&value, 1));
  }
  template <typename T>
  void setInitialValue(const Tensor& t, ArrayRef<T> values) {
    initial(t, values);
  }
  template <typename T>
  void setInitialValue(const Tensor& t, const std::vector<T>& values) {
    initial(t, ArrayRef<T>(values));
  }

 private:
  template <typename T>
  struct Values {
    std::vector<double> numbers;
    std::vector<int64_t> integers;
    explicit Values(ArrayRef<T> v) {
      for (const T& x : v) {
        numbers.push_back(static_cast<double>(x));
        integers.push_back(static_cast<int64_t>(x));
      }
    }
  };
  template <typename T>
  Tensor constant(const Type& type, ArrayRef<std::size_t> shape, ArrayRef<T> values) {
    const std::vector<int64_t> s(shape.begin(), shape.end());
    const Values<T> v(values);
    return Tensor(detail::checked(tessera_rec_constant(
        r_, type.id(), static_cast<int32_t>(s.size()), s.data(), v.numbers.data(),
        v.integers.data(), static_cast<int64_t>(v.numbers.size()))));
  }
  template <typename T>
  void initial(const Tensor& t, ArrayRef<T> values) {
    const Values<T> v(values);
    detail::checked_zero(tessera_rec_set_initial(t.handle(), v.numbers.data(), v.integers.data(),
                                                 static_cast<int64_t>(v.numbers.size())));
  }

  tessera_recorder* r_;
  Target target_;
};

}  // namespace poplar
