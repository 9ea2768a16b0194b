// SPDX-License-Identifier: Apache-2.0
// Values in a row that belong to someone else.
#pragma once

#include <array>
#include <cstddef>
#include <initializer_list>
#include <type_traits>
#include <vector>

namespace poplar {

template <typename T>
class ArrayRef {
 public:
  using value_type = typename std::remove_cv<T>::type;

  constexpr ArrayRef() : data_(nullptr), size_(0) {}
  constexpr ArrayRef(const T* data, std::size_t size) : data_(data), size_(size) {}
  ArrayRef(const std::vector<value_type>& v) : data_(v.data()), size_(v.size()) {}
  template <std::size_t N>
  constexpr ArrayRef(const T (&a)[N]) : data_(a), size_(N) {}
  template <std::size_t N>
  ArrayRef(const std::array<value_type, N>& a) : data_(a.data()), size_(N) {}
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Winit-list-lifetime"
#endif
  // For arguments of calls, where the list outlives the call.
  ArrayRef(std::initializer_list<value_type> l) : data_(l.begin()), size_(l.size()) {}
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

  const T* data() const {
    return data_;
  }
  std::size_t size() const {
    return size_;
  }
  bool empty() const {
    return size_ == 0;
  }
  const T& operator[](std::size_t i) const {
    return data_[i];
  }
  const T& front() const {
    return data_[0];
  }
  const T& back() const {
    return data_[size_ - 1];
  }
  const T* begin() const {
    return data_;
  }
  const T* end() const {
    return data_ + size_;
  }
  std::vector<value_type> cloneAsVector() const {
    return std::vector<value_type>(begin(), end());
  }

 private:
  const T* data_;
  std::size_t size_;
};

}  // namespace poplar
