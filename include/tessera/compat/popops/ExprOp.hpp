// SPDX-License-Identifier: Apache-2.0
// The element-wise functions, by number.
#pragma once

#include "../detail/expr_ops.h"

namespace popops {
namespace expr {

enum class UnaryOpType {
#define TESSERA_ROW(name, cls, fn) name,
  TESSERA_UNARY_OPS(TESSERA_ROW)
#undef TESSERA_ROW
};

enum class BinaryOpType {
#define TESSERA_ROW(name, cls, fn) name,
  TESSERA_BINARY_OPS(TESSERA_ROW)
#undef TESSERA_ROW
};

enum class TernaryOpType {
#define TESSERA_ROW(name, cls, fn) name,
  TESSERA_TERNARY_OPS(TESSERA_ROW)
#undef TESSERA_ROW
};

}  // namespace expr
}  // namespace popops
