// SPDX-License-Identifier: Apache-2.0
// Ops that give a parameter or a buffer a new value.
#pragma once

#include "../op.hpp"

namespace popart {

class VarUpdateOp : public Op {
 public:
  using Op::Op;
  static InIndex getVarToUpdateInIndex() { return 0; }
  static OutIndex getUpdatedVarOutIndex() { return 0; }
  void setup() override { outInfo(getUpdatedVarOutIndex()) = inInfo(getVarToUpdateInIndex()); }
  float getSubgraphValue() const override { return getLowSubgraphValue(); }
  bool hasSideEffect() const override { return true; }
  view::Regions modifies(InIndex i) const override {
    if (i != getVarToUpdateInIndex()) return Op::modifies(i);
    return {view::Region::getFull(inShape(i))};
  }
  view::Regions aliases(InIndex i, OutIndex) const override { return modifies(i); }
};

class VarUpdateWithUpdaterOp : public VarUpdateOp {
 public:
  using VarUpdateOp::VarUpdateOp;
  static InIndex getUpdaterInIndex() { return 1; }
};

}  // namespace popart
