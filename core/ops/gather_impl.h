// SPDX-License-Identifier: Apache-2.0
// Shared by the files of the gather family: how index tensors select blocks of a tensor.
#pragma once

#include "ir/graph.h"
#include "ops/copy_nest.h"
#include "ops/kernel.h"

namespace tessera {

// Along one dim: gather, scatter, scatter_add, scatter_reduce.
std::vector<TensorType> infer_gather_dim(const Graph& g, const Node& n);
KernelPtr make_gather_dim(const StepDesc& d);
// Whole blocks: embedding, index, index_put and their relatives; the gradient of embedding.
std::vector<TensorType> infer_indexed(const Graph& g, const Node& n);
KernelPtr make_indexed(const StepDesc& d);
KernelPtr make_embedding_grad(const StepDesc& d);
// Bags of rows and segments.
std::vector<TensorType> infer_bag(const Graph& g, const Node& n);
KernelPtr make_bag(const StepDesc& d);
// What a mask or counts select: masked_scatter, nonzero_static, repeat_interleave.
std::vector<TensorType> infer_masked(const Graph& g, const Node& n);
KernelPtr make_masked(const StepDesc& d);

// Index tensors, each for one dim of the indexed tensor; they broadcast together.
struct IndexList {
  std::vector<int> operand;  // position in the step's inputs
  std::vector<int64_t> dim;  // indexed dim
};

// The tensors among the entries of an index argument, e.g. [none, %1] -> dim 1.
IndexList index_list(const Arg& list);

Dims broadcast_shapes(const std::vector<Dims>& shapes);

// Where the broadcast index dims stand in the result: at the first indexed dim if all are
// neighbours, else in front.
int64_t index_position(const IndexList& list);

Dims indexed_shape(const Dims& x, const IndexList& list, const Dims& index_shape);

// "sum", "prod", "amax" or "amin".
kernels::Combine combination(const std::string& reduce);

// The name of an op without its overload, for messages.
std::string_view base_name(Op op);

void check_index_dtype(Op op, const TensorType& t);

// A scalar counts as a vector of one element.
TensorRef at_least_1d(TensorRef t);

// Adds to offsets[k] what entry k of the walk contributes; a wrong index is reported and leaves an
// offset that stays negative. Whether all were right.
bool add_offsets(const RunCtx& c, Op op, kernels::IndexWalk w, bool wraps, int64_t* offsets);

// Offsets are made for so many blocks at a time.
constexpr int64_t kOffsetChunk = 512;

// Whether a step that starts from a copy of `x` found its result in x's own memory.
inline bool in_place(const RunCtx& c, const TensorRef& x, const TensorRef& out) {
  return c.ptr<std::byte>(x) == c.ptr<std::byte>(out);
}

}  // namespace tessera
