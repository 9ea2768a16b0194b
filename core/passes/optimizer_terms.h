// SPDX-License-Identifier: Apache-2.0
// What the update rules of optimizers are written with: a Term is a value of the graph, arithmetic
// on terms adds pointwise nodes, and an Update is one parameter with its gradient, the values of
// its group and its state.
#pragma once

#include <map>
#include <string>

#include "passes/pass.h"

namespace tessera {

struct Term {
  Builder* b = nullptr;
  ValueId v = kNoValue;
  const TensorType& type() const { return b->graph().type(v); }
};

// Results have the broadcast shape, and the wider type of the operands that have dims, if any has.
Term apply(Op op, Term x, Term y);
Term apply(Op op, Term x, double y);
Term apply(Op op, double x, Term y);
Term apply(Op op, Term x);
Term cast(Term x, DType to);
Term where(Term condition, Term x, Term y);
Term where(Term condition, Term x, double y);
Term where(Term condition, double x, Term y);
// Sum over `dims`, which stay with an extent of one; over everything, to a scalar, if none is given
Term sum(Term x, std::vector<int64_t> dims = {});

inline Term operator+(Term x, Term y) {
  return apply(Op::Add, x, y);
}
inline Term operator+(Term x, double y) {
  return apply(Op::Add, x, y);
}
inline Term operator-(Term x, Term y) {
  return apply(Op::Sub, x, y);
}
inline Term operator-(Term x, double y) {
  return apply(Op::Sub, x, y);
}
inline Term operator-(double x, Term y) {
  return apply(Op::Sub, x, y);
}
inline Term operator-(Term x) {
  return apply(Op::Neg, x);
}
inline Term operator*(Term x, Term y) {
  return apply(Op::Mul, x, y);
}
inline Term operator*(Term x, double y) {
  return apply(Op::Mul, x, y);
}
inline Term operator/(Term x, Term y) {
  return apply(Op::Div, x, y);
}
inline Term operator/(double x, Term y) {
  return apply(Op::Div, x, y);
}
inline Term sqrt(Term x) {
  return apply(Op::Sqrt, x);
}
inline Term pow(Term x, Term y) {
  return apply(Op::Pow, x, y);
}
inline Term square(Term x) {
  return x * x;
}
inline Term norm(Term x) {
  return sqrt(sum(square(x)));
}

// The values and scalars of one parameter group.
class UpdateGroup {
 public:
  UpdateGroup(Builder& b, const OptimizerGroup& o) : b_(b), o_(o) {}

  Builder& builder() { return b_; }
  const OptimizerGroup& options() const { return o_; }
  // Flags are either switches (0 or 1) or say in which slot of the hyper state a value is.
  bool on(const std::string& flag) const {
    auto it = o_.flags.find(flag);
    return it != o_.flags.end() && it->second != 0;
  }
  bool has(const std::string& value) const { return o_.flags.count(value) > 0; }
  // A value of the group: in float32, or in float64 for scalar arithmetic that cancels.
  Term hyper(const std::string& value) { return slot("hyper", DType::F32, value); }
  Term exact(const std::string& value) { return slot("hyper64", DType::F64, value); }
  // Number of the update being made, from 1, in float64.
  Term step();
  // A float64 scalar that all parameters of the group share.
  Term scalar_state(const std::string& what);
  // A scalar made once for the group.
  template <typename F>
  Term shared(const std::string& key, F make) {
    auto it = shared_.find(key);
    if (it == shared_.end()) it = shared_.emplace(key, make()).first;
    return it->second;
  }
  // 1 - beta ** step
  Term bias_correction(const std::string& beta) {
    return shared("bias " + beta, [&] { return 1.0 - pow(exact(beta), step()); });
  }
  static Term to_f32(Term x) { return cast(x, DType::F32); }
  void update(ValueId state, Term value) {
    b_.graph().updates.push_back({state, cast(value, b_.graph().type(state).dtype).v});
  }

 private:
  Term slot(const char* state, DType dtype, const std::string& value);

  Builder& b_;
  const OptimizerGroup& o_;
  std::map<std::string, Term> shared_;
};

// The update of one parameter, from its present value `weights` on: that of the state, unless the
// model has written another. Half-precision weights, gradients and states are computed with in
// float32.
class Update {
 public:
  Update(UpdateGroup& group, ValueId param, ValueId weights, std::string name, Term gradient);

  UpdateGroup& group;
  Term w, g;

  bool on(const std::string& flag) const { return group.on(flag); }
  bool has(const std::string& value) const { return group.has(value); }
  Term hyper(const std::string& value) const {
    return w.type().dtype == DType::F64 ? group.exact(value) : group.hyper(value);
  }
  // A scalar made in float64, once per group, in the type of the weights' arithmetic.
  template <typename F>
  Term rate(const std::string& key, F make) {
    if (w.type().dtype == DType::F64) return group.shared(key, make);
    return group.shared(key + " f32", [&] { return UpdateGroup::to_f32(group.shared(key, make)); });
  }
  // The parameter's state `what`, of the weights' shape or of `shape`. It is kept in float16 if the
  // group has the switch `half`.
  Term state(const std::string& what, const char* half = "");
  Term state(const std::string& what, Dims shape);
  void store(const std::string& what, Term value) { group.update(states_.at(what), value); }
  void finish(Term weights) { group.update(param_, weights); }

 private:
  Term add_state(const std::string& what, TensorType type);

  ValueId param_;
  std::string name_;
  std::map<std::string, ValueId> states_;
};

using UpdateRule = void (*)(Update&);
// Throws UserError for a kind that there is no rule for.
UpdateRule update_rule(const std::string& kind);

// Adds a state that belongs to a parameter or group. Throws UserError if the graph has it.
ValueId add_state(Graph& g, Source s, const TensorType& type);

// The type to compute with.
inline DType wide(DType t) {
  return t == DType::F16 || t == DType::BF16 ? DType::F32 : t;
}

}  // namespace tessera
