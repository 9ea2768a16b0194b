// SPDX-License-Identifier: Apache-2.0
// The optimizer as pointwise ops on parameter, gradient and state, one group of nodes per
// parameter: fusion makes one kernel of each, or the epilogue of the product that makes the
// gradient. Hyper-parameters are scalars read from the state "hyper:<group>", so a new learning
// rate never recompiles.
#include <optional>

#include "passes/optimizer_terms.h"

namespace tessera {
namespace {

struct Item {
  UpdateGroup* group;
  ValueId param;
  Term gradient;
};

// As the rules want it: without loss scaling, and to be followed downhill.
Term prepared(Term gradient, const UpdateGroup& group, std::optional<Term> unscale) {
  if (group.options().kind == "sgd_velocity") return gradient;
  gradient = cast(gradient, wide(gradient.type().dtype));
  if (unscale) gradient = gradient * *unscale;
  return group.on("maximize") ? -gradient : gradient;
}

// Scales all gradients down together where their common norm is above the limit.
void clip(std::vector<Item>& items) {
  if (items.empty() || !items[0].group->has("max_grad_norm")) return;
  std::optional<Term> total;
  for (const Item& item : items) {
    Term part = sum(square(item.gradient));
    total = total ? *total + part : part;
  }
  Term limit = items[0].group->hyper("max_grad_norm");
  Term factor = limit / apply(Op::Maximum, limit, sqrt(*total));
  for (Item& item : items) item.gradient = item.gradient * factor;
}

}  // namespace

bool append_optimizer(Graph& g, const PassContext&) {
  if (g.optimizer.empty()) return false;
  std::map<ValueId, ValueId> grad_of;
  for (const StateUpdate& u : g.grads) grad_of[u.state] = u.value;
  std::map<ValueId, std::string> name_of_param;
  for (const Source& s : g.sources) name_of_param[s.value] = s.name;
  Builder b(g);
  std::vector<OptimizerGroup> groups = std::move(g.optimizer);
  g.optimizer.clear();
  std::optional<Term> unscale;
  if (const Source* scale = find_source(g, kLossScale)) unscale = 1.0 / Term{&b, scale->value};
  std::deque<UpdateGroup> updates;
  std::vector<Item> items;
  for (const OptimizerGroup& o : groups) {
    UpdateGroup& group = updates.emplace_back(b, o);
    for (ValueId w : o.params) {
      auto it = grad_of.find(w);
      if (it == grad_of.end()) continue;  // not reached by the loss
      items.push_back({&group, w, prepared({&b, it->second}, group, unscale)});
    }
  }
  clip(items);
  for (const Item& item : items) {
    Update update(*item.group, item.param, name_of_param[item.param], item.gradient);
    update_rule(item.group->options().kind)(update);
  }
  g.grads.clear();
  for (Node& n : b.out) g.nodes.push_back(std::move(n));
  return true;
}

}  // namespace tessera
