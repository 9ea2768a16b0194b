// SPDX-License-Identifier: Apache-2.0
// The rows of pointwise.def as code: one switch, instantiated for the scalar of the reference
// interpreter and for the vector of the compiler.
#pragma once

#include <cmath>

#include "base/error.h"
#include "codegen/row_formulas.h"
#include "ops/op.h"

namespace tessera::codegen {

// Value of one row for operands `x`, already of its compute type.
template <typename V>
V eval_row(Op op, const V* x, int count) {
  auto arg = [&](int k) -> const V& { return x[k < count ? k : 0]; };
  [[maybe_unused]] const V &a = arg(0), &b = arg(1), &c = arg(2), &d = arg(3), &e = arg(4),
                           &f = arg(5);
  [[maybe_unused]] auto T = [&](double value) { return like(a, value); };
  switch (op) {
#define POINTWISE(name, text, arity, rule, flops, facts, body) \
  case Op::name:                                               \
    return body;
#include "ops/pointwise.def"
#undef POINTWISE
    default:
      break;
  }
  throw InternalError(fmt::format("internal error: {} is not pointwise", op_text(op)));
}

}  // namespace tessera::codegen
