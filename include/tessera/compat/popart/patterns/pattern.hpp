// SPDX-License-Identifier: Apache-2.0
// Rewrites of PopART's graph. Each sees one op, the tensors that it reads, and the readers of its
// results.
#pragma once

#include <string>
#include <vector>

#include "../graph.hpp"
#include "../op.hpp"

namespace popart {

class Pattern {
 public:
  virtual ~Pattern() {}
  void initialise(const std::string& name) { name_ = name; }
  const std::string& getPatternName() const { return name_; }

 private:
  std::string name_;
};

class PreAliasPattern : public Pattern {
 public:
  virtual bool matches(Op*) const = 0;
  virtual std::vector<const Tensor*> touches(Op*) const = 0;
  virtual bool apply(Op*) const = 0;

  // For those that put ops in place of others.
  bool touchesAnchored(Op*) const { return false; }
  void transferBaseProperties(Op*, Op*) const {}
  std::unique_ptr<Op> makeReplacementOp(const OperatorIdentifier&, Op*,
                                        const std::string& = "") const {
    throw error("{}: ops that patterns make are made with Graph::createOp", getPatternName());
  }
};

}  // namespace popart
