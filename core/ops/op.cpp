// SPDX-License-Identifier: Apache-2.0
#include "ops/op.h"

#include <unordered_map>

#include "ops/registry.h"

namespace tessera {
namespace {

struct Facts {
  std::string_view text;
  OpKind kind;
  int arity;
  DTypeRule rule;
  int flops;
  std::string_view signature;
};

// Only whether it is a view counts here.
#define ROW(family) family,
enum class Family { TESSERA_FAMILIES(ROW) view, composite, fused, host };
#undef ROW

constexpr Facts kFacts[] = {
#define POINTWISE(name, text, arity, rule, flops, body) \
  {text, OpKind::kPointwise, arity, DTypeRule::rule, flops, {}},
#include "ops/pointwise.def"
#undef POINTWISE
#define OP(name, text, family, signature)                                      \
  {text, Family::family == Family::view ? OpKind::kView : OpKind::kStructured, \
   0,    DTypeRule::kGiven,                                                    \
   0,    signature},
#include "ops/ops.def"
#undef OP
};
static_assert(sizeof(kFacts) / sizeof(kFacts[0]) == static_cast<size_t>(Op::kCount));

const Facts& facts(Op op) {
  return kFacts[static_cast<int>(op)];
}

}  // namespace

std::string_view op_text(Op op) {
  return facts(op).text;
}
OpKind op_kind(Op op) {
  return facts(op).kind;
}
int pointwise_arity(Op op) {
  return facts(op).arity;
}
DTypeRule pointwise_rule(Op op) {
  return facts(op).rule;
}
int pointwise_flops(Op op) {
  return facts(op).flops;
}
std::string_view op_signature(Op op) {
  return facts(op).signature;
}

std::optional<Op> op_from_text(std::string_view text) {
  static const auto& table = *[] {
    auto* t = new std::unordered_map<std::string_view, Op>();
    for (int i = 0; i < static_cast<int>(Op::kCount); ++i)
      t->emplace(kFacts[i].text, static_cast<Op>(i));
    return t;
  }();
  auto it = table.find(text);
  if (it == table.end()) return std::nullopt;
  return it->second;
}

}  // namespace tessera
