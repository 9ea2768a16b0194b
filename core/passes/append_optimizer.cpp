// SPDX-License-Identifier: Apache-2.0
// The optimizer as pointwise ops on parameter, gradient and state, one group of nodes per
// parameter: fusion makes one kernel of each, or the epilogue of the product that makes the
// gradient. Hyper-parameters are scalars read from a state of the group, so a new learning rate
// never recompiles.
#include <algorithm>
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

// Each element of the gradients into the limits of its group.
void clip_values(std::vector<Item>& items) {
  for (Item& item : items) {
    if (!item.group->has("max_grad_value")) continue;
    Term limit = item.group->hyper("max_grad_value");
    item.gradient = apply(Op::Minimum, apply(Op::Maximum, item.gradient, -limit), limit);
  }
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

// Doubles the loss scaling every so many steps, or halves it if too many of the scaled gradients
// come near the largest float16.
void adjust_loss_scale(Builder& b, ValueId scale, const std::vector<Term>& gradients) {
  constexpr double kEdge = 65504.0 / 8, kPeriod = 8, kLargest = 1 << 24;
  constexpr double kTooMany = 1e-7;  // of all elements
  std::optional<Term> large;
  double count = 0;
  for (Term g : gradients) {
    // not finite counts as large
    Term fits = apply(Op::Le, apply(Op::Abs, cast(g, DType::F32)), kEdge);
    Term part = sum(cast(apply(Op::LogicalNot, fits), DType::F32));
    large = large ? *large + part : part;
    count += static_cast<double>(g.type().count());
  }
  if (!large) return;
  Graph& g = b.graph();
  Source counter{SourceKind::kLossSteps, kNoValue, "loss:steps"};
  Term steps{&b, add_state(g, std::move(counter), {DType::F32, {}, {}})};
  Term old{&b, scale}, now = steps + 1.0;
  Term due = apply(Op::Le, kPeriod, now);
  Term up = apply(Op::ClampMax, old * 2.0, kLargest);
  Term next = where(apply(Op::Gt, *large, kTooMany * count), old * 0.5, up);
  g.updates.push_back({scale, where(due, next, old).v});
  g.updates.push_back({steps.v, where(due, 0.0, now).v});
}

// What the model has written to a parameter by itself; its update goes on from there.
ValueId take_written(Graph& g, ValueId param) {
  auto it = std::find_if(g.updates.begin(), g.updates.end(),
                         [&](const StateUpdate& u) { return u.state == param; });
  if (it == g.updates.end()) return param;
  const ValueId written = it->value;
  g.updates.erase(it);
  return written;
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
  const Source* source = g.find_source(SourceKind::kLossScale);
  const ValueId scale = source ? source->value : kNoValue;
  if (source) unscale = 1.0 / Term{&b, scale};
  std::deque<UpdateGroup> updates;
  std::vector<Item> items;
  std::vector<Term> scaled;
  for (const OptimizerGroup& o : groups) {
    UpdateGroup& group = updates.emplace_back(b, o);
    for (ValueId w : o.params) {
      auto it = grad_of.find(w);
      if (it == grad_of.end()) continue;  // not reached by the loss
      items.push_back({&group, w, prepared({&b, it->second}, group, unscale)});
      if (group.on("automatic_loss_scaling")) scaled.push_back({&b, it->second});
    }
  }
  if (scale != kNoValue) adjust_loss_scale(b, scale, scaled);
  clip_values(items);
  clip(items);
  for (const Item& item : items) {
    const ValueId weights = take_written(g, item.param);
    Update update(*item.group, item.param, weights, name_of_param[item.param], item.gradient);
    update_rule(item.group->options().kind)(update);
  }
  g.grads.clear();
  for (Node& n : b.out) g.nodes.push_back(std::move(n));
  return true;
}

}  // namespace tessera
