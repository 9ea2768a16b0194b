// SPDX-License-Identifier: Apache-2.0
// Matrix products.
#pragma once

#include <vector>

#include "../poplar/Graph.hpp"
#include "../poplar/Program.hpp"

namespace poplin {

class PlanningCache {};
namespace matmul {
using PlanningCache = poplin::PlanningCache;
}

namespace detail {
inline poplar::Tensor product(poplar::Graph& graph, const poplar::Tensor& a,
                              const poplar::Tensor& b, poplar::program::Sequence& prog,
                              const poplar::Type& type) {
  poplar::program::detail::Draft d(TESSERA_DO_MATMUL);
  d.in = {a.handle(), b.handle()};
  d.ints = {type.id()};
  const tessera_view* result = nullptr;
  prog.add(d.make(graph.recorder(), &result));
  return poplar::Tensor(result);
}
inline void add_product(poplar::Graph& graph, const poplar::Tensor& c, float k,
                        const poplar::Tensor& a, const poplar::Tensor& b,
                        poplar::program::Sequence& prog) {
  poplar::program::detail::Draft d(TESSERA_DO_MATMUL_ADD);
  d.in = {a.handle(), b.handle()};
  d.out = {c.handle()};
  d.reals = {static_cast<double>(k)};
  prog.add(d.make(graph.recorder()));
}
}  // namespace detail

// [m, k] by [k, n]; a vector on the left is a row, on the right a column.
inline poplar::Tensor matMul(poplar::Graph& graph, const poplar::Tensor& a, const poplar::Tensor& b,
                             poplar::program::Sequence& prog, const poplar::Type& outType,
                             const poplar::DebugContext& = {}, const poplar::OptionFlags& = {},
                             PlanningCache* = nullptr) {
  if (b.rank() == 1) return detail::product(graph, a, b.expand({1}), prog, outType).squeeze({1});
  return detail::product(graph, a, b, prog, outType);
}
inline poplar::Tensor matMul(poplar::Graph& graph, const poplar::Tensor& a, const poplar::Tensor& b,
                             poplar::program::Sequence& prog, const poplar::DebugContext& = {},
                             const poplar::OptionFlags& = {}, PlanningCache* = nullptr) {
  return matMul(graph, a, b, prog, a.elementType());
}
inline void matMulWithOutput(poplar::Graph& graph, const poplar::Tensor& a, const poplar::Tensor& b,
                             poplar::Tensor& out, poplar::program::Sequence& prog,
                             const poplar::DebugContext& = {}, const poplar::OptionFlags& = {},
                             PlanningCache* = nullptr) {
  prog.add(poplar::program::Copy(matMul(graph, a, b, prog, out.elementType()), out));
}
// c += k a b
inline void matMulAcc(poplar::Graph& graph, const poplar::Tensor& c, float k,
                      const poplar::Tensor& a, const poplar::Tensor& b,
                      poplar::program::Sequence& prog, const poplar::DebugContext& = {},
                      const poplar::OptionFlags& = {}, PlanningCache* = nullptr) {
  detail::add_product(graph, c, k, a, b, prog);
}

// The same for every one of the first dim.
inline poplar::Tensor matMulGrouped(poplar::Graph& graph, const poplar::Tensor& a,
                                    const poplar::Tensor& b, poplar::program::Sequence& prog,
                                    const poplar::Type& outType, const poplar::DebugContext& = {},
                                    const poplar::OptionFlags& = {}, PlanningCache* = nullptr) {
  return detail::product(graph, a, b, prog, outType);
}
inline void matMulGroupedWithOutput(poplar::Graph& graph, const poplar::Tensor& a,
                                    const poplar::Tensor& b, poplar::Tensor& out,
                                    poplar::program::Sequence& prog,
                                    const poplar::DebugContext& = {},
                                    const poplar::OptionFlags& = {}, PlanningCache* = nullptr) {
  prog.add(poplar::program::Copy(detail::product(graph, a, b, prog, out.elementType()), out));
}
inline void matMulGroupedAcc(poplar::Graph& graph, const poplar::Tensor& c, float k,
                             const poplar::Tensor& a, const poplar::Tensor& b,
                             poplar::program::Sequence& prog, const poplar::DebugContext& = {},
                             const poplar::OptionFlags& = {}, PlanningCache* = nullptr) {
  detail::add_product(graph, c, k, a, b, prog);
}

// Operands in the layout that a product likes best: any.
inline poplar::Tensor createMatMulInputLHS(poplar::Graph& graph, const poplar::Type& type,
                                           const poplar::Type&, const std::vector<std::size_t>& a,
                                           const std::vector<std::size_t>&,
                                           const poplar::DebugContext& dc = {},
                                           const poplar::OptionFlags& = {},
                                           PlanningCache* = nullptr) {
  return graph.addVariable(type, a, dc);
}
inline poplar::Tensor createMatMulInputRHS(poplar::Graph& graph, const poplar::Type& type,
                                           const poplar::Type&, const std::vector<std::size_t>&,
                                           const std::vector<std::size_t>& b,
                                           const poplar::DebugContext& dc = {},
                                           const poplar::OptionFlags& = {},
                                           PlanningCache* = nullptr) {
  return graph.addVariable(type, b, dc);
}
inline poplar::Tensor createMatMulGroupedInputLHS(poplar::Graph& graph, const poplar::Type& type,
                                                  const poplar::Type& outType,
                                                  const std::vector<std::size_t>& a,
                                                  const std::vector<std::size_t>& b,
                                                  const poplar::DebugContext& dc = {},
                                                  const poplar::OptionFlags& = {},
                                                  PlanningCache* = nullptr) {
  return createMatMulInputLHS(graph, type, outType, a, b, dc);
}
inline poplar::Tensor createMatMulGroupedInputRHS(poplar::Graph& graph, const poplar::Type& type,
                                                  const poplar::Type& outType,
                                                  const std::vector<std::size_t>& a,
                                                  const std::vector<std::size_t>& b,
                                                  const poplar::DebugContext& dc = {},
                                                  const poplar::OptionFlags& = {},
                                                  PlanningCache* = nullptr) {
  return createMatMulInputRHS(graph, type, outType, a, b, dc);
}
// The transposed matrices of all groups.
inline poplar::Tensor transposeGroupedMatrix(const poplar::Tensor& t) {
  return t.dimShuffle({0, 2, 1});
}

}  // namespace poplin
