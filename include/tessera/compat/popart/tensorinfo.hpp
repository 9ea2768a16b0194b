// SPDX-License-Identifier: Apache-2.0
// Element type and shape of a tensor.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "datatype.hpp"
#include "error.hpp"
#include "names.hpp"

namespace popart {

inline DataType dataTypeFromString(const std::string& name) {
  for (int i = 0; i <= static_cast<int>(DataType::UNDEFINED); ++i)
    if (name == detail::row_of(static_cast<DataType>(i)).name) return static_cast<DataType>(i);
  throw error("No DataType is called '{}'", name);
}

class TensorInfo {
 public:
  TensorInfo() : type_(DataType::UNDEFINED) {}
  TensorInfo(DataType type, const Shape& shape) : type_(type), shape_(shape) {}
  TensorInfo(DataType type, const Shape& shape, const Shape&) : type_(type), shape_(shape) {}
  TensorInfo(const std::string& type, const Shape& shape)
      : type_(dataTypeFromString(type)), shape_(shape) {}

  void set(DataType type) { type_ = type; }
  void set(DataType type, const Shape& shape) {
    type_ = type;
    shape_ = shape;
  }
  void set(DataType type, const Shape& shape, const Shape&) { set(type, shape); }

  DataType dataType() const { return type_; }
  DataType getDataType() const { return type_; }
  std::string data_type() const { return detail::row_of(type_).name; }
  std::string data_type_lcase() const {
    std::string s = data_type();
    for (char& c : s)
      if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    return s;
  }
  const Shape& shape() const { return shape_; }
  std::vector<std::size_t> shape_szt() const {
    return std::vector<std::size_t>(shape_.begin(), shape_.end());
  }
  Rank rank() const { return static_cast<Rank>(shape_.size()); }
  int64_t dim(int i) const {
    if (i < 0 || i >= rank())
      throw error("Invalid input dimension {}, tensor of rank {}", i, rank());
    return shape_[static_cast<std::size_t>(i)];
  }
  int64_t nelms() const {
    int64_t n = 1;
    for (int64_t d : shape_) n *= d;
    return n;
  }
  int64_t nbytes() const { return nelms() * detail::row_of(type_).bytes; }
  const Shape& metaShape() const { return meta_; }
  const TensorInfo* getDataTypeInfo() const { return this; }
  bool isSet() const { return type_ != DataType::UNDEFINED; }
  void append(std::ostream& os) const { os << data_type() << " " << text(); }
  std::string text() const {
    std::string s = "[";
    for (int64_t d : shape_) {
      if (s.size() > 1) s += ' ';
      s += std::to_string(d);
    }
    return s + "]";
  }

  friend bool operator==(const TensorInfo& a, const TensorInfo& b) {
    return a.type_ == b.type_ && a.shape_ == b.shape_;
  }
  friend bool operator!=(const TensorInfo& a, const TensorInfo& b) { return !(a == b); }

 private:
  DataType type_;
  Shape shape_, meta_;
};

inline std::ostream& operator<<(std::ostream& os, const TensorInfo& t) {
  t.append(os);
  return os;
}
inline std::ostream& operator<<(std::ostream& os, const std::vector<int64_t>& v) {
  os << "[";
  for (std::size_t i = 0; i < v.size(); ++i) os << (i ? " " : "") << v[i];
  return os << "]";
}

}  // namespace popart
