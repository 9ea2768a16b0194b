// SPDX-License-Identifier: Apache-2.0
// Element-wise expressions as rows of the text IR.
#include "custom/compat/expr.h"

#include <cmath>

namespace tessera::compat {

namespace {

// Rows that are the function; the others are put together below.
const char* unary_row(int32_t op) {
  switch (op) {
    case U_ABSOLUTE:
      return "abs";
    case U_ASIN:
      return "asin";
    case U_BITWISE_NOT:
      return "bitwise_not";
    case U_CEIL:
      return "ceil";
    case U_COS:
      return "cos";
    case U_ERF:
      return "erf";
    case U_EXPONENT:
      return "exp";
    case U_EXPONENT_MINUS_ONE:
      return "expm1";
    case U_EXPONENT2:
      return "exp2";
    case U_FLOOR:
      return "floor";
    case U_GELU_ERF:
      return "gelu";
    case U_INVERSE:
      return "reciprocal";
    case U_IS_INF:
      return "isinf";
    case U_IS_NAN:
      return "isnan";
    case U_LOGARITHM:
      return "log";
    case U_LOGARITHM_ONE_PLUS:
      return "log1p";
    case U_LOGICAL_NOT:
      return "logical_not";
    case U_NEGATE:
      return "neg";
    case U_NEARBY_INT:
      return "round";
    case U_SIGNUM:
      return "sign";
    case U_SIN:
      return "sin";
    case U_TAN:
      return "tan";
    case U_TANH:
      return "tanh";
    case U_TRUNC:
      return "trunc";
    case U_SQRT:
      return "sqrt";
    case U_SQUARE:
      return "square";
    case U_SIGMOID:
      return "sigmoid";
    case U_RSQRT:
      return "rsqrt";
    case U_RELU:
      return "relu";
    default:
      return nullptr;
  }
}

const char* binary_row(int32_t op, bool real) {
  switch (op) {
    case B_ADD:
      return "add";
    case B_ATAN2:
      return "atan2";
    case B_BITWISE_AND:
      return "bitwise_and";
    case B_BITWISE_OR:
      return "bitwise_or";
    case B_BITWISE_XOR:
      return "bitwise_xor";
    case B_DIVIDE:
      return real ? "div" : "div_trunc";
    case B_EQUAL:
      return "eq";
    case B_GREATER_THAN_EQUAL:
      return "ge";
    case B_GREATER_THAN:
      return "gt";
    case B_LESS_THAN_EQUAL:
      return "le";
    case B_LOGICAL_AND:
      return "logical_and";
    case B_LOGICAL_OR:
      return "logical_or";
    case B_LESS_THAN:
      return "lt";
    case B_MAXIMUM:
      return "maximum";
    case B_MINIMUM:
      return "minimum";
    case B_MULTIPLY:
      return "mul";
    case B_NOT_EQUAL:
      return "ne";
    case B_POWER:
      return "pow";
    case B_REMAINDER:
      return "fmod";
    case B_SHIFT_LEFT:
      return "bitwise_left_shift";
    case B_SHIFT_RIGHT_SIGN_EXTEND:
      return "bitwise_right_shift";
    case B_SUBTRACT:
      return "sub";
    default:
      return nullptr;
  }
}

bool compares(int32_t op) {
  return op == B_EQUAL || op == B_GREATER_THAN_EQUAL || op == B_GREATER_THAN ||
         op == B_LESS_THAN_EQUAL || op == B_LOGICAL_AND || op == B_LOGICAL_OR ||
         op == B_LESS_THAN || op == B_NOT_EQUAL;
}

// Rows that take a number as their second operand, and the row that has the operands swapped.
const char* swapped(int32_t op) {
  switch (op) {
    case B_ADD:
      return "add";
    case B_MULTIPLY:
      return "mul";
    case B_EQUAL:
      return "eq";
    case B_NOT_EQUAL:
      return "ne";
    case B_GREATER_THAN:
      return "lt";
    case B_GREATER_THAN_EQUAL:
      return "le";
    case B_LESS_THAN:
      return "gt";
    case B_LESS_THAN_EQUAL:
      return "ge";
    default:
      return nullptr;
  }
}

bool takes_number(int32_t op) {
  return swapped(op) || op == B_SUBTRACT || op == B_DIVIDE || op == B_POWER || op == B_REMAINDER;
}

Value scalar(Writer& w, double x, int32_t type) {
  return w.full(x, static_cast<int64_t>(x), type, {});
}

Value rounded_away(Writer& w, const Value& x) {
  const Value whole = w.pointwise("trunc", {x}, x.type);
  const Value rest = w.pointwise("abs", {w.pointwise("sub", {x, whole}, x.type)}, x.type);
  const Value far = w.pointwise("ge", {rest, scalar(w, 0.5, x.type)}, BOOL);
  const Value next = w.pointwise("add", {whole, w.pointwise("sign", {x}, x.type)}, x.type);
  return w.pointwise("where", {far, next, whole}, x.type);
}

// x >> n with zeros from the left.
Value shift_right(Writer& w, const Value& x, const Value& n) {
  const int bits = 8 * row_of(x.type).bytes;
  const Value ones = scalar(w, -1, x.type), last = scalar(w, bits - 1, x.type);
  Value mask =
      w.pointwise("bitwise_left_shift", {ones, w.pointwise("sub", {last, n}, x.type)}, x.type);
  mask = w.pointwise("bitwise_left_shift", {mask, scalar(w, 1, x.type)}, x.type);
  mask = w.pointwise("bitwise_not", {mask}, x.type);
  return w.pointwise("bitwise_and", {w.pointwise("bitwise_right_shift", {x, n}, x.type), mask},
                     x.type);
}

std::string literal(const ExprNode& n) {
  if (is_real(n.type)) return number_text(n.e.number);
  if (n.type == BOOL) return n.e.integer ? "true" : "false";
  return std::to_string(wrapped(n.e.integer, n.type));
}

bool is_const(const ExprNode& n) {
  return n.e.kind == TESSERA_EXPR_CONST;
}

}  // namespace

Value write_unary(Writer& w, int32_t op, const Value& x) {
  if (is_unsigned(x.type) && op == U_ABSOLUTE) return x;
  if (is_unsigned(x.type) && op == U_SIGNUM)
    return w.cast(w.node("ne", Writer::ref(x) + ", 0", BOOL, x.shape), x.type);
  if (const char* row = unary_row(op)) {
    const bool asks = op == U_IS_INF || op == U_IS_NAN || op == U_LOGICAL_NOT;
    return w.pointwise(row, {x}, asks ? static_cast<int32_t>(BOOL) : x.type);
  }
  if (op == U_CBRT) {
    const Value root =
        w.node("pow", Writer::ref(w.pointwise("abs", {x}, x.type)) + ", " + number_text(1.0 / 3),
               x.type, x.shape);
    return w.pointwise("copysign", {root, x}, x.type);
  }
  if (op == U_IS_FINITE) {
    const Value size = w.pointwise("abs", {x}, x.type);
    return w.node("lt", Writer::ref(size) + ", inf", BOOL, x.shape);
  }
  return rounded_away(w, x);  // U_ROUND
}

Value write_binary(Writer& w, int32_t op, const Value& a, const Value& b) {
  const int32_t type = a.type;
  if (is_unsigned(type) && needs_order(op)) return binary_unsigned(w, op, a, b);
  if (const char* row = binary_row(op, is_real(type)))
    return w.pointwise(row, {a, b}, compares(op) ? static_cast<int32_t>(BOOL) : type);
  if (op == B_BITWISE_XNOR)
    return w.pointwise("bitwise_not", {w.pointwise("bitwise_xor", {a, b}, type)}, type);
  if (op == B_SHIFT_RIGHT) return shift_right(w, a, b);
  if (op == B_INV_STD_DEV_TO_VARIANCE)
    return w.pointwise(
        "sub", {w.pointwise("reciprocal", {w.pointwise("square", {a}, type)}, type), b}, type);
  return w.pointwise("rsqrt", {w.pointwise("add", {a, b}, type)},
                     type);  // variance to its inverse root
}

Value write_expr(Writer& w, const std::vector<ExprNode>& nodes, const std::vector<Value>& in) {
  std::vector<Value> done(nodes.size());
  const auto value = [&](int i) -> const Value& {
    if (!done[i].there())
      done[i] = w.full(nodes[i].e.number, nodes[i].e.integer, nodes[i].type, {});
    return done[i];
  };
  for (size_t i = 0; i < nodes.size(); ++i) {
    const ExprNode& n = nodes[i];
    const std::vector<int>& o = n.operands;
    switch (n.e.kind) {
      case TESSERA_EXPR_CONST:
        break;  // written where it is used
      case TESSERA_EXPR_PLACEHOLDER:
        done[i] = in[n.e.op];
        break;
      case TESSERA_EXPR_CAST:
        done[i] = w.cast(value(o[0]), n.type);
        break;
      case TESSERA_EXPR_UNARY:
        done[i] = write_unary(w, n.e.op, value(o[0]));
        break;
      case TESSERA_EXPR_BINARY: {
        const ExprNode &a = nodes[o[0]], &b = nodes[o[1]];
        const bool real = is_real(a.type);
        if (is_unsigned(a.type) && needs_order(n.e.op))
          done[i] = write_binary(w, n.e.op, value(o[0]), value(o[1]));
        else if (is_const(b) && !is_const(a) && takes_number(n.e.op))
          done[i] = w.node(binary_row(n.e.op, real), Writer::ref(value(o[0])) + ", " + literal(b),
                           n.type, value(o[0]).shape);
        else if (is_const(a) && !is_const(b) && swapped(n.e.op))
          done[i] = w.node(swapped(n.e.op), Writer::ref(value(o[1])) + ", " + literal(a), n.type,
                           value(o[1]).shape);
        else
          done[i] = write_binary(w, n.e.op, value(o[0]), value(o[1]));
        break;
      }
      default: {
        const Value a = value(o[0]), b = value(o[1]), c = value(o[2]);
        done[i] = n.e.op == T_SELECT
                      ? w.pointwise("where", {c, a, b}, n.type)
                      : write_binary(w, B_MINIMUM, write_binary(w, B_MAXIMUM, a, b), c);
      }
    }
  }
  return value(static_cast<int>(nodes.size()) - 1);
}

}  // namespace tessera::compat
