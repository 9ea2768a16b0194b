// SPDX-License-Identifier: Apache-2.0
// The op enumeration, made from the rows of pointwise.def and ops.def.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace tessera {

enum class Op : uint16_t {
#define POINTWISE(name, text, arity, rule, flops, body) name,
#include "ops/pointwise.def"
#undef POINTWISE
#define OP(name, text, family, signature) name,
#include "ops/ops.def"
#undef OP
  kCount
};

// The four shapes an op can have for the compiler.
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

}  // namespace tessera
