// SPDX-License-Identifier: Apache-2.0
// Parts of tensors, as ops say what they alias and modify. Accepted, not used: inputs are never
// changed.
#pragma once

#include <functional>
#include <ostream>
#include <vector>

#include "names.hpp"
#include "tensorinfo.hpp"

namespace popart {
namespace view {

using LowBounds = std::vector<int64_t>;
using UppBounds = std::vector<int64_t>;
enum class AccessType { None = 0, Read = 1, Write = 2, ReadWrite = 3, N = 4 };

class Region {
 public:
  Region(const LowBounds& lower, const UppBounds& upper, AccessType access = AccessType::None)
      : lower_(lower), upper_(upper), access_(access) {}

  static Region getEmpty(int64_t rank) {
    const LowBounds zero(static_cast<std::size_t>(rank), 0);
    Region r(zero, zero);
    r.empty_ = true;
    return r;
  }
  static Region getFull(const Shape& shape, AccessType access = AccessType::ReadWrite) {
    return Region(LowBounds(shape.size(), 0), shape, access);
  }

  bool isEmpty() const { return empty_ || nelms() == 0; }
  int64_t rank() const { return static_cast<int64_t>(lower_.size()); }
  int64_t nelms() const {
    int64_t n = empty_ ? 0 : 1;
    for (std::size_t i = 0; i < lower_.size(); ++i) n *= upper_[i] - lower_[i];
    return n;
  }
  const LowBounds& getLower() const { return lower_; }
  const UppBounds& getUpper() const { return upper_; }
  AccessType getAccessType() const { return access_; }
  void setAccessType(AccessType a) { access_ = a; }
  bool operator==(const Region& r) const { return lower_ == r.lower_ && upper_ == r.upper_; }
  bool operator!=(const Region& r) const { return !(*this == r); }

 private:
  LowBounds lower_;
  UppBounds upper_;
  AccessType access_;
  bool empty_ = false;
};

using Regions = std::vector<Region>;
using RegMap = std::function<Regions(const Region&)>;
using Link = int;
using Chains = std::vector<std::vector<Link>>;

}  // namespace view
}  // namespace popart
