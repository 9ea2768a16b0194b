// SPDX-License-Identifier: Apache-2.0
// Writes JSON: objects and arrays of values, in the order in which they are added.
#pragma once

#include <concepts>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::json {

class Array;
class Object;

// A value as text. Bytes of a string that are not UTF-8 become the replacement character; a number
// that is not finite, which JSON does not have, becomes null.
std::string text(std::string_view s);
std::string text(double v, int digits);
std::string text(const Array& a);
std::string text(const Object& o);
inline std::string text(const std::string& s) {
  return text(std::string_view(s));
}
inline std::string text(const char* s) {
  return text(std::string_view(s));
}
inline std::string text(bool v) {
  return v ? "true" : "false";
}
template <std::integral T>
requires(!std::same_as<T, bool>) std::string text(T v) {
  return std::to_string(v);
}
template <typename T>
std::string text(const std::vector<T>& list);

class Array {
 public:
  template <typename T>
  Array& add(const T& value) {
    return append(json::text(value));
  }
  const std::string& items() const { return items_; }

 private:
  Array& append(const std::string& value) {
    if (!items_.empty()) items_ += ", ";
    items_ += value;
    return *this;
  }
  std::string items_;
};

class Object {
 public:
  template <typename T>
  Object& add(std::string_view key, const T& value) {
    return append(key, json::text(value));
  }
  // With so many digits after the point.
  Object& add(std::string_view key, double value, int digits) {
    return append(key, json::text(value, digits));
  }
  const std::string& members() const { return members_; }

 private:
  Object& append(std::string_view key, const std::string& value) {
    if (!members_.empty()) members_ += ", ";
    members_ += json::text(key) + ": " + value;
    return *this;
  }
  std::string members_;
};

template <typename T>
std::string text(const std::vector<T>& list) {
  Array out;
  for (const T& item : list) out.add(item);
  return text(out);
}

}  // namespace tessera::json
