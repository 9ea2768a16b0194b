// SPDX-License-Identifier: Apache-2.0
#include "passes/optimizer_terms.h"

#include <algorithm>
#include <optional>

#include "base/promote.h"

namespace tessera {
namespace {

DType joined(const TensorType& x, const TensorType& y) {
  if ((x.rank() == 0) != (y.rank() == 0)) return x.rank() == 0 ? y.dtype : x.dtype;
  return promote(x.dtype, y.dtype);
}

Dims common_shape(const Dims& x, const Dims& y) {
  std::optional<Dims> out = broadcast(x, y);
  invariant(out.has_value(), "terms of an update do not broadcast");
  return std::move(*out);
}

TensorType result_of(Op op, const TensorType& x, const TensorType& y) {
  return {pointwise_rule(op) == DTypeRule::kBool ? DType::Bool : joined(x, y),
          common_shape(x.shape, y.shape),
          {}};
}

TensorType like(Op op, const TensorType& x) {
  return {pointwise_rule(op) == DTypeRule::kBool ? DType::Bool : x.dtype, x.shape, {}};
}

}  // namespace

Term apply(Op op, Term x, Term y) {
  return {x.b, x.b->add(op, {x.v, y.v}, result_of(op, x.type(), y.type()))};
}

Term apply(Op op, Term x, double y) {
  return {x.b, x.b->add(op, {x.v}, like(op, x.type()), {Arg::real(y)})};
}

Term apply(Op op, double x, Term y) {
  return {y.b, y.b->pointwise(op, {Arg::real(x), Arg::operand(0)}, {y.v}, like(op, y.type()))};
}

Term apply(Op op, Term x) {
  return {x.b, x.b->add(op, {x.v}, like(op, x.type()))};
}

Term cast(Term x, DType to) {
  if (x.type().dtype == to) return x;
  return {x.b, x.b->add(Op::Cast, {x.v}, {to, x.type().shape, {}})};
}

Term where(Term condition, Term x, Term y) {
  TensorType t = result_of(Op::Where, x.type(), y.type());
  t.shape = common_shape(condition.type().shape, t.shape);
  return {x.b, x.b->add(Op::Where, {condition.v, x.v, y.v}, t)};
}

Term where(Term condition, Term x, double y) {
  TensorType t{x.type().dtype, common_shape(condition.type().shape, x.type().shape), {}};
  return {x.b, x.b->pointwise(Op::Where, {Arg::operand(0), Arg::operand(1), Arg::real(y)},
                              {condition.v, x.v}, t)};
}

Term where(Term condition, double x, Term y) {
  TensorType t{y.type().dtype, common_shape(condition.type().shape, y.type().shape), {}};
  return {y.b, y.b->pointwise(Op::Where, {Arg::operand(0), Arg::real(x), Arg::operand(1)},
                              {condition.v, y.v}, t)};
}

Term sum(Term x, std::vector<int64_t> dims) {
  if (x.type().rank() == 0) return x;
  TensorType t{x.type().dtype, {}, {}};
  if (!dims.empty()) {
    t.shape = x.type().shape;
    for (int64_t d : dims) t.shape[d] = 1;
  }
  const bool keep = !dims.empty();
  return {x.b, x.b->add(Op::Sum, {x.v}, t, {Arg::ints(dims), Arg::boolean(keep)})};
}

ValueId add_state(Graph& g, Source s, const TensorType& type) {
  const bool known = std::any_of(g.sources.begin(), g.sources.end(), [&](const Source& other) {
    return state_key(other) == state_key(s);
  });
  user_check(!known, "[state] the optimizer adds \"{}\", which the text has already",
             state_name(s));
  return g.add_source(std::move(s), type);
}

Term UpdateGroup::slot(const char* state, DType dtype, const std::string& value) {
  return shared(fmt::format("{} {}", state, value), [&] {
    Graph& g = b_.graph();
    auto found = std::find_if(g.sources.begin(), g.sources.end(), [&](const Source& s) {
      return s.kind == SourceKind::kHyper && s.group == o_.group && g.type(s.value).dtype == dtype;
    });
    const ValueId all = found != g.sources.end()
                            ? found->value
                            : g.add_source({SourceKind::kHyper, kNoValue, state, {}, o_.group},
                                           {dtype, {kHyperSlots}, {}});
    auto it = o_.flags.find(value);
    user_check(it != o_.flags.end() && it->second >= 0 && it->second < kHyperSlots,
               "[optimizer] {} of group {} needs a slot for `{}`", o_.kind, o_.group, value);
    return Term{&b_, b_.add(Op::Select, {all}, {dtype, {}, {}},
                            {Arg::integer(0), Arg::integer(static_cast<int64_t>(it->second))})};
  });
}

Term UpdateGroup::scalar_state(const std::string& what) {
  Source s{SourceKind::kOptimizer, kNoValue, what, {}, o_.group};
  return {&b_, add_state(b_.graph(), std::move(s), {DType::F64, {}, {}})};
}

Term UpdateGroup::step() {
  return shared("step", [&] {
    Term before = scalar_state("step");
    Term now = before + 1.0;
    update(before.v, now);
    return now;
  });
}

Update::Update(UpdateGroup& of, ValueId param, ValueId weights, std::string name, Term gradient)
    : group(of), param_(param), name_(std::move(name)) {
  Term now{&of.builder(), weights};
  w = cast(now, wide(now.type().dtype));
  g = cast(gradient, w.type().dtype);
}

Term Update::add_state(const std::string& what, TensorType type) {
  Graph& graph = group.builder().graph();
  ValueId v = tessera::add_state(graph, {SourceKind::kOptimizer, kNoValue, what, name_}, type);
  states_[what] = v;
  return cast({&group.builder(), v}, w.type().dtype);
}

Term Update::state(const std::string& what, const char* half) {
  return add_state(what, {on(half) ? DType::F16 : w.type().dtype, w.type().shape, {}});
}

Term Update::state(const std::string& what, Dims shape) {
  return add_state(what, {w.type().dtype, std::move(shape), {}});
}

}  // namespace tessera
