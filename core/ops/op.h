// SPDX-License-Identifier: Apache-2.0
// The op enumeration and the facts of the rows of pointwise.def and ops.def. The build makes the
// enumerators from the rows (cmake/op_names.cmake); the rest of a row is read by op.cpp,
// registry.cpp and codegen/row_eval.h alone.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace tessera {

enum class Op : uint16_t {
#include "ops/op_names.inc"
  kCount
};

// What an op can be for the compiler.
enum class OpKind : uint8_t {
  kPointwise,   // formula in pointwise.def, fuses
  kView,        // costs nothing: another look at the same memory
  kStructured,  // infer, work and make in its family file
};

// Result type rule of a pointwise row.
enum class DTypeRule : uint8_t {
  kSame,    // the promoted operand type
  kNumber,  // the same, and it is not bool
  kReal,    // the same, and it is a float
  kInt,     // the same, and it is an integer
  kWhole,   // the same, and it is an integer or bool
  kFloat,   // integers become f32
  kBool,    // a comparison
  kGiven,   // stated by the node (casts, fills)
};

// What passes ask about ops, as flags in the last but one column of a row.
enum OpFact : uint16_t {
  kRounds = 1 << 0,     // results are computed and rounded; pointwise rows do so unless kExact
  kExact = 1 << 1,      // results are moved or made in their type
  kPicks = 1 << 2,      // a result is one of the operands, up to its sign
  kDivides = 1 << 3,    // integers are divided by the second operand, which must not be zero
  kUpdates = 1 << 4,    // the result is the first operand with some elements changed: where both
                        // share memory, only those are written, and none if an index is wrong
  kHalfway = 1 << 5,    // as kUpdates, but elements before a wrong index may have been written
  kAnyLayout = 1 << 6,  // computes in whatever order of dims the images have in memory
  kFuses = 1 << 7,      // a reduction that may end a fused region
  kDouble = 1 << 8,     // has kernels for float64; pointwise rows and views always do
};

std::string_view op_text(Op op);
std::optional<Op> op_from_text(std::string_view text);
OpKind op_kind(Op op);
inline bool is_pointwise(Op op) {
  return op_kind(op) == OpKind::kPointwise;
}
inline bool is_view(Op op) {
  return op_kind(op) == OpKind::kView;
}
int pointwise_arity(Op op);
DTypeRule pointwise_rule(Op op);
int pointwise_flops(Op op);
// What a structured row says of its arguments, see ops.def.
std::string_view op_signature(Op op);
int op_facts(Op op);
inline bool has_fact(Op op, OpFact fact) {
  return (op_facts(op) & fact) != 0;
}

}  // namespace tessera
