// SPDX-License-Identifier: Apache-2.0
// Rewrites of PopART's graph. There is no such graph here: they are accepted and never applied.
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
};

}  // namespace popart
