// SPDX-License-Identifier: Apache-2.0
// Reductions over dims, which the result does not have.
#pragma once

#include <vector>

#include "../poplar/Graph.hpp"
#include "../poplar/Program.hpp"
#include "OperationDef.hpp"

namespace popops {

struct ReduceParams {
  ReduceParams() = default;
  // scale: a FLOAT scalar that the result is multiplied by.
  ReduceParams(popops::Operation op, bool update = false)
      : op(op), update(update), useScale(false) {}
  ReduceParams(popops::Operation op, bool update, const poplar::Tensor& scale)
      : op(op), update(update), scale(scale), useScale(true) {}

  popops::Operation op = popops::Operation::ADD;
  bool update = false;
  poplar::Tensor scale;
  bool useScale = false;
};

namespace detail {
inline poplar::Tensor reduce_to(poplar::Graph& graph, const poplar::Tensor& in,
                                const poplar::Type& type, const std::vector<std::size_t>& dims,
                                const ReduceParams& params, poplar::program::Sequence& prog,
                                const poplar::Tensor* out) {
  poplar::program::detail::Draft d(TESSERA_DO_REDUCE);
  d.in = {in.handle()};
  if (params.useScale) d.in.push_back(params.scale.handle());
  if (out) d.out = {out->handle()};
  d.ints = {static_cast<int64_t>(params.op), params.update ? 1 : 0, type.id()};
  for (std::size_t i : dims) d.ints.push_back(static_cast<int64_t>(i));
  const tessera_view* result = nullptr;
  prog.add(d.make(graph.recorder(), &result));
  return poplar::Tensor(result);
}
}  // namespace detail

inline poplar::Tensor reduce(poplar::Graph& graph, const poplar::Tensor& in,
                             const poplar::Type& outType, const std::vector<std::size_t>& dims,
                             ReduceParams params, poplar::program::Sequence& prog,
                             const poplar::DebugContext& = {}, const poplar::OptionFlags& = {}) {
  return detail::reduce_to(graph, in, outType, dims, params, prog, nullptr);
}
inline poplar::Tensor reduce(poplar::Graph& graph, const poplar::Tensor& in,
                             const std::vector<std::size_t>& dims, ReduceParams params,
                             poplar::program::Sequence& prog, const poplar::DebugContext& = {},
                             const poplar::OptionFlags& = {}) {
  return detail::reduce_to(graph, in, in.elementType(), dims, params, prog, nullptr);
}
inline void reduceWithOutput(poplar::Graph& graph, const poplar::Tensor& in,
                             const poplar::Tensor& out, const std::vector<std::size_t>& dims,
                             ReduceParams params, poplar::program::Sequence& prog,
                             const poplar::DebugContext& = {}, const poplar::OptionFlags& = {}) {
  detail::reduce_to(graph, in, out.elementType(), dims, params, prog, &out);
}

struct SingleReduceOp {
  poplar::Tensor in;
  std::vector<std::size_t> dims;
  ReduceParams params;
  poplar::Type outType;
  bool useOutType = false;

  SingleReduceOp(poplar::Tensor in, std::vector<std::size_t> dims, ReduceParams params,
                 poplar::Type outType, std::string = "")
      : in(in), dims(dims), params(params), outType(outType), useOutType(true) {}
  SingleReduceOp(poplar::Tensor in, std::vector<std::size_t> dims, ReduceParams params,
                 std::string = "")
      : in(in), dims(dims), params(params) {}
};

inline void reduceMany(poplar::Graph& graph, const std::vector<SingleReduceOp>& ops,
                       std::vector<poplar::Tensor>& outputs, poplar::program::Sequence& prog,
                       const poplar::DebugContext& = {}, const poplar::OptionFlags& = {}) {
  const bool given = !outputs.empty();
  for (std::size_t i = 0; i < ops.size(); ++i) {
    const SingleReduceOp& o = ops[i];
    if (given) {
      reduceWithOutput(graph, o.in, outputs.at(i), o.dims, o.params, prog);
    } else {
      const poplar::Type type = o.useOutType ? o.outType : o.in.elementType();
      outputs.push_back(reduce(graph, o.in, type, o.dims, o.params, prog));
    }
  }
}

}  // namespace popops
