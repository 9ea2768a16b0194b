// SPDX-License-Identifier: Apache-2.0
// Element types by ONNX's names.
#pragma once

#include <ostream>
#include <string>

namespace popart {

#define TESSERA_DATA_TYPES(ROW) \
  ROW(UINT8, 1)                 \
  ROW(INT8, 1)                  \
  ROW(FLOAT8_143, 1)            \
  ROW(FLOAT8_152, 1)            \
  ROW(UINT16, 2)                \
  ROW(INT16, 2)                 \
  ROW(INT32, 4)                 \
  ROW(INT64, 8)                 \
  ROW(UINT32, 4)                \
  ROW(UINT64, 8)                \
  ROW(BOOL, 1)                  \
  ROW(FLOAT, 4)                 \
  ROW(FLOAT16, 2)               \
  ROW(BFLOAT16, 2)              \
  ROW(DOUBLE, 8)                \
  ROW(COMPLEX64, 8)             \
  ROW(COMPLEX128, 16)           \
  ROW(STRING, 0)                \
  ROW(UNDEFINED, 0)

enum class DataType {
#define TESSERA_ROW(name, bytes) name,
  TESSERA_DATA_TYPES(TESSERA_ROW)
#undef TESSERA_ROW
};

namespace detail {
struct DataTypeRow {
  const char* name;
  int bytes;
};
inline const DataTypeRow& row_of(DataType t) {
  static const DataTypeRow rows[] = {
#define TESSERA_ROW(name, bytes) {#name, bytes},
      TESSERA_DATA_TYPES(TESSERA_ROW)
#undef TESSERA_ROW
  };
  return rows[static_cast<int>(t)];
}
}  // namespace detail

inline std::string getDataTypeInfoName(DataType t) {
  return detail::row_of(t).name;
}
inline std::ostream& operator<<(std::ostream& os, DataType t) {
  return os << detail::row_of(t).name;
}

}  // namespace popart
