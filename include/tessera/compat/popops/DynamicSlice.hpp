// SPDX-License-Identifier: Apache-2.0
// Slices at places that are known when the program runs.
#pragma once

#include <vector>

#include "../poplar/Graph.hpp"
#include "../poplar/Program.hpp"

namespace popops {

// Plans are about layouts of the device: there is nothing to plan.
class SlicePlan {
 public:
  SlicePlan() {}
};

namespace detail {
inline void take_places(poplar::program::detail::Draft& d, const std::vector<std::size_t>& dims,
                        const std::vector<std::size_t>& sizes) {
  d.ints = {static_cast<int64_t>(dims.size())};
  for (std::size_t i : dims) d.ints.push_back(static_cast<int64_t>(i));
  for (std::size_t i : sizes) d.ints.push_back(static_cast<int64_t>(i));
}
}  // namespace detail

inline poplar::Tensor createSliceableTensor(poplar::Graph& graph, const poplar::Type& type,
                                            const std::vector<std::size_t>& shape,
                                            const std::vector<std::size_t>& dims,
                                            const std::vector<std::size_t>& sizes,
                                            std::size_t minGrainSize = 0,
                                            const poplar::DebugContext& dc = {}) {
  (void)dims;
  (void)sizes;
  (void)minGrainSize;
  return graph.addVariable(type, shape, dc);
}
inline poplar::Tensor createSliceableTensor(poplar::Graph& graph, const poplar::Type& type,
                                            const std::vector<std::size_t>& shape,
                                            const std::vector<std::size_t>&,
                                            const std::vector<std::size_t>&, const SlicePlan&,
                                            const poplar::OptionFlags&,
                                            const poplar::DebugContext& dc = {}) {
  return graph.addVariable(type, shape, dc);
}
inline poplar::Tensor createSliceTensor(poplar::Graph& graph, const poplar::Tensor& t,
                                        const std::vector<std::size_t>& dims,
                                        const std::vector<std::size_t>& sizes,
                                        std::size_t numIndices,
                                        const poplar::DebugContext& dc = {}) {
  std::vector<std::size_t> shape = t.shape();
  for (std::size_t i = 0; i < dims.size(); ++i) shape.at(dims[i]) = sizes.at(i);
  shape.insert(shape.begin(), numIndices);
  return graph.addVariable(t.elementType(), shape, dc);
}

inline poplar::Tensor dynamicSlice(poplar::Graph& graph, const poplar::Tensor& t,
                                   const poplar::Tensor& offset,
                                   const std::vector<std::size_t>& dims,
                                   const std::vector<std::size_t>& sizes,
                                   poplar::program::Sequence& prog,
                                   const poplar::DebugContext& = {},
                                   const poplar::OptionFlags& = {}) {
  poplar::program::detail::Draft d(TESSERA_DO_DYNAMIC_SLICE);
  d.in = {t.handle(), offset.handle()};
  detail::take_places(d, dims, sizes);
  const tessera_view* result = nullptr;
  prog.add(d.make(graph.recorder(), &result));
  return poplar::Tensor(result);
}
inline void dynamicSliceWithOutput(poplar::Graph& graph, const poplar::Tensor& out,
                                   const poplar::Tensor& t, const poplar::Tensor& offset,
                                   const std::vector<std::size_t>& dims,
                                   const std::vector<std::size_t>& sizes,
                                   poplar::program::Sequence& prog,
                                   const poplar::DebugContext& = {},
                                   const poplar::OptionFlags& = {}) {
  poplar::program::detail::Draft d(TESSERA_DO_DYNAMIC_SLICE);
  d.in = {t.handle(), offset.handle()};
  d.out = {out.handle()};
  detail::take_places(d, dims, sizes);
  prog.add(d.make(graph.recorder()));
}
inline void dynamicUpdate(poplar::Graph& graph, const poplar::Tensor& t, const poplar::Tensor& s,
                          const poplar::Tensor& offset, const std::vector<std::size_t>& dims,
                          const std::vector<std::size_t>& sizes, poplar::program::Sequence& prog,
                          const poplar::DebugContext& = {}, const poplar::OptionFlags& = {}) {
  poplar::program::detail::Draft d(TESSERA_DO_DYNAMIC_UPDATE);
  d.in = {s.handle(), offset.handle()};
  d.out = {t.handle()};
  detail::take_places(d, dims, sizes);
  prog.add(d.make(graph.recorder()));
}

// Rows of a table: offsets [n, 1], result [n, ..., 1, ...].
inline poplar::Tensor multiSlice(poplar::Graph& graph, const poplar::Tensor& t,
                                 const poplar::Tensor& offsets,
                                 const std::vector<std::size_t>& dims,
                                 const std::vector<std::size_t>& sizes,
                                 poplar::program::Sequence& prog, const SlicePlan&,
                                 const poplar::OptionFlags&, const poplar::DebugContext& = {}) {
  if (dims.size() != 1 || sizes.size() != 1 || sizes[0] != 1)
    throw poplar::graph_error("multiSlice: one dimension and slices of size 1 are supported");
  poplar::program::detail::Draft d(TESSERA_DO_MULTI_SLICE);
  d.in = {t.handle(), offsets.handle()};
  d.ints = {static_cast<int64_t>(dims[0])};
  const tessera_view* result = nullptr;
  prog.add(d.make(graph.recorder(), &result));
  return poplar::Tensor(result);
}

namespace detail {
inline void update_rows(poplar::Graph& graph, const poplar::Tensor& t, const poplar::Tensor& s,
                        const poplar::Tensor& offsets, const poplar::Tensor* scale,
                        const std::vector<std::size_t>& dims, const std::vector<std::size_t>& sizes,
                        poplar::program::Sequence& prog, bool add) {
  if (dims.size() != 1 || sizes.size() != 1 || sizes[0] != 1)
    throw poplar::graph_error("multiUpdate: one dimension and slices of size 1 are supported");
  poplar::program::detail::Draft d(TESSERA_DO_MULTI_UPDATE);
  d.in = {s.handle(), offsets.handle()};
  if (scale) d.in.push_back(scale->handle());
  d.out = {t.handle()};
  d.ints = {static_cast<int64_t>(dims[0]), add ? 1 : 0};
  prog.add(d.make(graph.recorder()));
}
}  // namespace detail

inline void multiUpdate(poplar::Graph& graph, const poplar::Tensor& t, const poplar::Tensor& s,
                        const poplar::Tensor& offsets, const std::vector<std::size_t>& dims,
                        const std::vector<std::size_t>& sizes, poplar::program::Sequence& prog,
                        const SlicePlan&, const poplar::OptionFlags&,
                        const poplar::DebugContext& = {}) {
  detail::update_rows(graph, t, s, offsets, nullptr, dims, sizes, prog, false);
}
inline void multiUpdateAdd(poplar::Graph& graph, const poplar::Tensor& t, const poplar::Tensor& s,
                           const poplar::Tensor& offsets, const poplar::Tensor& scale,
                           const std::vector<std::size_t>& dims,
                           const std::vector<std::size_t>& sizes, poplar::program::Sequence& prog,
                           const SlicePlan&, const poplar::OptionFlags&,
                           const poplar::DebugContext& = {}) {
  detail::update_rows(graph, t, s, offsets, &scale, dims, sizes, prog, true);
}

}  // namespace popops
