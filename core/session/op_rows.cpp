// SPDX-License-Identifier: Apache-2.0
#include "session/op_rows.h"

#include "ops/op.h"

namespace tessera {

std::vector<RowInfo> op_rows() {
  constexpr const char* kKinds[] = {"pointwise", "view", "structured"};
  constexpr const char* kRules[] = {"same",  "number", "real", "int",
                                    "whole", "float",  "bool", "given"};
  constexpr const char* kFacts[] = {"rounds",  "exact",      "picks", "divides", "updates",
                                    "halfway", "any_layout", "fuses", "double"};
  std::vector<RowInfo> out;
  for (int i = 0; i < static_cast<int>(Op::kCount); ++i) {
    const Op op = static_cast<Op>(i);
    if (op == Op::Fused) continue;  // only passes make it
    RowInfo row;
    row.name = op_text(op);
    row.kind = kKinds[static_cast<int>(op_kind(op))];
    if (is_pointwise(op)) {
      row.arity = pointwise_arity(op);
      row.rule = kRules[static_cast<int>(pointwise_rule(op))];
    }
    row.signature = op_signature(op);
    for (size_t bit = 0; bit < std::size(kFacts); ++bit)
      if (op_facts(op) >> bit & 1) row.facts.emplace_back(kFacts[bit]);
    out.push_back(std::move(row));
  }
  return out;
}

}  // namespace tessera
