// SPDX-License-Identifier: Apache-2.0
// -(-x) is x. The first negation stays for others that read it; dce removes it if there are none.
#include <unordered_map>

#include "passes/pass.h"

namespace tessera {

bool drop_double_negation(Graph& g, const PassContext&) {
  std::unordered_map<ValueId, ValueId> negated;  // result of a negation -> what it negates
  return rewrite(g, [&](Node& n, Builder&) -> std::vector<ValueId> {
    if (n.op != Op::Neg) return {};
    const ValueId x = n.operands[0];
    if (auto inner = negated.find(x); inner != negated.end()) return {inner->second};
    negated[n.results[0]] = x;
    return {};
  });
}

}  // namespace tessera
