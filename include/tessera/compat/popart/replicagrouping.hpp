// SPDX-License-Identifier: Apache-2.0
// Groups of replicas: of `groupSize`, whose numbers are `stride` apart.
#pragma once

#include <cstdint>
#include <ostream>
#include <vector>

#include "error.hpp"

namespace popart {

class ReplicaGrouping {
 public:
  ReplicaGrouping(int64_t numReplicas, int64_t stride, int64_t groupSize)
      : replicas_(numReplicas), stride_(stride), size_(groupSize) {
    if (replicas_ < 1 || stride_ < 1 || size_ < 1 || replicas_ % (stride_ * size_) != 0)
      throw error("ReplicaGrouping: {} replicas in groups of {}, {} apart", replicas_, size_,
                  stride_);
    if (size_ == 1) stride_ = 1;
  }
  explicit ReplicaGrouping(int64_t numReplicas) : ReplicaGrouping(numReplicas, 1, numReplicas) {}

  int64_t getNumReplicas() const { return replicas_; }
  int64_t getStride() const { return stride_; }
  int64_t getGroupSize() const { return size_; }
  int64_t getNumGroups() const { return replicas_ / size_; }
  int64_t getGroupAt(int64_t replica) const {
    return replica / (stride_ * size_) * stride_ + replica % stride_;
  }
  int64_t getIndexInGroupAt(int64_t replica) const { return replica / stride_ % size_; }
  int64_t getReplicaAt(int64_t group, int64_t index = 0) const {
    return group / stride_ * stride_ * size_ + group % stride_ + index * stride_;
  }
  std::vector<int64_t> getReplicasAt(int64_t group) const {
    std::vector<int64_t> out;
    for (int64_t i = 0; i < size_; ++i) out.push_back(getReplicaAt(group, i));
    return out;
  }
  bool operator==(const ReplicaGrouping& o) const {
    return replicas_ == o.replicas_ && stride_ == o.stride_ && size_ == o.size_;
  }
  bool operator!=(const ReplicaGrouping& o) const { return !(*this == o); }

 private:
  int64_t replicas_, stride_, size_;
};

inline std::ostream& operator<<(std::ostream& os, const ReplicaGrouping& g) {
  return os << "ReplicaGrouping(numReplicas=" << g.getNumReplicas() << ", stride=" << g.getStride()
            << ", groupSize=" << g.getGroupSize() << ")";
}

}  // namespace popart
