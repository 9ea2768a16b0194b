// SPDX-License-Identifier: Apache-2.0
// Puts a `clone` where an op cannot read its operand as it lies in memory: a reshape across a
// transpose, a kernel that wants contiguous rows. After this pass every view is an alias and every
// operand is readable.
#include "ops/flow.h"
#include "ops/physical.h"
#include "ops/registry.h"
#include "passes/pass.h"

namespace tessera {

bool materialize_views(Graph& g, const PassContext&) {
  std::vector<TensorRef> memory(g.values.size());
  for (const Source& s : g.sources) memory[s.value] = dense_ref(g, s.value);
  std::vector<bool> streamed(g.values.size(), false);
  for (const Source& s : g.sources) streamed[s.value] = s.kind == SourceKind::kInput;
  bool changed = false;
  rewrite(g, [&](Node& n, Builder& b) -> std::vector<ValueId> {
    auto copied = [&](ValueId v) {
      ValueId c = b.copy(v, {g.type(v).dtype, g.type(v).shape, {}});
      memory.resize(g.values.size());
      memory[c] = dense_ref(g, c);
      changed = true;
      return c;
    };
    if (is_view(n.op)) {
      auto alias = view_ref(g, n, memory[n.operands[0]]);
      if (!alias) {
        n.operands[0] = copied(n.operands[0]);
        alias = view_ref(g, n, memory[n.operands[0]]);
        invariant(alias.has_value(), "a dense tensor has no {} to {}", op_text(n.op),
                  to_string(g.type(n.results[0])));
      }
      memory[n.results[0]] = *alias;
      return {};
    }
    if (!is_pointwise(n.op) && n.op != Op::HostCall) {
      const OpRow& row = op_row(n.op);
      for (size_t i = 0; i < n.operands.size(); ++i) {
        const TensorRef& t = memory[n.operands[i]];
        const bool readable = is_flow(n.op)
                                  ? reads_as_it_lies(n, i, t)
                                  : t.contiguous() || row.accepts(n.op, static_cast<int>(i), t);
        if (!readable) n.operands[i] = copied(n.operands[i]);
      }
    }
    // A host call is bound to addresses once, but inputs lie where the caller's tensors are.
    if (n.op == Op::HostCall)
      for (ValueId& v : n.operands)
        if (memory[v].region < static_cast<int>(streamed.size()) && streamed[memory[v].region])
          v = copied(v);
    memory.resize(g.values.size());
    for (ValueId v : n.results) memory[v] = dense_ref(g, v);
    return {};
  });
  return changed;
}

}  // namespace tessera
