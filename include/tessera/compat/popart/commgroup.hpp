// SPDX-License-Identifier: Apache-2.0
// Groups of replicas as they were said before ReplicaGrouping.
#pragma once

#include "replicagrouping.hpp"

namespace popart {

enum class CommGroupType { All = 0, Consecutive, Orthogonal, None, N };

class CommGroup {
 public:
  CommGroup() {}
  CommGroup(CommGroupType type, unsigned groupSize) : type(type), replicaGroupSize(groupSize) {}
  explicit CommGroup(const ReplicaGrouping& g)
      : type(g.getGroupSize() == g.getNumReplicas() ? CommGroupType::All
             : g.getGroupSize() == 1                ? CommGroupType::None
             : g.getStride() == 1                   ? CommGroupType::Consecutive
                                                    : CommGroupType::Orthogonal),
        replicaGroupSize(static_cast<unsigned>(g.getGroupSize())) {}
  ReplicaGrouping toReplicaGrouping(int64_t replicas) const {
    const int64_t size = replicaGroupSize;
    switch (type) {
      case CommGroupType::Consecutive:
        return ReplicaGrouping(replicas, 1, size);
      case CommGroupType::Orthogonal:
        return ReplicaGrouping(replicas, replicas / size, size);
      case CommGroupType::None:
        return ReplicaGrouping(replicas, 1, 1);
      default:
        return ReplicaGrouping(replicas, 1, replicas);
    }
  }
  bool operator==(const CommGroup& o) const {
    return type == o.type && replicaGroupSize == o.replicaGroupSize;
  }
  bool operator!=(const CommGroup& o) const { return !(*this == o); }

  CommGroupType type = CommGroupType::All;
  unsigned replicaGroupSize = 0;
};

}  // namespace popart
