// SPDX-License-Identifier: Apache-2.0
#include "session/custom_ops.h"

#include <unordered_map>

#include "ir/graph.h"
#include "ops/check_types.h"
#include "ops/custom_call.h"

namespace tessera {
namespace {

CustomCall call_of(const CustomSite& s) {
  return {s.domain, s.name, s.version, s.inputs, s.attributes};
}

Arg value_of(const tessera_call* c, const char* name) {
  int64_t n = 0;
  std::vector<Arg> items;
  if (const float* f = tessera_call_floats(c, name, &n)) {
    for (int64_t i = 0; i < n; ++i) items.push_back(Arg::real(f[i]));
  } else if (const int64_t* v = tessera_call_ints(c, name, &n)) {
    for (int64_t i = 0; i < n; ++i) items.push_back(Arg::integer(v[i]));
  } else if (const char* const* s = tessera_call_strings(c, name, &n)) {
    for (int64_t i = 0; i < n; ++i) items.push_back(Arg::string(s[i]));
  }
  const auto kind = tessera_call_attribute_kind(c, name);
  const bool list = kind == TESSERA_FLOATS || kind == TESSERA_INTS || kind == TESSERA_STRINGS;
  return list || items.empty() ? Arg::of(std::move(items)) : items[0];
}

// The first node that a composition can't have.
const Node* stranger_in(const Graph& g) {
  for (const Node& n : g.nodes) {
    if (n.body || n.op == Op::HostCall) return &n;
    for (const auto& body : n.bodies)
      if (const Node* found = stranger_in(*body)) return found;
  }
  return nullptr;
}

// The graph of a composition; its inputs and outputs are those of the call.
std::unique_ptr<Graph> read_composition(const CustomCall& call, const CustomSite& site,
                                        const std::vector<TensorType>& outputs) {
  auto check = [&](bool ok, const std::string& what) {
    user_check(ok, "[{}] composition: {} ({})", call.label(), what, call.library());
  };
  std::unique_ptr<Graph> g;
  try {
    g = parse_graph(tessera_call_composition(call.get()));
    check_types(*g);
  } catch (const MemoryError&) {
    throw;
  } catch (const UserError& e) {
    check(false, e.what());
  }
  check(g->sources.size() == site.inputs.size(),
        fmt::format("it has {} inputs, the op has {}", g->sources.size(), site.inputs.size()));
  for (size_t i = 0; i < g->sources.size(); ++i) {
    check(g->sources[i].kind == SourceKind::kInput, "it has states; only inputs may be");
    const TensorType& t = g->type(g->sources[i].value);
    check(t.same_logical(site.inputs[i]), fmt::format("input {} is {}, that of the op is {}", i,
                                                      to_string(t), to_string(site.inputs[i])));
  }
  const auto updates = static_cast<size_t>(tessera_call_update_count(call.get()));
  check(
      g->outputs.size() == outputs.size() + updates,
      fmt::format("it has {} outputs, setup says {}", g->outputs.size() - updates, outputs.size()));
  for (size_t i = 0; i < outputs.size(); ++i) {
    const TensorType& t = g->type(g->outputs[i]);
    check(t.same_logical(outputs[i]),
          fmt::format("output {} is {}, setup says {}", i, to_string(t), to_string(outputs[i])));
  }
  check(g->grads.empty() && g->updates.empty() && g->optimizer.empty() && g->loss == kNoValue,
        "it has a loss, gradients or updates; only outputs may be");
  if (const Node* n = stranger_in(*g))
    check(false, fmt::format("{} has no place in one (line {}, column {} of the program text)",
                             op_text(n->op), n->place.line, n->place.column));
  return g;
}

// Operands as numbers of values.
Arg numbered(const Arg& a, const Node& n, const std::unordered_map<ValueId, int64_t>& number) {
  if (a.is_operand()) return Arg::operand(number.at(n.operands[a.i]));
  Arg out = a;
  for (Arg& x : out.list) x = numbered(x, n, number);
  return out;
}

Composition numbered(const Graph& g) {
  std::unordered_map<ValueId, int64_t> number;
  for (const Source& s : g.sources) number.emplace(s.value, number.size());
  Composition out;
  for (const Node& n : g.nodes) {
    Composition::Node& node = out.nodes.emplace_back();
    node.op = op_text(n.op);
    for (const Arg& a : n.args.list) node.args.list.push_back(numbered(a, n, number));
    for (ValueId v : n.results) {
      number.emplace(v, number.size());
      node.results.push_back(number.at(v));
      node.types.push_back(g.type(v));
    }
    node.line = n.place.line;
    node.column = n.place.column;
    for (const auto& body : n.bodies) node.bodies.push_back(numbered(*body));
  }
  for (ValueId v : g.outputs) out.outputs.push_back(number.at(v));
  return out;
}

}  // namespace

std::vector<CustomOpInfo> custom_ops() {
  std::vector<CustomOpInfo> out;
  for (int64_t i = 0; i < tessera_op_count(); ++i) {
    const tessera_op* op = tessera_op_at(i);
    out.push_back({op->domain, op->name, op->version, tessera_op_library(op),
                   op->compose != nullptr, op->gradients != nullptr});
  }
  return out;
}

std::vector<std::string> custom_refused() {
  std::vector<std::string> out;
  for (int64_t i = 0; i < tessera_refused_count(); ++i) out.emplace_back(tessera_refused_at(i));
  return out;
}

std::vector<TensorType> custom_setup(const CustomSite& site) {
  return call_of(site).setup();
}

bool custom_wants_seed(const CustomSite& site) {
  CustomCall call = call_of(site);
  call.setup();
  return tessera_call_wants_seed(call.get()) != 0;
}

Composition custom_compose(const CustomSite& site) {
  CustomCall call = call_of(site);
  user_check(call.op().compose != nullptr, "[{}] has no composition", call.label());
  const std::vector<TensorType> outputs = call.setup();
  call.check(tessera_call_compose(call.get()));
  const std::unique_ptr<Graph> g = read_composition(call, site, outputs);
  Composition out = numbered(*g);
  for (int32_t i = 0; i < tessera_call_update_count(call.get()); ++i) {
    int32_t kind = 0;
    const int32_t input = tessera_call_update_at(call.get(), i, &kind);
    out.updates.emplace_back(input, kind);
    const TensorType& now = g->type(g->outputs[outputs.size() + static_cast<size_t>(i)]);
    user_check(now.same_logical(site.inputs.at(static_cast<size_t>(input))),
               "[{}] composition: the new value of input {} is {}, the input is {} ({})",
               call.label(), input, to_string(now),
               to_string(site.inputs[static_cast<size_t>(input)]), call.library());
  }
  return out;
}

void set_custom_facts(const std::vector<std::pair<std::string, int64_t>>& facts) {
  std::vector<const char*> names;
  std::vector<int64_t> values;
  for (const auto& [name, value] : facts) {
    names.push_back(name.c_str());
    values.push_back(value);
  }
  tessera_set_facts(names.data(), values.data(), static_cast<int64_t>(names.size()));
}

std::vector<CustomGradient> custom_gradients(const CustomSite& site) {
  CustomCall call = call_of(site);
  call.setup();
  call.check(tessera_call_gradients(call.get()));
  std::vector<CustomGradient> out;
  for (int32_t k = 0; k < tessera_call_gradient_count(call.get()); ++k) {
    const tessera_gradient* g = tessera_call_gradient_at(call.get(), k);
    const tessera_call* op = tessera_gradient_call(g);
    CustomGradient& found = out.emplace_back();
    found.op = {tessera_call_domain(op), tessera_call_name(op), tessera_call_version(op), {}, {}};
    std::vector<Arg> attributes;
    for (int32_t i = 0; i < tessera_call_attributes(op); ++i) {
      const char* name = tessera_call_attribute_name(op, i);
      attributes.push_back(Arg::of({Arg::string(name), value_of(op, name)}));
    }
    found.op.attributes = Arg::of(std::move(attributes));
    const std::string label = fmt::format("{}.{}", found.op.domain, found.op.name);
    auto within = [](int32_t i, int32_t n) { return i >= 0 && i < n; };
    for (int32_t i = 0; i < tessera_gradient_inputs(g); ++i) {
      int32_t index = 0;
      const int32_t from = tessera_gradient_input(g, i, &index);
      const int32_t count =
          from == TESSERA_IN ? tessera_call_inputs(call.get()) : tessera_call_outputs(call.get());
      user_check(from >= 0 && within(index, count),
                 "[{}] input {} of its gradient op {} is nothing that the op has ({})",
                 call.label(), i, label, call.library());
      found.inputs.emplace_back(from, index);
    }
    for (int32_t i = 0; i < tessera_gradient_outputs(g); ++i) {
      const int32_t input = tessera_gradient_output(g, i);
      user_check(input < tessera_call_inputs(call.get()),
                 "[{}] output {} of its gradient op {} is the gradient of input {}, which the op "
                 "does not have ({})",
                 call.label(), i, label, input, call.library());
      found.outputs.push_back(input);
    }
  }
  return out;
}

}  // namespace tessera
