// SPDX-License-Identifier: Apache-2.0
// Element-wise expressions of popops: their types, and their rows in the text IR.
#pragma once

#include "custom/compat/writer.h"

namespace tessera::compat {

enum UnaryOp : int32_t {
#define ROW(name, cls, fn) U_##name,
  TESSERA_UNARY_OPS(ROW)
#undef ROW
};

enum BinaryOp : int32_t {
#define ROW(name, cls, fn) B_##name,
  TESSERA_BINARY_OPS(ROW)
#undef ROW
};

enum TernaryOp : int32_t { T_CLAMP, T_SELECT };

// The tree of an expression with the type of each node.
struct ExprNode {
  tessera_expr e;
  std::vector<int> operands;
  int32_t type;
  bool weak;  // made of constants, which take the type of what they meet
};
std::vector<ExprNode> typed(const std::vector<tessera_expr>& e, const std::vector<const View*>& in,
                            const View* out);

Value write_expr(Writer& w, const std::vector<ExprNode>& nodes, const std::vector<Value>& in);
Value write_unary(Writer& w, int32_t op, const Value& x);
Value write_binary(Writer& w, int32_t op, const Value& a, const Value& b);

// Unsigned integers that the text IR has not (unsigned.cpp).
bool is_unsigned(int32_t type);
// An integer as the signed one of its bits.
int64_t wrapped(int64_t x, int32_t type);
// Signed numbers of the same order, and back.
Value in_order(Writer& w, const Value& x);
Value out_of_order(Writer& w, const Value& x, int32_t type);
bool needs_order(int32_t op);
Value binary_unsigned(Writer& w, int32_t op, const Value& a, const Value& b);
// From or to a type of other values.
Value cast_unsigned(Writer& w, const Value& x, int32_t type);

}  // namespace tessera::compat
