// SPDX-License-Identifier: Apache-2.0
// Bodies that stand in text: what codegen takes as given of a region that the passes made.
#include <algorithm>

#include "ops/check_types.h"
#include "ops/registry.h"
#include "ops/view.h"

namespace tessera {
namespace {

bool broadcasts(const Dims& in, const Dims& to) {
  if (in.size() > to.size()) return false;
  for (size_t i = 1; i <= in.size(); ++i)
    if (in[in.size() - i] != 1 && in[in.size() - i] != to[to.size() - i]) return false;
  return true;
}

// The iteration space: the shape of what is stored or reduced, the same for all outputs.
Dims space_of(const Graph& body, const std::vector<int32_t>& made_by) {
  Dims space;
  const Node* reduced = nullptr;
  for (size_t i = 0; i < body.outputs.size(); ++i) {
    const ValueId v = body.outputs[i];
    const Node* n = made_by[v] < 0 ? nullptr : &body.nodes[made_by[v]];
    const bool reduces = n && has_fact(n->op, kFuses);
    const Dims& shape = body.type(reduces ? n->arg_value(0) : v).shape;
    user_check(i == 0 || shape == space, "a body stores values of {} and {}", text_of(space),
               text_of(shape));
    space = shape;
    if (!reduces) continue;
    user_check(!reduced || (n->args.size() > 1 && reduced->args.size() > 1 &&
                            n->args.ints(1) == reduced->args.ints(1)),
               "a body reduces over different dims");
    reduced = n;
  }
  return space;
}

void check_inside(const Graph& body) {
  user_check(!body.outputs.empty(), "a body has no output");
  const std::vector<int32_t> made_by = producers(body);
  const Dims space = space_of(body, made_by);
  std::vector<bool> reduced(body.values.size(), false), key(body.values.size(), false);
  for (const Node& n : body.nodes) {
    user_check(has_fact(n.op, kFuses) || is_pointwise(n.op), "{} cannot stand in a body",
               op_text(n.op));
    for (ValueId v : n.operands)
      user_check(!reduced[v], "{} uses the result of a reduction in its own body", op_text(n.op));
    if (has_fact(n.op, kFuses)) {
      reduced[n.results[0]] = true;
      const bool stored = std::count(body.outputs.begin(), body.outputs.end(), n.results[0]) > 0;
      user_check(stored && body.type(n.operands[0]).shape == space,
                 "a reduction in a body gives an output and reads all of {}", text_of(space));
    }
    if (n.op == Op::Uniform) {
      key[n.operands[0]] = true;
      user_check(made_by[n.operands[0]] < 0 && body.type(n.results[0]).shape == space,
                 "uniform in a body has a key from outside and the shape {}", text_of(space));
    }
  }
  for (const Node& n : body.nodes)
    for (ValueId v : n.operands)
      user_check(n.op == Op::Uniform || !key[v], "{} reads a random key", op_text(n.op));
  for (ValueId v : body.outputs) user_check(!key[v], "a body returns a random key");
  for (const Source& s : body.sources)
    user_check(key[s.value] || broadcasts(body.type(s.value).shape, space),
               "an operand of {} in a body over {}", text_of(body.type(s.value).shape),
               text_of(space));
  for (const Node& n : body.nodes)
    user_check(reduced[n.results[0]] || broadcasts(body.type(n.results[0]).shape, space),
               "a value of {} in a body over {}", text_of(body.type(n.results[0]).shape),
               text_of(space));
}

}  // namespace

void check_body(const Graph& g, const Node& n) {
  const Graph& body = *n.body;
  check_types(body);
  check_inside(body);
  for (size_t i = 0; i < n.args.size(); ++i)
    user_check(n.args.at(i).is_operand() && n.args.at(i).i == static_cast<int64_t>(i),
               "argument {} of a {} with a body is not a tensor", i, op_text(n.op));
  size_t first = 0;  // of the node's operands that the body reads
  std::vector<TensorType> inputs;
  if (n.op != Op::Fused) {
    TensorType product = op_row(n.op).infer(g, n)[0];
    user_check(product.dtype == DType::F32, "{} of {} has no epilogue", op_text(n.op),
               name_of(product.dtype));
    inputs.push_back(product);
    first = 2;
    for (const Node& in : body.nodes)
      user_check(is_pointwise(in.op) && in.op != Op::Iota, "{} cannot stand in an epilogue",
                 op_text(in.op));
  }
  for (size_t i = first; i < n.operands.size(); ++i) inputs.push_back(g.type(n.operands[i]));
  user_check(inputs.size() == body.sources.size(), "a body of {} inputs gets {}",
             body.sources.size(), inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i)
    user_check(inputs[i].same_logical(body.type(body.sources[i].value)),
               "input {} of a body is {}, it gets {}", i,
               to_string(body.type(body.sources[i].value)), to_string(inputs[i]));
  user_check(body.outputs.size() == n.results.size(), "a body of {} outputs for {} results",
             body.outputs.size(), n.results.size());
  for (size_t i = 0; i < n.results.size(); ++i) {
    const TensorType& out = g.type(n.results[i]);
    user_check(out.same_logical(body.type(body.outputs[i])), "output {} of a body is {}, stated {}",
               i, to_string(body.type(body.outputs[i])), to_string(out));
    if (n.op == Op::Fused) continue;
    user_check(out.shape == inputs[0].shape && out.order.empty(), "an epilogue gives {} from {}",
               to_string(out), to_string(inputs[0]));
  }
}

}  // namespace tessera
