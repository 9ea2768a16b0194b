// SPDX-License-Identifier: Apache-2.0
// Element types of tensors.
#pragma once

#include <cstdint>
#include <functional>
#include <ostream>
#include <string>
#include <type_traits>

#include "../detail/recorder.h"
#include "StringRef.hpp"

namespace poplar {

class Type {
 public:
  constexpr Type() : id_(-1) {}
  constexpr explicit Type(int32_t id) : id_(id) {}

  constexpr int32_t id() const { return id_; }
  StringRef toString() const;

  friend constexpr bool operator==(const Type& a, const Type& b) { return a.id_ == b.id_; }
  friend constexpr bool operator!=(const Type& a, const Type& b) { return a.id_ != b.id_; }
  friend constexpr bool operator<(const Type& a, const Type& b) { return a.id_ < b.id_; }

 private:
  int32_t id_;
};

namespace detail {
enum TypeId : int32_t {
#define TESSERA_ROW(name, text, ir, bytes) k_##name,
  TESSERA_POPLAR_TYPES(TESSERA_ROW)
#undef TESSERA_ROW
};

struct TypeText {
  const char* name;
  unsigned bytes;
};

inline const TypeText& type_text(const Type& t) {
  static const TypeText rows[] = {
#define TESSERA_ROW(name, text, ir, bytes) {text, bytes},
      TESSERA_POPLAR_TYPES(TESSERA_ROW)
#undef TESSERA_ROW
          {"?", 0}};
  constexpr int32_t known = static_cast<int32_t>(sizeof(rows) / sizeof(rows[0])) - 1;
  return rows[t.id() < 0 || t.id() > known ? known : t.id()];
}
}  // namespace detail

#define TESSERA_ROW(name, text, ir, bytes) constexpr Type name(detail::k_##name);
TESSERA_POPLAR_TYPES(TESSERA_ROW)
#undef TESSERA_ROW

inline StringRef Type::toString() const {
  return detail::type_text(*this).name;
}

inline std::ostream& operator<<(std::ostream& os, const Type& t) {
  return os << detail::type_text(t).name;
}

// The type of the device for a type of the host.
template <typename T>
struct equivalent_device_type {
  const Type value =
      std::is_same<T, bool>::value ? BOOL
      : std::is_floating_point<T>::value
          ? FLOAT
          : (sizeof(T) == 1   ? (std::is_signed<T>::value ? SIGNED_CHAR : UNSIGNED_CHAR)
             : sizeof(T) == 2 ? (std::is_signed<T>::value ? SHORT : UNSIGNED_SHORT)
             : sizeof(T) == 4 ? (std::is_signed<T>::value ? INT : UNSIGNED_INT)
                              : (std::is_signed<T>::value ? LONGLONG : UNSIGNED_LONGLONG));
};

}  // namespace poplar

namespace std {
template <>
struct hash<poplar::Type> {
  size_t operator()(const poplar::Type& t) const { return static_cast<size_t>(t.id()); }
};
}  // namespace std
