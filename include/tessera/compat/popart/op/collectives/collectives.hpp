// SPDX-License-Identifier: Apache-2.0
// Ops over replicas: which groups they are for, and what they do with the tensors of one.
#pragma once

#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "../../commgroup.hpp"
#include "../../op.hpp"
#include "../../replicagrouping.hpp"

namespace popart {

enum class CollectiveOperator {
  Add = 0,
  Mean,
  Mul,
  Min,
  Max,
  LogicalAnd,
  LogicalOr,
  SquareAdd,
  Local,
  N
};
inline std::ostream& operator<<(std::ostream& os, CollectiveOperator op) {
  static const char* const names[] = {"Add",        "Mean",      "Mul",       "Min",  "Max",
                                      "LogicalAnd", "LogicalOr", "SquareAdd", "Local"};
  return os << names[static_cast<int>(op)];
}

static const std::string sCollectiveOperator __attribute__((unused)) = "__collectiveOperator";
static const std::string sCollectiveCommGroup __attribute__((unused)) = "__collectiveCommGroup";
static const std::string sCollectiveReplicaGrouping __attribute__((unused)) =
    "__collectiveReplicaGrouping";

inline ReplicaGrouping extractReplicaGroupingFromVector(const std::vector<int64_t>& v) {
  if (v.size() != 3)
    throw error("a replica grouping is [replicas, stride, group size], not {} numbers", v.size());
  return ReplicaGrouping(v[0], v[1], v[2]);
}
inline CommGroup extractCommGroupFromVector(const std::vector<int64_t>& v) {
  if (v.empty()) return CommGroup();
  return CommGroup(static_cast<CommGroupType>(v[0]),
                   v.size() > 1 ? static_cast<unsigned>(v[1]) : 0);
}
inline CommGroup extractCommGroupFromAttrs(const Attributes& a) {
  return extractCommGroupFromVector(
      a.getAttribute<Attributes::Ints>(sCollectiveCommGroup, Attributes::Ints()));
}
// Without the attribute: all replicas.
inline ReplicaGrouping extractReplicaGroupingFromAttrs(const Attributes& a, int64_t replicas = 0) {
  if (a.hasAttribute(sCollectiveReplicaGrouping))
    return extractReplicaGroupingFromVector(
        a.getAttribute<Attributes::Ints>(sCollectiveReplicaGrouping));
  if (replicas == 0) replicas = tessera_fact("replicas", 1);
  return extractCommGroupFromAttrs(a).toReplicaGrouping(replicas);
}

class CollectivesBaseOp : public Op {
 public:
  CollectivesBaseOp(const OperatorIdentifier& id, const ReplicaGrouping& grouping,
                    const Op::Settings& s)
      : Op(id, s), grouping_(grouping) {}
  CollectivesBaseOp(const OperatorIdentifier& id, const CommGroup& group, const Op::Settings& s)
      : CollectivesBaseOp(
            id, group.toReplicaGrouping(s.getIr().getSessionOptions().replicatedGraphCount), s) {}

  static InIndex getInIndex() { return 0; }
  static InIndex getCollectiveLinkedIndex() { return 1; }
  static OutIndex getOutIndex() { return 0; }
  static OutIndex getLinkedOutIndex() { return 1; }

  void setReplicaGrouping(const ReplicaGrouping& g) { grouping_ = g; }
  const ReplicaGrouping& getReplicaGrouping() const { return grouping_; }
  CommGroup getGCLCommGroup() const { return CommGroup(grouping_); }
  int64_t getCommSize() const { return grouping_.getGroupSize(); }

  void setup() override { outInfo(getOutIndex()) = inInfo(getInIndex()); }
  float getSubgraphValue() const override { return getHighSubgraphValue(); }
  bool hasCorrespondingLinkedIndexTensor(Tensor*) const { return false; }
  void appendOutlineAttributes(OpSerialiserBase& os) const override {
    Op::appendOutlineAttributes(os);
    os.appendAttribute("stride", grouping_.getStride());
    os.appendAttribute("groupSize", grouping_.getGroupSize());
  }

 private:
  ReplicaGrouping grouping_;
};

}  // namespace popart
