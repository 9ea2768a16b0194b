// SPDX-License-Identifier: Apache-2.0
// Element types: one row each. Everything that needs a name, a size or a class of a dtype reads it
// here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace tessera {

//      enum    text   bytes  class
#define TESSERA_DTYPES(ROW)    \
  ROW(F32, "f32", 4, kFloat)   \
  ROW(F16, "f16", 2, kFloat)   \
  ROW(BF16, "bf16", 2, kFloat) \
  ROW(F64, "f64", 8, kFloat)   \
  ROW(I64, "i64", 8, kInt)     \
  ROW(I32, "i32", 4, kInt)     \
  ROW(I16, "i16", 2, kInt)     \
  ROW(I8, "i8", 1, kInt)       \
  ROW(U8, "u8", 1, kInt)       \
  ROW(Bool, "bool", 1, kBool)  \
  ROW(U16, "u16", 2, kOpaque)  \
  ROW(U32, "u32", 4, kOpaque)  \
  ROW(U64, "u64", 8, kOpaque)  \
  ROW(C32, "c32", 4, kOpaque)  \
  ROW(C64, "c64", 8, kOpaque)  \
  ROW(C128, "c128", 16, kOpaque)

enum class DType : uint8_t {
#define ROW(name, text, bytes, cls) name,
  TESSERA_DTYPES(ROW)
#undef ROW
};

constexpr int kDTypes = 0
#define ROW(name, text, bytes, cls) +1
    TESSERA_DTYPES(ROW)
#undef ROW
    ;

// Opaque types are stored, moved and handed to host calls; no kernel computes with them.
enum class DTypeClass : uint8_t { kFloat, kInt, kBool, kOpaque };

constexpr int64_t size_of(DType t) {
  constexpr int64_t sizes[] = {
#define ROW(name, text, bytes, cls) bytes,
      TESSERA_DTYPES(ROW)
#undef ROW
  };
  return sizes[static_cast<int>(t)];
}

constexpr std::string_view name_of(DType t) {
  constexpr std::string_view names[] = {
#define ROW(name, text, bytes, cls) text,
      TESSERA_DTYPES(ROW)
#undef ROW
  };
  return names[static_cast<int>(t)];
}

constexpr DTypeClass class_of(DType t) {
  constexpr DTypeClass classes[] = {
#define ROW(name, text, bytes, cls) DTypeClass::cls,
      TESSERA_DTYPES(ROW)
#undef ROW
  };
  return classes[static_cast<int>(t)];
}

constexpr bool is_float(DType t) {
  return class_of(t) == DTypeClass::kFloat;
}
constexpr bool is_int(DType t) {
  return class_of(t) == DTypeClass::kInt;
}

std::optional<DType> parse_dtype(std::string_view text);

}  // namespace tessera
