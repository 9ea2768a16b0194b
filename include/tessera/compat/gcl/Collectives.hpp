// SPDX-License-Identifier: Apache-2.0
// Collectives over replicas. Replicas exchange parts of a tensor; all else each computes for
// itself, in the order of the group, so that all have the same bits.
#pragma once

#include <vector>

#include "../detail/not_here.h"
#include "../poplar/Graph.hpp"
#include "../poplar/Program.hpp"
#include "../popops/ElementWise.hpp"
#include "../popops/Reduce.hpp"
#include "CollectiveTypes.hpp"

namespace gcl {

namespace detail {
inline poplar::Tensor exchange(poplar::Graph& graph, const poplar::Tensor& x, const Groups& g,
                               poplar::program::Sequence& prog) {
  poplar::program::detail::Draft d(TESSERA_DO_EXCHANGE);
  d.in = {x.handle()};
  d.ints = {static_cast<int64_t>(g.size), g.stride};
  const tessera_view* result = nullptr;
  prog.add(d.make(graph.recorder(), &result));
  return poplar::Tensor(result);
}

// One of the tensors of a group, which the first dim counts.
inline poplar::Tensor reduced(poplar::Graph& graph, const poplar::Tensor& x, CollectiveOperator op,
                              poplar::program::Sequence& prog) {
  using popops::Operation;
  static const Operation operations[] = {
      Operation::ADD, Operation::ADD,         Operation::MUL,        Operation::MIN,
      Operation::MAX, Operation::LOGICAL_AND, Operation::LOGICAL_OR, Operation::SQUARE_ADD};
  if (op == CollectiveOperator::LOCAL)
    throw poplar::poplar_error("gcl: LOCAL is for reduceScatterCrossReplica");
  const poplar::Tensor out =
      popops::reduce(graph, x, x.elementType(), {0}, {operations[static_cast<int>(op)]}, prog);
  if (op == CollectiveOperator::MEAN)
    popops::mapInPlace(graph, popops::expr::_1 * (1.0f / static_cast<float>(x.dim(0))), {out},
                       prog);
  return out;
}
}  // namespace detail

// Part i of the result is this replica's part of the data of the i-th replica.
inline poplar::Tensor allToAllCrossReplica(poplar::Graph& graph, const poplar::Tensor& data,
                                           poplar::program::Sequence& prog, const CommGroup& group,
                                           const poplar::DebugContext& = {},
                                           const poplar::OptionFlags& = {}) {
  return detail::exchange(graph, data, detail::groups_of(group), prog);
}
// [n, ...]: the data of all.
inline poplar::Tensor allGatherCrossReplica(poplar::Graph& graph, const poplar::Tensor& data,
                                            poplar::program::Sequence& prog, const CommGroup& group,
                                            const poplar::DebugContext& = {},
                                            const poplar::OptionFlags& = {}) {
  const detail::Groups g = detail::groups_of(group);
  return detail::exchange(graph, data.expand({0}).broadcast(static_cast<unsigned>(g.size), 0), g,
                          prog);
}
inline poplar::Tensor allReduceCrossReplica(poplar::Graph& graph, const poplar::Tensor& data,
                                            CollectiveOperator op, poplar::program::Sequence& prog,
                                            const CommGroup& group,
                                            const poplar::DebugContext& = {},
                                            const poplar::OptionFlags& = {}) {
  return detail::reduced(graph, allGatherCrossReplica(graph, data, prog, group), op, prog);
}
inline std::vector<poplar::Tensor> allReduceCrossReplica(
    poplar::Graph& graph, const std::vector<poplar::Tensor>& datas, CollectiveOperator op,
    poplar::program::Sequence& prog, const CommGroup& group, const poplar::DebugContext& = {},
    const poplar::OptionFlags& = {}) {
  std::vector<poplar::Tensor> out;
  for (const poplar::Tensor& t : datas)
    out.push_back(allReduceCrossReplica(graph, t, op, prog, group));
  return out;
}
inline void allReduceToDestinationCrossReplica(
    poplar::Graph& graph, const poplar::Tensor& data, const poplar::Tensor& destination,
    CollectiveOperator op, poplar::program::Sequence& prog, const CommGroup& group,
    const poplar::DebugContext& = {}, const poplar::OptionFlags& = {}) {
  prog.add(poplar::program::Copy(allReduceCrossReplica(graph, data, op, prog, group), destination));
}
inline void allReduceInPlaceCrossReplica(poplar::Graph& graph, const poplar::Tensor& data,
                                         CollectiveOperator op, poplar::program::Sequence& prog,
                                         const CommGroup& group, const poplar::DebugContext& = {},
                                         const poplar::OptionFlags& = {}) {
  allReduceToDestinationCrossReplica(graph, data, data, op, prog, group);
}
// Flat: this replica's part of the reduction, which is as long for all; the last may end in zeros.
inline poplar::Tensor reduceScatterCrossReplica(poplar::Graph& graph, const poplar::Tensor& data,
                                                CollectiveOperator op,
                                                poplar::program::Sequence& prog,
                                                const CommGroup& group,
                                                const poplar::DebugContext& = {},
                                                const poplar::OptionFlags& = {}) {
  const detail::Groups g = detail::groups_of(group);
  const std::size_t n = data.numElements(), part = (n + g.size - 1) / g.size;
  poplar::Tensor flat = data.flatten();
  if (part * g.size != n)
    flat = poplar::concat(flat, graph.addConstant(data.elementType(), {part * g.size - n}, 0.0f));
  return detail::reduced(graph, detail::exchange(graph, flat.reshape({g.size, part}), g, prog), op,
                         prog);
}
inline poplar::Tensor broadcastCrossReplica(poplar::Graph& graph, const poplar::Tensor& data,
                                            poplar::program::Sequence& prog,
                                            const CommGroup& group = {}, unsigned rootReplica = 0,
                                            const poplar::DebugContext& = {},
                                            const poplar::OptionFlags& = {}) {
  return allGatherCrossReplica(graph, data, prog, group)[rootReplica];
}

// Over all replicas.
inline poplar::Tensor allToAllCrossReplica(poplar::Graph& graph, const poplar::Tensor& data,
                                           poplar::program::Sequence& prog,
                                           const poplar::DebugContext& = {},
                                           const poplar::OptionFlags& = {}) {
  return allToAllCrossReplica(graph, data, prog, CommGroup());
}
inline poplar::Tensor allGatherCrossReplica(poplar::Graph& graph, const poplar::Tensor& data,
                                            poplar::program::Sequence& prog,
                                            const poplar::DebugContext& = {},
                                            const poplar::OptionFlags& = {}) {
  return allGatherCrossReplica(graph, data, prog, CommGroup());
}
inline poplar::Tensor allReduceCrossReplica(poplar::Graph& graph, const poplar::Tensor& data,
                                            CollectiveOperator op, poplar::program::Sequence& prog,
                                            const poplar::DebugContext& = {},
                                            const poplar::OptionFlags& = {}) {
  return allReduceCrossReplica(graph, data, op, prog, CommGroup());
}
inline void allReduceInPlaceCrossReplica(poplar::Graph& graph, const poplar::Tensor& data,
                                         CollectiveOperator op, poplar::program::Sequence& prog,
                                         const poplar::DebugContext& = {},
                                         const poplar::OptionFlags& = {}) {
  allReduceInPlaceCrossReplica(graph, data, op, prog, CommGroup());
}
inline poplar::Tensor reduceScatterCrossReplica(poplar::Graph& graph, const poplar::Tensor& data,
                                                CollectiveOperator op,
                                                poplar::program::Sequence& prog,
                                                const poplar::DebugContext& = {},
                                                const poplar::OptionFlags& = {}) {
  return reduceScatterCrossReplica(graph, data, op, prog, CommGroup());
}

TESSERA_NOT_HERE(allReduceWithinReplica)
TESSERA_NOT_HERE(allGatherWithinReplica)
TESSERA_NOT_HERE(reduceScatterWithinReplica)

}  // namespace gcl
