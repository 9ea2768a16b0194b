// SPDX-License-Identifier: Apache-2.0
// The element-wise functions of popops: enumerator, class of expressions, function. One row each.
#pragma once

#define TESSERA_UNARY_OPS(ROW)             \
  ROW(ABSOLUTE, Abs, abs)                  \
  ROW(ASIN, Asin, asin)                    \
  ROW(BITWISE_NOT, BitwiseNot, bitwiseNot) \
  ROW(CBRT, Cbrt, cbrt)                    \
  ROW(CEIL, Ceil, ceil)                    \
  ROW(COS, Cos, cos)                       \
  ROW(ERF, Erf, erf)                       \
  ROW(EXPONENT, Exp, exp)                  \
  ROW(EXPONENT_MINUS_ONE, Expm1, expm1)    \
  ROW(EXPONENT2, Exp2, exp2)               \
  ROW(FLOOR, Floor, floor)                 \
  ROW(GELU_ERF, GeluErf, geluErf)          \
  ROW(INVERSE, Inv, inv)                   \
  ROW(IS_FINITE, IsFinite, isFinite)       \
  ROW(IS_INF, IsInf, isInf)                \
  ROW(IS_NAN, IsNaN, isNaN)                \
  ROW(LOGARITHM, Log, log)                 \
  ROW(LOGARITHM_ONE_PLUS, Log1p, log1p)    \
  ROW(LOGICAL_NOT, Not, logicalNot)        \
  ROW(NEGATE, Neg, neg)                    \
  ROW(NEARBY_INT, NearbyInt, nearbyInt)    \
  ROW(ROUND, Round, round)                 \
  ROW(SIGNUM, Signum, signum)              \
  ROW(SIN, Sin, sin)                       \
  ROW(TAN, Tan, tan)                       \
  ROW(TANH, Tanh, tanh)                    \
  ROW(TRUNC, Trunc, trunc)                 \
  ROW(SQRT, Sqrt, sqrt)                    \
  ROW(SQUARE, Square, square)              \
  ROW(SIGMOID, Sigmoid, sigmoid)           \
  ROW(RSQRT, Rsqrt, rsqrt)                 \
  ROW(RELU, Relu, relu)

#define TESSERA_BINARY_OPS(ROW)                                          \
  ROW(ADD, Add, add)                                                     \
  ROW(ATAN2, Atan2, atan2)                                               \
  ROW(BITWISE_AND, BitwiseAnd, bitwiseAnd)                               \
  ROW(BITWISE_OR, BitwiseOr, bitwiseOr)                                  \
  ROW(BITWISE_XOR, BitwiseXor, bitwiseXor)                               \
  ROW(BITWISE_XNOR, BitwiseXnor, bitwiseXnor)                            \
  ROW(DIVIDE, Divide, div)                                               \
  ROW(EQUAL, Equal, eq)                                                  \
  ROW(GREATER_THAN_EQUAL, Gte, gteq)                                     \
  ROW(GREATER_THAN, Gt, gt)                                              \
  ROW(INV_STD_DEV_TO_VARIANCE, InvStdDevToVariance, invStdDevToVariance) \
  ROW(LESS_THAN_EQUAL, Lte, lteq)                                        \
  ROW(LOGICAL_AND, And, logicalAnd)                                      \
  ROW(LOGICAL_OR, Or, logicalOr)                                         \
  ROW(LESS_THAN, Lt, lt)                                                 \
  ROW(MAXIMUM, Max, max)                                                 \
  ROW(MINIMUM, Min, min)                                                 \
  ROW(MULTIPLY, Mul, mul)                                                \
  ROW(NOT_EQUAL, NotEqual, neq)                                          \
  ROW(POWER, Pow, pow)                                                   \
  ROW(REMAINDER, Rem, rem)                                               \
  ROW(SHIFT_LEFT, Shl, shiftLeft)                                        \
  ROW(SHIFT_RIGHT, Shr, shiftRight)                                      \
  ROW(SHIFT_RIGHT_SIGN_EXTEND, ShrSE, shiftRightSE)                      \
  ROW(SUBTRACT, Sub, sub)                                                \
  ROW(VARIANCE_TO_INV_STD_DEV, VarianceToInvStdDev, varianceToInvStdDev)

#define TESSERA_TERNARY_OPS(ROW) \
  ROW(CLAMP, Clamp, clamp)       \
  ROW(SELECT, Select, select)

// Operations of reductions, in the order of popops::Operation.
#define TESSERA_REDUCE_OPS(ROW) \
  ROW(ADD)                      \
  ROW(SQUARE_ADD)               \
  ROW(MUL)                      \
  ROW(MIN)                      \
  ROW(MAX)                      \
  ROW(LOGICAL_AND)              \
  ROW(LOGICAL_OR)               \
  ROW(LOG_ADD)
