// SPDX-License-Identifier: Apache-2.0
// The attributes of a call. One that is there but of another type reads as 0, 0.0 or "", as in
// PopART.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "error.hpp"

namespace popart {

class Attributes {
 public:
  using Int = int64_t;
  using Ints = std::vector<int64_t>;
  using Float = float;
  using Floats = std::vector<float>;
  using String = std::string;
  using Strings = std::vector<std::string>;

  bool hasAttribute(const std::string& key) const { return values_.count(key) > 0; }
  std::vector<std::string> getNames() const {
    std::vector<std::string> out;
    for (const auto& v : values_) out.push_back(v.first);
    return out;
  }

  template <typename T>
  T getAttribute(const std::string& key) const {
    const auto at = values_.find(key);
    if (at == values_.end()) throw error("no attribute key {}", key);
    T out = T();
    read(at->second, out);
    return out;
  }
  template <typename T>
  T getAttribute(const std::string& key, const T& otherwise) const {
    const auto at = values_.find(key);
    if (at == values_.end()) return otherwise;
    T out = T();
    read(at->second, out);
    return is_empty(out) ? otherwise : out;
  }
  template <typename T>
  void setIfPresent(T& value, const std::string& key) const {
    if (hasAttribute(key)) value = static_cast<T>(getAttribute<typename Stored<T>::type>(key));
  }
  template <typename T>
  void set(T& value, const std::string& key) const {
    value = static_cast<T>(getAttribute<typename Stored<T>::type>(key));
  }

  void setInts(const std::string& key, const Ints& v, bool list) {
    Value& x = values_[key];
    x.ints = v;
    x.list = list;
  }
  void setFloats(const std::string& key, const Floats& v, bool list) {
    Value& x = values_[key];
    x.floats = v;
    x.list = list;
  }
  void setStrings(const std::string& key, const Strings& v, bool list) {
    Value& x = values_[key];
    x.strings = v;
    x.list = list;
  }

 private:
  struct Value {
    Ints ints;
    Floats floats;
    Strings strings;
    bool list = false;
  };
  template <typename T>
  struct Stored {
    using type = T;
  };

  template <typename T, typename V>
  static void first(const V& from, bool list, T& out) {
    if (!list && !from.empty()) out = static_cast<T>(from[0]);
  }
  static void read(const Value& v, Int& out) { first(v.ints, v.list, out); }
  static void read(const Value& v, int& out) { first(v.ints, v.list, out); }
  static void read(const Value& v, bool& out) {
    out = !v.list && !v.ints.empty() && v.ints[0] != 0;
  }
  static void read(const Value& v, Float& out) { first(v.floats, v.list, out); }
  static void read(const Value& v, String& out) { first(v.strings, v.list, out); }
  static void read(const Value& v, Ints& out) {
    if (v.list) out = v.ints;
  }
  static void read(const Value& v, Floats& out) {
    if (v.list) out = v.floats;
  }
  static void read(const Value& v, Strings& out) {
    if (v.list) out = v.strings;
  }
  static bool is_empty(const String& s) { return s.empty(); }
  template <typename T>
  static bool is_empty(const T&) {
    return false;
  }

  std::map<std::string, Value> values_;
};

template <>
struct Attributes::Stored<int> {
  using type = int64_t;
};
template <>
struct Attributes::Stored<unsigned> {
  using type = int64_t;
};
template <>
struct Attributes::Stored<bool> {
  using type = int64_t;
};

}  // namespace popart
