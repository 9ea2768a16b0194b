// SPDX-License-Identifier: Apache-2.0
// Where ops write their attributes, for comparing them.
#pragma once

#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace popart {

class OpSerialiserBase {
 public:
  virtual ~OpSerialiserBase() {}

  template <typename T>
  void appendAttribute(const std::string& key, const T& value) {
    text_ << key << '=';
    write(value, 0);
    text_ << ';';
  }
  template <typename T>
  void appendForwardOp(const T&) {}
  std::string str() const { return text_.str(); }

 private:
  template <typename T>
  auto write(const T& value, int) -> decltype(std::declval<std::ostream&>() << value, void()) {
    text_ << value;
  }
  template <typename T>
  void write(const std::vector<T>& values, int) {
    for (const T& v : values) text_ << v << ',';
  }
  // What cannot be written (an optional, say) makes no difference.
  template <typename T>
  void write(const T&, long) {}

  std::ostringstream text_;
};

class OpSerialiser : public OpSerialiserBase {};

}  // namespace popart
