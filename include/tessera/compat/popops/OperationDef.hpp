// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ostream>

#include "../detail/expr_ops.h"

namespace popops {

enum class Operation {
#define TESSERA_ROW(name) name,
  TESSERA_REDUCE_OPS(TESSERA_ROW)
#undef TESSERA_ROW
};

inline std::ostream& operator<<(std::ostream& os, Operation op) {
  static const char* const names[] = {
#define TESSERA_ROW(name) #name,
      TESSERA_REDUCE_OPS(TESSERA_ROW)
#undef TESSERA_ROW
  };
  return os << names[static_cast<int>(op)];
}

}  // namespace popops
