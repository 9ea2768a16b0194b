// SPDX-License-Identifier: Apache-2.0
// The table of ops: for each row of ops.def the functions of its family. Nothing registers itself;
// a family that misses a function does not link.
#pragma once

#include <vector>

#include "base/tensor.h"
#include "base/work.h"
#include "ir/graph.h"
#include "ops/kernel.h"

namespace tessera {

struct OpRow {
  std::string_view text;
  // Result types (row-major) from the operand types and arguments; throws UserError for a call that
  // makes no sense.
  std::vector<TensorType> (*infer)(const Graph&, const Node&);
  Work (*work)(const Graph&, const Node&);
  KernelPtr (*make)(const StepDesc&);
  // Whether the kernel reads operand `index` with these physical strides; contiguous row-major
  // always works.
  bool (*accepts)(Op op, int index, const TensorRef& physical);
};

const OpRow& op_row(Op op);  // structured and view ops only

// The functions of a family. `view` has no kernel; `fused` lives in codegen/, `host` and `flow` in
// runtime/.
#define FAMILY(family)                                               \
  std::vector<TensorType> infer_##family(const Graph&, const Node&); \
  Work work_##family(const Graph&, const Node&);                     \
  KernelPtr make_##family(const StepDesc&);                          \
  bool accepts_##family(Op op, int index, const TensorRef& physical);
#include "ops/op_families.inc"
#undef FAMILY

std::vector<TensorType> infer_view(const Graph&, const Node&);
std::vector<TensorType> infer_flow(const Graph&, const Node&);

}  // namespace tessera
