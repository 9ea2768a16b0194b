// SPDX-License-Identifier: Apache-2.0
// Ranges of elements.
#pragma once

#include <cstddef>
#include <ostream>

namespace poplar {

template <typename T>
class GenericInterval {
 public:
  constexpr GenericInterval() : first_(), last_() {}
  constexpr GenericInterval(T begin, T end) : first_(begin), last_(end) {}

  constexpr T begin() const { return first_; }
  constexpr T end() const { return last_; }
  constexpr T lower() const { return first_; }
  constexpr T upper() const { return last_; }
  constexpr T size() const { return last_ - first_; }

  friend bool operator==(const GenericInterval& a, const GenericInterval& b) {
    return a.first_ == b.first_ && a.last_ == b.last_;
  }
  friend bool operator!=(const GenericInterval& a, const GenericInterval& b) { return !(a == b); }
  friend bool operator<(const GenericInterval& a, const GenericInterval& b) {
    return a.first_ < b.first_ || (a.first_ == b.first_ && a.last_ < b.last_);
  }
  friend std::ostream& operator<<(std::ostream& os, const GenericInterval& i) {
    return os << "[" << i.first_ << "," << i.last_ << ")";
  }

 private:
  T first_, last_;
};

using Interval = GenericInterval<std::size_t>;

}  // namespace poplar
