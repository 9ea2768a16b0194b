// SPDX-License-Identifier: Apache-2.0
// The optimizer as pointwise ops on parameter, gradient and state, one group of nodes per
// parameter: fusion makes one kernel of each, or the epilogue of the product that makes the
// gradient. Hyper-parameters are scalars read from the state "hyper:<group>", so a new learning
// rate never recompiles.
#include <map>

#include "passes/pass.h"

namespace tessera {
namespace {

// Pointwise arithmetic on values and literals, with the shape of the left operand.
class Math {
 public:
  Math(Graph& g, Builder& b) : g_(g), b_(b) {}

  ValueId op(Op op, ValueId x, ValueId y) {
    const TensorType& t = g_.type(x).rank() >= g_.type(y).rank() ? g_.type(x) : g_.type(y);
    return b_.add(op, {x, y}, {t.dtype, t.shape, {}});
  }
  ValueId op(Op op, ValueId x, double y) {
    return b_.add(op, {x}, {g_.type(x).dtype, g_.type(x).shape, {}}, {Arg::real(y)});
  }
  ValueId one_minus(ValueId x) {
    return b_.pointwise(Op::Sub, {Arg::real(1), Arg::operand(0)}, {x},
                        {g_.type(x).dtype, g_.type(x).shape, {}});
  }
  ValueId unary(Op op, ValueId x) {
    return b_.add(op, {x}, {g_.type(x).dtype, g_.type(x).shape, {}});
  }
  ValueId add(ValueId x, ValueId y) { return op(Op::Add, x, y); }
  ValueId sub(ValueId x, ValueId y) { return op(Op::Sub, x, y); }
  ValueId mul(ValueId x, ValueId y) { return op(Op::Mul, x, y); }
  ValueId div(ValueId x, ValueId y) { return op(Op::Div, x, y); }

 private:
  Graph& g_;
  Builder& b_;
};

class Group {
 public:
  Group(Graph& g, Builder& b, const OptimizerGroup& o) : m_(g, b), g_(g), b_(b), o_(o) {
    hyper_ =
        g.add_source(SourceKind::kBuffer, fmt::format("hyper:{}", o.group), {DType::F32, {8}, {}});
  }

  bool flag(const char* name) const {
    auto it = o_.flags.find(name);
    return it != o_.flags.end() && it->second != 0;
  }
  ValueId hyper(int slot) {
    auto [it, added] = hypers_.emplace(slot, kNoValue);
    if (added)
      it->second =
          b_.add(Op::Select, {hyper_}, {DType::F32, {}, {}}, {Arg::integer(0), Arg::integer(slot)});
    return it->second;
  }
  ValueId state(const char* what, const std::string& param, const TensorType& t) {
    return g_.add_source(SourceKind::kBuffer, fmt::format("{}:{}", what, param),
                         {t.dtype, t.shape, {}});
  }
  void update(ValueId state, ValueId value) { g_.updates.push_back({state, value}); }

  // Number of the step being made, from 1.
  ValueId step() {
    if (step_ == kNoValue) {
      ValueId s = g_.add_source(SourceKind::kBuffer, fmt::format("step:{}", o_.group),
                                {DType::F32, {}, {}});
      step_ = m_.op(Op::Add, s, 1.0);
      update(s, step_);
    }
    return step_;
  }

  void sgd(ValueId w, ValueId grad, const std::string& name) {
    ValueId lr = hyper(0), mu = hyper(1);
    if (flag("maximize")) grad = m_.unary(Op::Neg, grad);
    if (flag("weight_decay")) grad = m_.add(grad, m_.mul(w, hyper(3)));
    if (flag("momentum")) {
      ValueId buf = state("momentum", name, g_.type(w));
      ValueId fresh = flag("dampening") ? m_.mul(grad, first_or(m_.one_minus(hyper(2)))) : grad;
      ValueId now = m_.add(m_.mul(buf, mu), fresh);
      update(buf, now);
      grad = flag("nesterov") ? m_.add(grad, m_.mul(now, mu)) : now;
    }
    update(w, m_.sub(w, m_.mul(grad, lr)));
  }

  void adam(ValueId w, ValueId grad, const std::string& name) {
    ValueId lr = hyper(0), b1 = hyper(1), b2 = hyper(2), eps = hyper(3);
    if (flag("maximize")) grad = m_.unary(Op::Neg, grad);
    ValueId start = w;
    if (flag("decoupled")) {
      if (flag("weight_decay"))
        start = m_.mul(w, shared("decay", [&] { return m_.one_minus(m_.mul(lr, hyper(4))); }));
    } else if (flag("weight_decay")) {
      grad = m_.add(grad, m_.mul(w, hyper(4)));
    }
    ValueId m = state("exp_avg", name, g_.type(w)), v = state("exp_avg_sq", name, g_.type(w));
    ValueId c1 = shared("c1", [&] { return m_.one_minus(b1); }),
            c2 = shared("c2", [&] { return m_.one_minus(b2); });
    ValueId m2 = m_.add(m, m_.mul(m_.sub(grad, m), c1));
    ValueId v2 = m_.add(m_.mul(v, b2), m_.mul(m_.mul(grad, grad), c2));
    update(m, m2);
    update(v, v2);
    ValueId top = v2;
    if (flag("amsgrad")) {
      ValueId best = state("max_exp_avg_sq", name, g_.type(w));
      top = m_.op(Op::Maximum, best, v2);
      update(best, top);
    }
    ValueId root = m_.unary(Op::Sqrt, top), rate = lr;
    if (flag("bias_correction")) {
      rate = shared("rate", [&] { return m_.div(lr, m_.one_minus(m_.op(Op::Pow, b1, step()))); });
      ValueId scale = shared(
          "scale", [&] { return m_.unary(Op::Rsqrt, m_.one_minus(m_.op(Op::Pow, b2, step()))); });
      root = m_.mul(root, scale);
    }
    update(w, m_.sub(start, m_.mul(m_.div(m2, m_.add(root, eps)), rate)));
  }

  // hyper: lr, alpha, eps, weight_decay, momentum
  void rmsprop(ValueId w, ValueId grad, const std::string& name) {
    ValueId lr = hyper(0), alpha = hyper(1), eps = hyper(2);
    if (flag("maximize")) grad = m_.unary(Op::Neg, grad);
    if (flag("weight_decay")) grad = m_.add(grad, m_.mul(w, hyper(3)));
    ValueId sq = state("square_avg", name, g_.type(w));
    ValueId c = shared("c", [&] { return m_.one_minus(alpha); });
    ValueId sq2 = m_.add(m_.mul(sq, alpha), m_.mul(m_.mul(grad, grad), c));
    update(sq, sq2);
    ValueId inside = sq2;
    if (flag("centered")) {
      ValueId avg = state("grad_avg", name, g_.type(w));
      ValueId avg2 = m_.add(m_.mul(avg, alpha), m_.mul(grad, c));
      update(avg, avg2);
      inside = m_.sub(sq2, m_.mul(avg2, avg2));
    }
    ValueId change = m_.div(grad, m_.add(m_.unary(Op::Sqrt, inside), eps));
    if (flag("momentum")) {
      ValueId buf = state("momentum", name, g_.type(w));
      change = m_.add(m_.mul(buf, hyper(4)), change);
      update(buf, change);
    }
    update(w, m_.sub(w, m_.mul(change, lr)));
  }

 private:
  template <typename F>
  ValueId shared(const char* key, F make) {
    auto it = shared_.find(key);
    if (it != shared_.end()) return it->second;
    ValueId v = make();
    shared_.emplace(key, v);
    return v;
  }
  // One in the first step, `otherwise` later: torch fills the momentum with the plain gradient
  // first.
  ValueId first_or(ValueId otherwise) {
    return shared("first", [&] {
      ValueId is_first = b_.add(Op::Le, {step()}, {DType::Bool, {}, {}}, {Arg::real(1)});
      return b_.pointwise(Op::Where, {Arg::operand(0), Arg::real(1), Arg::operand(1)},
                          {is_first, otherwise}, {DType::F32, {}, {}});
    });
  }

  Math m_;
  Graph& g_;
  Builder& b_;
  const OptimizerGroup& o_;
  ValueId hyper_ = kNoValue, step_ = kNoValue;
  std::map<int, ValueId> hypers_;
  std::map<std::string, ValueId> shared_;
};

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
  for (const OptimizerGroup& o : groups) {
    Group group(g, b, o);
    for (ValueId w : o.params) {
      auto it = grad_of.find(w);
      if (it == grad_of.end()) continue;  // not reached by the loss
      const std::string& name = name_of_param[w];
      if (o.kind == "sgd") {
        group.sgd(w, it->second, name);
      } else if (o.kind == "adam" || o.kind == "adamw") {
        group.adam(w, it->second, name);
      } else if (o.kind == "rmsprop") {
        group.rmsprop(w, it->second, name);
      } else {
        throw UserError(fmt::format(
            "[optimizer] `{}` is not known to this build; use sgd, adam, adamw or rmsprop",
            o.kind));
      }
    }
  }
  g.grads.clear();
  for (Node& n : b.out) g.nodes.push_back(std::move(n));
  return true;
}

// Per micro-batch the gradients are added to "accum:<param>"; the update reads those and clears
// them.
std::unique_ptr<Graph> split_update(Graph& g, const PassContext& ctx) {
  if (ctx.gradient_accumulation <= 1 || g.optimizer.empty()) return nullptr;
  auto update = std::make_unique<Graph>();
  update->name = g.name + ".update";
  std::map<ValueId, std::string> names;
  for (const Source& s : g.sources) names[s.value] = s.name;
  std::map<ValueId, ValueId> param_there;
  Builder here(g), there(*update);
  double scale = ctx.mean_reduction ? 1.0 / static_cast<double>(ctx.gradient_accumulation) : 1.0;
  for (const StateUpdate& u : g.grads) {
    const TensorType t{g.type(u.state).dtype, g.type(u.state).shape, {}};
    std::string accum = "accum:" + names[u.state];
    ValueId sum = g.add_source(SourceKind::kBuffer, accum, t);
    g.updates.push_back({sum, here.add(Op::Add, {sum, u.value}, t)});
    ValueId w = update->add_source(SourceKind::kParam, names[u.state], t);
    ValueId total = update->add_source(SourceKind::kBuffer, accum, t);
    param_there[u.state] = w;
    update->grads.push_back({w, there.add(Op::Mul, {total}, t, {Arg::real(scale)})});
    update->updates.push_back({total, there.pointwise(Op::Fill, {Arg::real(0)}, {}, t)});
  }
  for (OptimizerGroup o : g.optimizer) {
    std::vector<ValueId> params;
    for (ValueId p : o.params)
      if (param_there.count(p)) params.push_back(param_there[p]);
    o.params = params;
    update->optimizer.push_back(o);
  }
  g.optimizer.clear();
  g.grads.clear();
  for (Node& n : here.out) g.nodes.push_back(std::move(n));
  update->nodes = std::move(there.out);
  return update;
}

}  // namespace tessera
