// SPDX-License-Identifier: Apache-2.0
// A reduction of the tensors of a group of replicas, which all of them get; its gradient is one of
// the gradients.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "../../popx/op/collectives/collectivesx.hpp"
#include "../../popx/opxmanager.hpp"
#include "collectives.hpp"

namespace popart {

namespace detail {
inline void know_all_reduce(const OperatorIdentifier& id);
}  // namespace detail

class ReplicatedAllReduceOp : public CollectivesBaseOp {
 public:
  ReplicatedAllReduceOp(const OperatorIdentifier& id, CollectiveOperator op,
                        const ReplicaGrouping& grouping, const Op::Settings& s)
      : CollectivesBaseOp(id, grouping, s), op_(op) {
    detail::know_all_reduce(id);
  }
  ReplicatedAllReduceOp(const OperatorIdentifier& id, CollectiveOperator op, const CommGroup& group,
                        const Op::Settings& s)
      : CollectivesBaseOp(id, group, s), op_(op) {
    detail::know_all_reduce(id);
  }
  ReplicatedAllReduceOp(const OperatorIdentifier& id, const ReplicaGrouping& grouping,
                        const Op::Settings& s)
      : ReplicatedAllReduceOp(id, CollectiveOperator::Add, grouping, s) {}
  std::unique_ptr<Op> clone() const override {
    return std::unique_ptr<Op>(new ReplicatedAllReduceOp(*this));
  }
  CollectiveOperator getCollectiveOp() const { return op_; }
  bool canBeReplacedByIdentity() const override {
    return getReplicaGrouping().getGroupSize() == 1 && op_ != CollectiveOperator::SquareAdd;
  }
  std::vector<std::unique_ptr<Op>> getGradOps() override;
  const std::vector<GradInOutMapper>& gradInputInfo() const override {
    static const std::vector<GradInOutMapper> info = {{0, 0, GradOpInType::GradOut}};
    return info;
  }
  const std::map<int, int>& gradOutToNonGradIn() const override {
    static const std::map<int, int> info = {{0, 0}};
    return info;
  }
  void appendOutlineAttributes(OpSerialiserBase& os) const override {
    CollectivesBaseOp::appendOutlineAttributes(os);
    os.appendAttribute("op", static_cast<int>(op_));
  }

 private:
  CollectiveOperator op_;
};

class ReplicatedAllReduceInplaceOp : public ReplicatedAllReduceOp {
 public:
  using ReplicatedAllReduceOp::ReplicatedAllReduceOp;
  std::unique_ptr<Op> clone() const override {
    return std::unique_ptr<Op>(new ReplicatedAllReduceInplaceOp(*this));
  }
};

inline std::vector<std::unique_ptr<Op>> ReplicatedAllReduceOp::getGradOps() {
  if (op_ != CollectiveOperator::Add && op_ != CollectiveOperator::Mean)
    throw error("{}: there is no gradient of an all-reduce by {}", opid, op_);
  std::vector<std::unique_ptr<Op>> out;
  out.emplace_back(
      new ReplicatedAllReduceOp(OperatorIdentifier("ai.graphcore", "ReplicatedAllReduce", 1), op_,
                                getReplicaGrouping(), settings));
  return out;
}

namespace popx {
class ReplicatedAllReduceOpx : public CollectivesBaseOpx {
 public:
  ReplicatedAllReduceOpx(Op* op, Devicex* d) : CollectivesBaseOpx(op, d) {
    verifyOp<ReplicatedAllReduceOp>(op);
  }
  void grow(poplar::program::Sequence& prog) const override {
    const ReplicatedAllReduceOp& op = getOp<ReplicatedAllReduceOp>();
    setOutTensor(ReplicatedAllReduceOp::getOutIndex(),
                 gcl::allReduceCrossReplica(
                     graph(), getInTensor(ReplicatedAllReduceOp::getInIndex()),
                     getPoplarCollectiveOperator(op.getCollectiveOp()), prog,
                     toGclCommGroup(op.getReplicaGrouping()), debugContext("allReduce")));
  }
};
using ReplicatedAllReduceInplaceOpx = ReplicatedAllReduceOpx;
}  // namespace popx

namespace detail {
// For ops whose library has no Opx of its own; one that it has was there before.
inline void know_all_reduce(const OperatorIdentifier& id) {
  popx::OpxCreator<popx::ReplicatedAllReduceOpx> creator(id);
}
}  // namespace detail

}  // namespace popart
