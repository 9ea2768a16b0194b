// SPDX-License-Identifier: Apache-2.0
#include "ops/check_types.h"

#include "ir/signature.h"
#include "ops/registry.h"
#include "ops/view.h"

namespace tessera {
namespace {

bool result_fits(DTypeRule rule, DType t) {
  switch (rule) {
    case DTypeRule::kBool:
      return t == DType::Bool;
    case DTypeRule::kNumber:
      return is_float(t) || is_int(t);
    case DTypeRule::kReal:
    case DTypeRule::kFloat:
      return is_float(t);
    case DTypeRule::kInt:
      return is_int(t);
    case DTypeRule::kWhole:
      return is_int(t) || t == DType::Bool;
    default:
      return class_of(t) != DTypeClass::kOpaque;
  }
}

void check_results(const Graph& g, const Node& n) {
  const std::vector<TensorType> types = op_row(n.op).infer(g, n);
  user_check(types.size() == n.results.size(), "{} has {} results, {} are stated", op_text(n.op),
             types.size(), n.results.size());
  for (size_t i = 0; i < types.size(); ++i) {
    const TensorType& stated = g.type(n.results[i]);
    user_check(types[i].same_logical(stated), "result {} of {} is {}{}, stated is {}{}", i,
               op_text(n.op), name_of(types[i].dtype), text_of(types[i].shape),
               name_of(stated.dtype), text_of(stated.shape));
  }
}

void check_node(const Graph& g, const Node& n) {
  check_signature(g, n);
  user_check(!n.body == (n.op != Op::Fused) || n.op == Op::Mm || n.op == Op::Bmm, "{} {} a body",
             op_text(n.op), n.body ? "has no use for" : "needs");
  if (n.body)
    check_body(g, n);
  else if (is_pointwise(n.op))
    check_pointwise(g, n);
  else
    check_results(g, n);
}

}  // namespace

void check_pointwise(const Graph& g, const Node& n) {
  user_check(n.results.size() == 1, "{} has one result, {} are stated", op_text(n.op),
             n.results.size());
  const TensorType& out = g.type(n.results[0]);
  user_check(result_fits(pointwise_rule(n.op), out.dtype), "{} has no result of type {}",
             op_text(n.op), name_of(out.dtype));
  if (n.op == Op::Uniform) {
    const Arg& key = n.args.at(0);
    user_check(
        key.is_operand() && g.type(n.operands[key.i]).same_logical({DType::I64, {2}, {}}) &&
            n.args.at(1).kind == Arg::Kind::kInt && is_float(out.dtype) &&
            out.count() < int64_t{1} << 32,
        "uniform takes a key of type i64[2] and the number of a stream, and gives fewer than "
        "2^32 floats");
    return;
  }
  if (n.op == Op::Iota) {
    user_check(
        n.operands.empty() && n.args.at(0).kind == Arg::Kind::kInt && out.dtype != DType::Bool,
        "iota takes a dim and numbers");
    user_check(out.rank() > 0, "iota has no dim {} in a scalar", n.args.integer(0));
    wrap_dim(n.args.integer(0), out.rank());
    return;
  }
  for (ValueId v : n.operands) {
    const TensorType& in = g.type(v);
    bool fits = in.rank() <= out.rank();
    for (int i = 1; fits && i <= in.rank(); ++i) {
      const int64_t size = in.shape[in.rank() - i];
      fits = size == 1 || size == out.shape[out.rank() - i];
    }
    user_check(fits, "{}: an operand of shape {} does not broadcast to {}", op_text(n.op),
               text_of(in.shape), text_of(out.shape));
  }
}

void check_types(const Graph& g) {
  for (const Node& n : g.nodes) {
    for (const auto& body : n.bodies) check_types(*body);
    try {
      check_node(g, n);
    } catch (UserError& error) {
      const std::string where = n.place.line
                                    ? fmt::format(" (line {}, column {} of the program text)",
                                                  n.place.line, n.place.column)
                                    : "";
      throw UserError(error.what() + where, describe_location(g, n.loc));
    }
  }
}

}  // namespace tessera
