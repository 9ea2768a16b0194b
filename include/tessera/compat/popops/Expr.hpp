// SPDX-License-Identifier: Apache-2.0
// Element-wise expressions: Mul(_1, Const(2)) or _1 * 2. An expression holds its nodes in postfix
// order.
#pragma once

#include <memory>
#include <type_traits>
#include <vector>

#include "../poplar/Type.hpp"
#include "ExprOp.hpp"

namespace popops {
namespace expr {

class Expr {
 public:
  const std::vector<tessera_expr>& nodes() const { return nodes_; }
  std::unique_ptr<Expr> clone() const { return std::unique_ptr<Expr>(new Expr(*this)); }

 protected:
  void take(const Expr& e) { nodes_.insert(nodes_.end(), e.nodes_.begin(), e.nodes_.end()); }
  void put(tessera_expr_kind kind, int32_t op) {
    tessera_expr e = tessera_expr();
    e.kind = kind;
    e.op = op;
    nodes_.push_back(e);
  }
  std::vector<tessera_expr> nodes_;
};

// Any expression, for lists of them.
class Any : public Expr {
 public:
  Any(const Expr& e) : Expr(e) {}
};

class Const : public Expr {
 public:
  template <typename T,
            typename = typename std::enable_if<std::is_convertible<T, double>::value>::type>
  Const(T value) {
    put(TESSERA_EXPR_CONST, 0);
    nodes_[0].type = poplar::equivalent_device_type<T>().value.id();
    nodes_[0].number = static_cast<double>(value);
    nodes_[0].integer = static_cast<int64_t>(value);
  }
};

class ConstHalf : public Expr {
 public:
  ConstHalf(float value) {
    put(TESSERA_EXPR_CONST, 0);
    nodes_[0].type = poplar::HALF.id();
    nodes_[0].strict = 1;
    nodes_[0].number = value;
    nodes_[0].integer = static_cast<int64_t>(value);
  }
};
inline ConstHalf operator"" _half(long double x) {
  return ConstHalf(static_cast<float>(x));
}

class Cast : public Expr {
 public:
  Cast(const Expr& a, const poplar::Type& type) {
    take(a);
    put(TESSERA_EXPR_CAST, 0);
    nodes_.back().type = type.id();
  }
};

class PlaceHolder : public Expr {
 public:
  PlaceHolder(unsigned index) { put(TESSERA_EXPR_PLACEHOLDER, static_cast<int32_t>(index) - 1); }
};

class UnaryOp : public Expr {
 public:
  UnaryOp(UnaryOpType op, const Expr& a) {
    take(a);
    put(TESSERA_EXPR_UNARY, static_cast<int32_t>(op));
  }
};

class BinaryOp : public Expr {
 public:
  BinaryOp(BinaryOpType op, const Expr& a, const Expr& b) {
    take(a);
    take(b);
    put(TESSERA_EXPR_BINARY, static_cast<int32_t>(op));
  }
};

class TernaryOp : public Expr {
 public:
  TernaryOp(TernaryOpType op, const Expr& a, const Expr& b, const Expr& c) {
    take(a);
    take(b);
    take(c);
    put(TESSERA_EXPR_TERNARY, static_cast<int32_t>(op));
  }
};

#define TESSERA_ROW(name, cls, fn)                        \
  class cls : public UnaryOp {                            \
   public:                                                \
    cls(const Expr& a) : UnaryOp(UnaryOpType::name, a) {} \
  };
TESSERA_UNARY_OPS(TESSERA_ROW)
#undef TESSERA_ROW

#define TESSERA_ROW(name, cls, fn)                                            \
  class cls : public BinaryOp {                                               \
   public:                                                                    \
    cls(const Expr& a, const Expr& b) : BinaryOp(BinaryOpType::name, a, b) {} \
  };
TESSERA_BINARY_OPS(TESSERA_ROW)
#undef TESSERA_ROW

#define TESSERA_ROW(name, cls, fn)                                                                \
  class cls : public TernaryOp {                                                                  \
   public:                                                                                        \
    cls(const Expr& a, const Expr& b, const Expr& c) : TernaryOp(TernaryOpType::name, a, b, c) {} \
  };
TESSERA_TERNARY_OPS(TESSERA_ROW)
#undef TESSERA_ROW

// Of each library its own: the language of the headers has no variables that are shared.
static const PlaceHolder _1 __attribute__((unused)) (1);
static const PlaceHolder _2 __attribute__((unused)) (2);
static const PlaceHolder _3 __attribute__((unused)) (3);
static const PlaceHolder _4 __attribute__((unused)) (4);
static const PlaceHolder _5 __attribute__((unused)) (5);
static const PlaceHolder _6 __attribute__((unused)) (6);
static const PlaceHolder _7 __attribute__((unused)) (7);
static const PlaceHolder _8 __attribute__((unused)) (8);
static const PlaceHolder _9 __attribute__((unused)) (9);

namespace detail {
template <typename T>
using IfNumber = typename std::enable_if<std::is_arithmetic<T>::value, int>::type;
}

// Operators on expressions, and on an expression and a number.
#define TESSERA_OPERATOR(sign, cls)                        \
  inline cls operator sign(const Expr& a, const Expr& b) { \
    return cls(a, b);                                      \
  }                                                        \
  template <typename T, detail::IfNumber<T> = 0>           \
  cls operator sign(const T& a, const Expr& b) {           \
    return cls(Const(a), b);                               \
  }                                                        \
  template <typename T, detail::IfNumber<T> = 0>           \
  cls operator sign(const Expr& a, const T& b) {           \
    return cls(a, Const(b));                               \
  }
TESSERA_OPERATOR(+, Add)
TESSERA_OPERATOR(-, Sub)
TESSERA_OPERATOR(*, Mul)
TESSERA_OPERATOR(/, Divide)
TESSERA_OPERATOR(%, Rem)
TESSERA_OPERATOR(&, BitwiseAnd)
TESSERA_OPERATOR(|, BitwiseOr)
TESSERA_OPERATOR(^, BitwiseXor)
TESSERA_OPERATOR(&&, And)
TESSERA_OPERATOR(||, Or)
TESSERA_OPERATOR(==, Equal)
TESSERA_OPERATOR(!=, NotEqual)
TESSERA_OPERATOR(>, Gt)
TESSERA_OPERATOR(>=, Gte)
TESSERA_OPERATOR(<, Lt)
TESSERA_OPERATOR(<=, Lte)
TESSERA_OPERATOR(<<, Shl)
TESSERA_OPERATOR(>>, Shr)
#undef TESSERA_OPERATOR

inline Neg operator-(const Expr& a) {
  return Neg(a);
}
inline Not operator!(const Expr& a) {
  return Not(a);
}
inline BitwiseNot operator~(const Expr& a) {
  return BitwiseNot(a);
}

}  // namespace expr
}  // namespace popops
