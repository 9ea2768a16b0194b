// SPDX-License-Identifier: Apache-2.0
// The identity and its gradient, which custom ops use as theirs.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "../op.hpp"
#include "../popx/opxmanager.hpp"

namespace popart {

namespace detail {
class IdentityOpx : public popx::Opx {
 public:
  using popx::Opx::Opx;
  void grow(poplar::program::Sequence& prog) const override {
    setOutTensor(0, cloneNcopy(prog, getInTensor(0)));
  }
};
// Known as soon as one of the ops is made.
inline void know_identity(const OperatorIdentifier& id) {
  popx::OpxCreator<IdentityOpx> creator(id);
}
}  // namespace detail

class IdentityGradOp : public Op {
 public:
  IdentityGradOp(const Op& forward) : IdentityGradOp(forward.settings) {}
  IdentityGradOp(const Settings& s) : Op(OperatorIdentifier("ai.graphcore", "IdentityGrad", 1), s) {
    detail::know_identity(opid);
  }
  std::unique_ptr<Op> clone() const override {
    return std::unique_ptr<Op>(new IdentityGradOp(*this));
  }
  void setup() override { outInfo(0) = inInfo(0); }
  float getSubgraphValue() const override { return getLowSubgraphValue(); }
  const std::vector<GradInOutMapper>& gradInputInfo() const override {
    static const std::vector<GradInOutMapper> info = {{0, 0, GradOpInType::GradOut}};
    return info;
  }
  const std::map<int, int>& gradOutToNonGradIn() const override {
    static const std::map<int, int> info = {{0, 0}};
    return info;
  }
};

class IdentityOp : public Op {
 public:
  IdentityOp(const OperatorIdentifier& id, const Settings& s) : Op(id, s) {
    detail::know_identity(id);
  }
  std::unique_ptr<Op> clone() const override { return std::unique_ptr<Op>(new IdentityOp(*this)); }
  void setup() override { outInfo(0) = inInfo(0); }
  float getSubgraphValue() const override { return getLowSubgraphValue(); }
  std::vector<std::unique_ptr<Op>> getGradOps() override {
    std::vector<std::unique_ptr<Op>> out;
    out.emplace_back(new IdentityGradOp(settings));
    return out;
  }
};

}  // namespace popart
