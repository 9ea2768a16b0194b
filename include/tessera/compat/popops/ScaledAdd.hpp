// SPDX-License-Identifier: Apache-2.0
// a += k b
#pragma once

#include "ElementWise.hpp"

namespace popops {

inline void scaledAddTo(poplar::Graph& graph, poplar::Tensor a, poplar::Tensor b, float k,
                        poplar::program::Sequence& prog, const poplar::DebugContext& = {},
                        const poplar::OptionFlags& = {}) {
  const expr::PlaceHolder x(1), y(2);
  if (a.elementType() == b.elementType())
    mapInPlace(graph, x + y * k, {a, b}, prog);
  else
    mapInPlace(graph, x + expr::Cast(y, a.elementType()) * k, {a, b}, prog);
}
inline void scaledAddTo(poplar::Graph& graph, poplar::Tensor a, poplar::Tensor b, poplar::Tensor k,
                        poplar::program::Sequence& prog, const poplar::DebugContext& = {},
                        const poplar::OptionFlags& = {}) {
  const expr::PlaceHolder x(1), y(2), z(3);
  const poplar::Type t = a.elementType();
  mapInPlace(graph, x + expr::Cast(y, t) * expr::Cast(z, t), {a, b, k}, prog);
}
inline void scaledSubtractFrom(poplar::Graph& graph, poplar::Tensor a, poplar::Tensor b, float k,
                               poplar::program::Sequence& prog, const poplar::DebugContext& = {},
                               const poplar::OptionFlags& = {}) {
  scaledAddTo(graph, a, b, -k, prog);
}
// a = j a + k b
inline void scaledAddTo(poplar::Graph& graph, poplar::Tensor a, float j, poplar::Tensor b, float k,
                        poplar::program::Sequence& prog, const poplar::DebugContext& = {},
                        const poplar::OptionFlags& = {}) {
  const expr::PlaceHolder x(1), y(2);
  mapInPlace(graph, x * j + expr::Cast(y, a.elementType()) * k, {a, b}, prog);
}

}  // namespace popops
