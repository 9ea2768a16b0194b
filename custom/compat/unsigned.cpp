// SPDX-License-Identifier: Apache-2.0
// Unsigned integers of 16, 32 and 64 bits. The text IR has signed ones of the same bits: sums,
// products and bits are the same, order and quotients are taken of wider or shifted numbers.
#include "custom/compat/expr.h"

namespace tessera::compat {

bool is_unsigned(int32_t type) {
  return type == UNSIGNED_INT || type == UNSIGNED_SHORT || type == UNSIGNED_LONGLONG;
}

int64_t wrapped(int64_t x, int32_t type) {
  switch (row_of(type).bytes) {
    case 2:
      return static_cast<int16_t>(x);
    case 4:
      return static_cast<int32_t>(x);
    default:
      return x;
  }
}

namespace {

Value flipped(Writer& w, const Value& x) {
  return w.pointwise("bitwise_xor", {x, w.full(0, INT64_MIN, LONGLONG, {})}, LONGLONG);
}

}  // namespace

Value widened(Writer& w, const Value& x) {
  const int64_t mask = x.type == UNSIGNED_INT ? 0xffffffff : 0xffff;
  const Value wide = w.node("_to_copy", Writer::ref(x), LONGLONG, x.shape);
  return w.pointwise("bitwise_and", {wide, w.full(0, mask, LONGLONG, {})}, LONGLONG);
}

Value in_order(Writer& w, const Value& x) {
  if (!is_unsigned(x.type)) return x;
  if (x.type == UNSIGNED_LONGLONG) return flipped(w, {x.id, LONGLONG, x.shape});
  return widened(w, x);
}

Value out_of_order(Writer& w, const Value& x, int32_t type) {
  if (!is_unsigned(type)) return x;
  Value y = type == UNSIGNED_LONGLONG ? flipped(w, x) : x;
  if (type == UNSIGNED_LONGLONG) return {y.id, type, y.shape};
  return w.node("_to_copy", Writer::ref(y), type, y.shape);
}

Value cast_unsigned(Writer& w, const Value& x, int32_t type) {
  if (is_real(x.type))  // by 64 bits: more than a signed number of the same size holds
    return w.node("_to_copy", Writer::ref(w.node("_to_copy", Writer::ref(x), LONGLONG, x.shape)),
                  type, x.shape);
  if (x.type != UNSIGNED_LONGLONG)
    return w.node("_to_copy", Writer::ref(widened(w, x)), type, x.shape);
  const Value as_signed = w.node("_to_copy", Writer::ref(x), FLOAT, x.shape);
  const Value more =
      w.node("add", Writer::ref(as_signed) + ", 18446744073709551616.0", FLOAT, x.shape);
  const Value negative = w.node("lt", Writer::ref(x) + ", 0", BOOL, x.shape);
  return w.cast(w.pointwise("where", {negative, more, as_signed}, FLOAT), type);
}

bool needs_order(int32_t op) {
  switch (op) {
    case B_LESS_THAN:
    case B_LESS_THAN_EQUAL:
    case B_GREATER_THAN:
    case B_GREATER_THAN_EQUAL:
    case B_MAXIMUM:
    case B_MINIMUM:
    case B_DIVIDE:
    case B_REMAINDER:
      return true;
    default:
      return false;
  }
}

Value binary_unsigned(Writer& w, int32_t op, const Value& a, const Value& b) {
  const bool quotient = op == B_DIVIDE || op == B_REMAINDER;
  if (quotient && a.type == UNSIGNED_LONGLONG)
    fail("division of unsigned long long is not supported");
  const Value y = write_binary(w, op, in_order(w, a), in_order(w, b));
  return y.type == BOOL ? y : out_of_order(w, y, a.type);
}

}  // namespace tessera::compat
