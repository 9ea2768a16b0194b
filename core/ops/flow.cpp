// SPDX-License-Identifier: Apache-2.0
// See flow.h. The kernels are made where those of the steps inside are, in runtime/flow_kernel.cpp,
// and the work is summed up by the planner.
#include "ops/flow.h"

#include <algorithm>

#include "ops/custom_call.h"
#include "ops/registry.h"

namespace tessera {
namespace {

TensorType row_major(const TensorType& t) {
  return {t.dtype, t.shape, {}};
}

void check_inputs(const Graph& body, const std::vector<TensorType>& inputs, Op op) {
  user_check(body.sources.size() == inputs.size(), "a body of {} has {} inputs, it gets {}",
             op_text(op), body.sources.size(), inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Source& s = body.sources[i];
    user_check(s.kind == SourceKind::kInput, "a body of {} has no {}", op_text(op),
               text_of(s.kind));
    const TensorType& t = body.type(s.value);
    user_check(t.same_logical(inputs[i]) && t.order.empty(),
               "input {} of a body of {} is {}, it gets {}", i, op_text(op), to_string(t),
               to_string(inputs[i]));
  }
}

std::vector<TensorType> infer_scan_node(const Graph& g, const Node& n) {
  user_check(n.bodies.size() == 1, "scan has one body, not {}", n.bodies.size());
  const LoopParts parts = loop_parts(n.op, n.args);
  user_check(parts.count >= 0, "scan cannot take {} turns", parts.count);
  const Graph& body = *n.bodies[0];
  std::vector<TensorType> inputs;
  for (size_t i = 0; i < n.operands.size(); ++i) {
    TensorType t = row_major(g.type(n.operands[i]));
    if (parts.is_x(i)) {
      user_check(t.rank() > 0 && t.shape[0] == parts.count, "scan takes {} turns over slices of {}",
                 parts.count, to_string(t));
      t.shape.erase(t.shape.begin());
    }
    inputs.push_back(std::move(t));
  }
  check_inputs(body, inputs, n.op);
  user_check(body.outputs.size() >= parts.carries, "a body of scan has {} outputs for {} carries",
             body.outputs.size(), parts.carries);
  std::vector<TensorType> out;
  for (size_t i = 0; i < body.outputs.size(); ++i) {
    TensorType t = row_major(body.type(body.outputs[i]));
    if (i < parts.carries)
      user_check(t == inputs[i], "scan carries {} from turn to turn, its body gives {}",
                 to_string(inputs[i]), to_string(t));
    else
      t.shape.insert(t.shape.begin(), parts.count);
    out.push_back(std::move(t));
  }
  return out;
}

std::vector<TensorType> infer_while_node(const Graph& g, const Node& n) {
  user_check(n.bodies.size() == 1, "while has one body, not {}", n.bodies.size());
  const LoopParts parts = loop_parts(n.op, n.args);
  user_check(parts.carries > 0, "while has no carry to test");
  std::vector<TensorType> types;
  for (ValueId v : n.operands) types.push_back(row_major(g.type(v)));
  user_check(types[0].dtype == DType::Bool && types[0].count() == 1, "while tests one bool, not {}",
             to_string(types[0]));
  const Graph& body = *n.bodies[0];
  check_inputs(body, types, n.op);
  user_check(body.outputs.size() == parts.carries, "a body of while has {} outputs for {} carries",
             body.outputs.size(), parts.carries);
  types.resize(parts.carries);
  for (size_t i = 0; i < parts.carries; ++i) {
    const TensorType t = row_major(body.type(body.outputs[i]));
    user_check(t == types[i], "while carries {} from turn to turn, its body gives {}",
               to_string(types[i]), to_string(t));
  }
  return types;
}

std::vector<TensorType> infer_branch_node(const Graph& g, const Node& n) {
  user_check(n.bodies.size() == 2, "branch has two bodies, not {}", n.bodies.size());
  user_check(g.type(n.operands[0]).count() == 1, "branch takes one bool, not {}",
             to_string(g.type(n.operands[0])));
  std::vector<TensorType> inputs;
  for (size_t i = 1; i < n.operands.size(); ++i) inputs.push_back(row_major(g.type(n.operands[i])));
  std::vector<TensorType> out[2];
  for (size_t way = 0; way < 2; ++way) {
    const Graph& body = *n.bodies[way];
    check_inputs(body, inputs, n.op);
    for (ValueId v : body.outputs) out[way].push_back(row_major(body.type(v)));
  }
  user_check(out[0].size() == out[1].size(), "the bodies of branch have {} and {} outputs",
             out[0].size(), out[1].size());
  for (size_t i = 0; i < out[0].size(); ++i)
    user_check(out[0][i] == out[1][i], "output {} of branch is {} or {}", i, to_string(out[0][i]),
               to_string(out[1][i]));
  return out[0];
}

}  // namespace

LoopParts loop_parts(Op op, const Args& args) {
  if (op == Op::Branch) return {};
  if (op == Op::While) return {0, args.at(0).list.size(), 0, args.at(1).list.size(), false};
  return {args.integer(0), args.at(1).list.size(), args.at(2).list.size(), args.at(3).list.size(),
          args.boolean(4)};
}

bool is_pure(const Node& n) {
  if (n.op == Op::HostCall || (n.op == Op::Custom && custom_varies(n.args))) return false;
  return std::all_of(n.bodies.begin(), n.bodies.end(), [](const auto& body) {
    return std::all_of(body->nodes.begin(), body->nodes.end(), is_pure);
  });
}

bool reads_as_it_lies(const Node& n, size_t i, const TensorRef& physical) {
  if (n.op != Op::Scan || !loop_parts(n.op, n.args).is_x(i)) return physical.contiguous();
  TensorRef slice = physical;
  slice.shape.erase(slice.shape.begin());
  slice.strides.erase(slice.strides.begin());
  return slice.contiguous();
}

std::vector<TensorType> infer_flow(const Graph& g, const Node& n) {
  if (n.op == Op::Scan) return infer_scan_node(g, n);
  return n.op == Op::While ? infer_while_node(g, n) : infer_branch_node(g, n);
}

}  // namespace tessera
