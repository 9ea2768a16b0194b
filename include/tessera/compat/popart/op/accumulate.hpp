// SPDX-License-Identifier: Apache-2.0
// A running sum, mean or maximum of a tensor (the updater) in another one, which is a parameter or
// a buffer. In the context AccumulateOuterFragment it is taken once per weight update.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <vector>

#include "../../popops/Cast.hpp"
#include "../../popops/ElementWise.hpp"
#include "../optimizervalue.hpp"
#include "../popx/opxmanager.hpp"
#include "varupdate.hpp"

namespace popart {

enum class AccumulationType {
  Add = 0,
  DampenedAdd,
  DampenedAddSquare,
  DecayAdd,
  DecayAddSquare,
  MovingAverage,
  MovingAverageSquare,
  Infinity,
  Mean
};

namespace detail {
class AccumulateOpx;
}  // namespace detail

class AccumulateBaseOp : public VarUpdateWithUpdaterOp {
 public:
  AccumulateBaseOp(const OperatorIdentifier& id, AccumulationType type, OptimizerValue factor,
                   const Op::Settings& s)
      : VarUpdateWithUpdaterOp(id, s), type_(type), factor_(factor) {}
  static InIndex getFactorInIndex() { return 2; }
  AccumulationType getAccumulationType() const { return type_; }
  const OptimizerValue& getFactor() const { return factor_; }
  std::set<InIndex> optionalInputs() const override { return {getFactorInIndex()}; }
  std::map<InIndex, TensorId> optimizerInputs() const {
    std::map<InIndex, TensorId> out;
    if (hasInput(getFactorInIndex())) out[getFactorInIndex()] = inId(getFactorInIndex());
    return out;
  }

 private:
  AccumulationType type_;
  OptimizerValue factor_;
};

class AccumulateOp : public AccumulateBaseOp {
 public:
  AccumulateOp(AccumulationType type, OptimizerValue factor, const Op::Settings& s)
      : AccumulateBaseOp(OperatorIdentifier("ai.graphcore", "Accumulate", 1), type, factor, s) {
    popx::OpxCreator<detail::AccumulateOpx> creator(opid);
  }
  std::unique_ptr<Op> clone() const override {
    return std::unique_ptr<Op>(new AccumulateOp(*this));
  }
};

namespace detail {

class AccumulateOpx : public popx::Opx {
 public:
  using popx::Opx::Opx;
  void grow(poplar::program::Sequence& prog) const override {
    const AccumulateBaseOp& op = getOp<AccumulateBaseOp>();
    const poplar::Tensor& acc = getInTensor(AccumulateBaseOp::getVarToUpdateInIndex());
    poplar::Tensor x = getInTensor(AccumulateBaseOp::getUpdaterInIndex());
    if (x.elementType() != acc.elementType())
      x = popops::cast(graph(), x, acc.elementType(), prog, debugContext("cast"));
    poplar::Tensor f;
    if (hasInput(AccumulateBaseOp::getFactorInIndex())) {
      f = getInTensor(AccumulateBaseOp::getFactorInIndex());
      if (f.elementType() != acc.elementType())
        f = popops::cast(graph(), f, acc.elementType(), prog, debugContext("cast"));
      if (f.numElements() == 1) f = f.reshape(std::vector<std::size_t>(acc.rank(), 1));
    } else {
      f = graph().addConstant(acc.elementType(), std::vector<std::size_t>(acc.rank(), 1),
                              op.getFactor().val(), debugContext("factor"));
    }
    setOutTensor(AccumulateBaseOp::getUpdatedVarOutIndex(),
                 popops::map(graph(), formula(op.getAccumulationType()), {acc, x, f}, prog,
                             debugContext("accumulate")));
  }

 private:
  static popops::expr::Any formula(AccumulationType type) {
    using namespace popops::expr;
    const PlaceHolder a(1), g(2), k(3);
    switch (type) {
      case AccumulationType::Add:
        return a + g;
      case AccumulationType::DampenedAdd:
        return a + k * g;
      case AccumulationType::DampenedAddSquare:
        return a + k * (g * g);
      case AccumulationType::DecayAdd:
        return k * a + g;
      case AccumulationType::DecayAddSquare:
        return k * a + g * g;
      case AccumulationType::MovingAverage:
        return k * a + (1 - k) * g;
      case AccumulationType::MovingAverageSquare:
        return k * a + (1 - k) * (g * g);
      case AccumulationType::Infinity:
        return Max(k * a, Abs(g));
      default:
        return (k * a + g) / (k + 1);
    }
  }
};

}  // namespace detail
}  // namespace popart
