// SPDX-License-Identifier: Apache-2.0
// Text that belongs to someone else.
#pragma once

#include <cstring>
#include <ostream>
#include <string>

namespace poplar {

class StringRef {
 public:
  StringRef() : data_(""), size_(0) {}
  StringRef(const char* s) : data_(s ? s : ""), size_(s ? std::strlen(s) : 0) {}
  StringRef(const char* s, std::size_t n) : data_(s), size_(n) {}
  StringRef(const std::string& s) : data_(s.data()), size_(s.size()) {}

  const char* data() const { return data_; }
  std::size_t size() const { return size_; }
  std::size_t length() const { return size_; }
  bool empty() const { return size_ == 0; }
  const char* begin() const { return data_; }
  const char* end() const { return data_ + size_; }
  std::string cloneAsString() const { return std::string(data_, size_); }
  operator std::string() const { return cloneAsString(); }

  friend bool operator==(const StringRef& a, const StringRef& b) {
    return a.size_ == b.size_ && std::memcmp(a.data_, b.data_, a.size_) == 0;
  }
  friend bool operator!=(const StringRef& a, const StringRef& b) { return !(a == b); }
  friend std::string operator+(const StringRef& a, const StringRef& b) {
    return a.cloneAsString() + b.cloneAsString();
  }
  friend std::ostream& operator<<(std::ostream& os, const StringRef& s) {
    return os << s.cloneAsString();
  }

 private:
  const char* data_;
  std::size_t size_;
};

}  // namespace poplar
