// SPDX-License-Identifier: Apache-2.0
// Shared by the files of the gather family: how index tensors select blocks of a tensor.
#pragma once

#include "ops/copy_nest.h"
#include "ops/kernel.h"

namespace tessera {

KernelPtr make_indexed(
    const StepDesc& d);  // embedding, index_select, index, index_put, embedding gradient

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

}  // namespace tessera
