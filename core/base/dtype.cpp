// SPDX-License-Identifier: Apache-2.0
#include "base/dtype.h"

namespace tessera {

std::optional<DType> parse_dtype(std::string_view text) {
#define ROW(name, spelling, bytes, cls) \
  if (text == spelling) return DType::name;
  TESSERA_DTYPES(ROW)
#undef ROW
  return std::nullopt;
}

}  // namespace tessera
