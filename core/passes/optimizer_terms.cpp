// SPDX-License-Identifier: Apache-2.0
#include "passes/optimizer_terms.h"

#include <algorithm>

namespace tessera {
namespace {

DType joined(const TensorType& x, const TensorType& y) {
  if ((x.rank() == 0) != (y.rank() == 0)) return x.rank() == 0 ? y.dtype : x.dtype;
  return x.dtype == DType::F64 || y.dtype == DType::F64 ? DType::F64 : x.dtype;
}

Dims broadcast(const Dims& x, const Dims& y) {
  const Dims& longer = x.size() >= y.size() ? x : y;
  const Dims& other = x.size() >= y.size() ? y : x;
  Dims out = longer;
  const size_t skip = longer.size() - other.size();
  for (size_t i = 0; i < other.size(); ++i) out[skip + i] = std::max(out[skip + i], other[i]);
  return out;
}

bool compares(Op op) {
  return op == Op::Gt || op == Op::Lt || op == Op::Le || op == Op::Eq || op == Op::LogicalNot;
}

TensorType result_of(Op op, const TensorType& x, const TensorType& y) {
  return {compares(op) ? DType::Bool : joined(x, y), broadcast(x.shape, y.shape), {}};
}

TensorType like(Op op, const TensorType& x) {
  return {compares(op) ? DType::Bool : x.dtype, x.shape, {}};
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
  t.shape = broadcast(condition.type().shape, t.shape);
  return {x.b, x.b->add(Op::Where, {condition.v, x.v, y.v}, t)};
}

Term where(Term condition, Term x, double y) {
  TensorType t{x.type().dtype, broadcast(condition.type().shape, x.type().shape), {}};
  return {x.b, x.b->pointwise(Op::Where, {Arg::operand(0), Arg::operand(1), Arg::real(y)},
                              {condition.v, x.v}, t)};
}

Term where(Term condition, double x, Term y) {
  TensorType t{y.type().dtype, broadcast(condition.type().shape, y.type().shape), {}};
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

const Source* find_source(const Graph& g, const std::string& name, const TensorType& type) {
  for (const Source& s : g.sources) {
    if (s.name != name) continue;
    user_check(g.type(s.value).same_logical(type), "[state] \"{}\" is {}, not {}", name,
               to_string(g.type(s.value)), to_string(type));
    return &s;
  }
  return nullptr;
}

Term UpdateGroup::slot(const char* state, DType dtype, const std::string& value) {
  return shared(fmt::format("{} {}", state, value), [&] {
    const std::string name = fmt::format("{}:{}", state, o_.group);
    const TensorType type{dtype, {kHyperSlots}, {}};
    const Source* found = find_source(b_.graph(), name, type);
    ValueId all = found ? found->value : b_.graph().add_source(SourceKind::kBuffer, name, type);
    auto it = o_.flags.find(value);
    user_check(it != o_.flags.end() && it->second >= 0 && it->second < kHyperSlots,
               "[optimizer] {} of group {} needs a slot for `{}`", o_.kind, o_.group, value);
    return Term{&b_, b_.add(Op::Select, {all}, {dtype, {}, {}},
                            {Arg::integer(0), Arg::integer(static_cast<int64_t>(it->second))})};
  });
}

Term UpdateGroup::scalar_state(const std::string& what) {
  const std::string name = fmt::format("{}:{}", what, o_.group);
  return {&b_, b_.graph().add_source(SourceKind::kBuffer, name, {DType::F64, {}, {}})};
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
  ValueId v = graph.add_source(SourceKind::kBuffer, fmt::format("{}:{}", what, name_), type);
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
