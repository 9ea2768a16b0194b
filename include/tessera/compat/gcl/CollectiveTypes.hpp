// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "../detail/recorder.h"
#include "../poplar/exceptions.hpp"

namespace gcl {

enum class CollectiveOperator {
  ADD = 0,
  MEAN,
  MUL,
  MIN,
  MAX,
  LOGICAL_AND,
  LOGICAL_OR,
  SQUARE_ADD,
  LOCAL
};

enum class CommGroupType { ALL = 0, CONSECUTIVE, ORTHOGONAL, NONE };

class CommGroup {
 public:
  CommGroup() {}
  CommGroup(CommGroupType type, unsigned size) : type_(type), size_(size) {}
  CommGroup(CommGroupType type, unsigned size, unsigned stride)
      : type_(type), size_(size), stride_(stride) {}
  CommGroupType type() const { return type_; }
  unsigned size() const { return size_; }
  unsigned replicaStride() const { return stride_; }

 private:
  CommGroupType type_ = CommGroupType::ALL;
  unsigned size_ = 0, stride_ = 0;  // 0: as the type says
};

namespace detail {
struct Groups {
  std::size_t size;
  int64_t stride;
};
inline Groups groups_of(const CommGroup& g) {
  const int64_t replicas = tessera_fact("replicas", 1);
  int64_t size = g.size() ? static_cast<int64_t>(g.size()) : replicas, stride = 1;
  if (g.type() == CommGroupType::ALL) size = replicas;
  if (g.type() == CommGroupType::NONE) size = 1;
  if (size < 1 || replicas % size != 0)
    throw poplar::poplar_error("gcl: a group does not divide the replicas");
  if (g.type() == CommGroupType::ORTHOGONAL) stride = replicas / size;
  if (g.replicaStride() && size > 1) stride = static_cast<int64_t>(g.replicaStride());
  return {static_cast<std::size_t>(size), stride};
}
}  // namespace detail

}  // namespace gcl
