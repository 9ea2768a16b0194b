// SPDX-License-Identifier: Apache-2.0
// Ops over replicas: all-to-all, which is its own gradient; an all-reduce of which one way is the
// identity; and one op that calls the functions of gcl one by one.
#include <gcl/Collectives.hpp>
#include <memory>
#include <popart/ir.hpp>
#include <popart/op.hpp>
#include <popart/op/collectives/collectives.hpp>
#include <popart/op/collectives/replicatedallreduce.hpp>
#include <popart/opmanager.hpp>
#include <popart/opserialiser.hpp>
#include <popart/popx/op/collectives/collectivesx.hpp>
#include <popart/popx/op/collectives/replicatedallreducex.hpp>
#include <popart/popx/opxmanager.hpp>
#include <string>
#include <vector>

namespace {

using namespace popart;

const OperatorIdentifier kAllToAll{"com.acme", "AllToAll", 1};

class AllToAllOp : public CollectivesBaseOp {
 public:
  AllToAllOp(const OperatorIdentifier& id, const ReplicaGrouping& g, const Op::Settings& s)
      : CollectivesBaseOp(id, g, s) {}
  std::unique_ptr<Op> clone() const override { return std::make_unique<AllToAllOp>(*this); }
  void setup() final { outInfo(getOutIndex()) = inInfo(getInIndex()); }
  std::vector<std::unique_ptr<Op>> getGradOps() override {
    std::vector<std::unique_ptr<Op>> ops;
    ops.push_back(std::make_unique<AllToAllOp>(*this));
    return ops;
  }
  const std::vector<GradInOutMapper>& gradInputInfo() const override {
    static const std::vector<GradInOutMapper> info = {
        {getInIndex(), getOutIndex(), GradOpInType::GradOut}};
    return info;
  }
  const std::map<int, int>& gradOutToNonGradIn() const override {
    static const std::map<int, int> info = {{getOutIndex(), getInIndex()}};
    return info;
  }
};

class AllToAllOpx : public popx::CollectivesBaseOpx {
 public:
  AllToAllOpx(Op* op, popx::Devicex* d) : CollectivesBaseOpx(op, d) {
    verifyOp<AllToAllOp>(op, kAllToAll);
  }
  void grow(poplar::program::Sequence& prog) const final {
    const auto& op = getOp<AllToAllOp>();
    const poplar::OptionFlags& options = dv_p->lowering().gclOptions;
    setOutTensor(0, gcl::allToAllCrossReplica(graph(), getInTensor(0), prog,
                                              popx::toGclCommGroup(op.getReplicaGrouping()),
                                              debugContext("allToAll"), options));
  }
};

OpCreator<AllToAllOp> makeAllToAll(
    OpDefinitions({{kAllToAll, OpDefinition()}}),
    [](const OpCreatorInfo& info) -> std::unique_ptr<Op> {
      return std::make_unique<AllToAllOp>(
          info.opid, extractReplicaGroupingFromAttrs(info.attributes), info.settings);
    },
    true);
popx::OpxCreator<AllToAllOpx> allToAllOpx(kAllToAll);

// `backwards`: the identity forward and the all-reduce of the gradient, else the other way round.
const OperatorIdentifier kParallel{"com.acme", "AllReduceTP", 1};

class AllReduceTPOp : public ReplicatedAllReduceOp {
 public:
  AllReduceTPOp(const OperatorIdentifier& id, CollectiveOperator op, const ReplicaGrouping& g,
                bool backwards, const Op::Settings& s)
      : ReplicatedAllReduceOp(id, op, g, s), backwards_(backwards) {}
  std::unique_ptr<Op> clone() const override { return std::make_unique<AllReduceTPOp>(*this); }
  std::vector<std::unique_ptr<Op>> getGradOps() override {
    std::vector<std::unique_ptr<Op>> ops;
    ops.push_back(std::make_unique<AllReduceTPOp>(kParallel, getCollectiveOp(),
                                                  getReplicaGrouping(), !backwards_, settings));
    return ops;
  }
  // Not before there are gradient ops.
  bool canBeReplacedByIdentity() const override {
    if (getIr().canTrain() && !getIr().hasConstructedBackwards()) return false;
    return backwards_;
  }
  void appendOutlineAttributes(OpSerialiserBase& os) const override {
    ReplicatedAllReduceOp::appendOutlineAttributes(os);
    os.appendAttribute("backwards", backwards_);
  }

 private:
  bool backwards_;
};

class AllReduceTPOpx : public popx::ReplicatedAllReduceOpx {
 public:
  AllReduceTPOpx(Op* op, popx::Devicex* d) : ReplicatedAllReduceOpx(op, d) {
    verifyOp<AllReduceTPOp>(op, kParallel);
  }
};

OpCreator<AllReduceTPOp> makeParallel(
    OpDefinitions({{kParallel, OpDefinition()}}),
    [](const OpCreatorInfo& info) -> std::unique_ptr<Op> {
      const ReplicaGrouping grouping = extractReplicaGroupingFromVector(
          info.attributes.getAttribute<Attributes::Ints>(sCollectiveReplicaGrouping));
      const bool backwards = info.attributes.getAttribute<Attributes::Int>("backwards") != 0;
      return std::make_unique<AllReduceTPOp>(info.opid, CollectiveOperator::Add, grouping,
                                             backwards, info.settings);
    },
    true);
popx::OpxCreator<AllReduceTPOpx> parallelOpx(kParallel);

// The function of gcl that the attribute `what` names.
const OperatorIdentifier kFunctions{"com.acme", "Collective", 1};

class FunctionsOp : public Op {
 public:
  FunctionsOp(const OpCreatorInfo& info)
      : Op(info.opid, info.settings),
        what(info.attributes.getAttribute<Attributes::String>("what")),
        op(info.attributes.getAttribute<Attributes::Int>("op", 0)) {}
  std::unique_ptr<Op> clone() const override { return std::make_unique<FunctionsOp>(*this); }
  float getSubgraphValue() const override { return getLowSubgraphValue(); }
  void setup() override {
    outInfo(0) = inInfo(0);
    const int64_t n = getIr().getSessionOptions().replicatedGraphCount;
    if (what == "gather") {
      Shape shape = inShape(0);
      shape.insert(shape.begin(), n);
      outInfo(0) = {inInfo(0).dataType(), shape};
    } else if (what == "scatter") {
      outInfo(0) = {inInfo(0).dataType(), Shape{(inInfo(0).nelms() + n - 1) / n}};
    }
  }
  std::string what;
  int64_t op;
};

class FunctionsOpx : public popx::Opx {
 public:
  FunctionsOpx(Op* op, popx::Devicex* d) : popx::Opx(op, d) {
    verifyOp<FunctionsOp>(op, kFunctions);
  }
  void grow(poplar::program::Sequence& prog) const final {
    const auto& op = getOp<FunctionsOp>();
    const auto how = static_cast<gcl::CollectiveOperator>(op.op);
    const poplar::Tensor& x = getInTensor(0);
    if (op.what == "gather") {
      setOutTensor(0, gcl::allGatherCrossReplica(graph(), x, prog, debugContext("gather")));
    } else if (op.what == "scatter") {
      setOutTensor(0,
                   gcl::reduceScatterCrossReplica(graph(), x, how, prog, debugContext("scatter")));
    } else if (op.what == "broadcast") {
      setOutTensor(0, gcl::broadcastCrossReplica(graph(), x, prog, gcl::CommGroup(), 1));
    } else if (op.what == "in place") {
      const poplar::Tensor y = cloneNcopy(prog, x);
      gcl::allReduceInPlaceCrossReplica(graph(), y, how, prog,
                                        gcl::CommGroup(gcl::CommGroupType::ORTHOGONAL, 2));
      setOutTensor(0, y);
    } else {
      setOutTensor(0,
                   gcl::allReduceCrossReplica(graph(), x, how, prog, {}, debugContext("reduce")));
    }
  }
};

OpCreator<FunctionsOp> makeFunctions(
    OpDefinitions({{kFunctions, OpDefinition()}}),
    [](const OpCreatorInfo& info) { return std::unique_ptr<Op>(new FunctionsOp(info)); }, true);
popx::OpxCreator<FunctionsOpx> functionsOpx(kFunctions);

}  // namespace
