// SPDX-License-Identifier: Apache-2.0
#include "ops/op.h"

#include <unordered_map>

namespace tessera {
namespace {

struct Facts {
  std::string_view text;
  OpKind kind;
  int arity;
  DTypeRule rule;
  int flops;
  int facts;
  std::string_view signature;
};

constexpr Facts pointwise(std::string_view text, int arity, DTypeRule rule, int flops, int facts) {
  facts |= kDouble | (facts & kExact ? 0 : kRounds);
  return {text, OpKind::kPointwise, arity, rule, flops, facts, {}};
}
constexpr Facts structured(std::string_view text, std::string_view family, int facts,
                           std::string_view signature) {
  const bool view = family == "view";
  return {text,     view ? OpKind::kView : OpKind::kStructured,
          0,        DTypeRule::kGiven,
          0,        facts | (view ? kDouble : 0),
          signature};
}

constexpr Facts kFacts[] = {
#define POINTWISE(name, text, arity, rule, flops, facts, body) \
  pointwise(text, arity, DTypeRule::rule, flops, facts),
#include "ops/pointwise.def"
#undef POINTWISE
#define OP(name, text, family, facts, signature) structured(text, #family, facts, signature),
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

int op_facts(Op op) {
  return facts(op).facts;
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
