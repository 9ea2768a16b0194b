// SPDX-License-Identifier: Apache-2.0
// With gradient accumulation a step has two programs. Per micro-batch the gradients are added to
// an accumulator, or straight to the velocity of SGD's combined variant; the update reads those and
// clears them.
#include <algorithm>
#include <optional>

#include "passes/optimizer_terms.h"
#include "passes/update_once.h"

namespace tessera {
namespace {

// Gradients are averaged over accumulated micro-batches, else summed; the accumulator is their mean
// at any time, or their sum until the update divides it.
constexpr WordSetting<bool, 2> kMean{"reduction", true, {{"mean", true}, {"sum", false}}};
constexpr Setting<bool> kRunningMean{"running_mean", false};

// Gradients go into the velocity as they come only if the rule needs them nowhere else.
bool combined(const UpdateGroup& group) {
  return group.options().kind == "sgd" && group.on("combined") && group.has("momentum") &&
         !group.on("nesterov") && !group.has("max_grad_norm") &&
         !group.on("automatic_loss_scaling");
}

class Splitter {
 public:
  Splitter(Graph& g, const PassContext& ctx, bool mean, bool running_mean)
      : g_(g), ctx_(ctx), mean_(mean), running_mean_(running_mean), here_(g) {}

  std::unique_ptr<Graph> run() {
    update_ = std::make_unique<Graph>();
    update_->name = g_.name + ".update";
    there_.emplace(*update_);
    std::map<ValueId, ValueId> grad_of;
    for (const StateUpdate& u : g_.grads) grad_of[u.state] = u.value;
    for (const Source& s : g_.sources) names_[s.value] = s.name;
    if (const Source* scale = g_.find_source(SourceKind::kLossScale)) {
      scale_ = Term{&here_, scale->value};
      update_->add_source(*scale, g_.type(scale->value));
    }
    for (const OptimizerGroup& o : g_.optimizer) {
      OptimizerGroup& moved = update_->optimizer.emplace_back(o);
      moved.params.clear();
      UpdateGroup group(here_, o);
      const bool into = combined(group) && !has_groups(o) && !is_written(o);
      if (into) moved.kind = "sgd_velocity";
      for (ValueId p : o.params) {
        auto it = grad_of.find(p);
        if (it == grad_of.end()) continue;
        const TensorType t{g_.type(p).dtype, g_.type(p).shape, {}};
        ValueId w = update_->add_source(SourceKind::kParam, names_[p], t);
        moved.params.push_back(w);
        Term gradient = cast({&here_, it->second}, wide(t.dtype));
        update_->grads.push_back(
            {w, into ? into_velocity(group, p, gradient) : accumulate(group, p, gradient)});
      }
    }
    g_.optimizer.clear();
    g_.grads.clear();
    move_updates_once(g_, *update_, *there_);
    if (count_)  // the next step starts anew
      update_->updates.push_back({count_there_, fill_zero({DType::F32, {}, {}})});
    for (Node& n : here_.out) g_.nodes.push_back(std::move(n));
    update_->nodes = std::move(there_->out);
    return std::move(update_);
  }

 private:
  ValueId fill_zero(const TensorType& t) {
    return there_->pointwise(Op::Fill, {Arg::real(0)}, {}, t);
  }

  bool grouped(ValueId p) const { return ctx_.grouped.count(names_.at(p)) > 0; }
  bool has_groups(const OptimizerGroup& o) const {
    return std::any_of(o.params.begin(), o.params.end(), [&](ValueId p) { return grouped(p); });
  }

  // Weights that the model itself writes are decayed as the last micro-batch leaves them, not as
  // the first finds them.
  bool is_written(const OptimizerGroup& o) const {
    return std::any_of(g_.updates.begin(), g_.updates.end(), [&](const StateUpdate& u) {
      return !u.once && std::find(o.params.begin(), o.params.end(), u.state) != o.params.end();
    });
  }

  // The count of micro-batches is that of all replicas: a group of them keeps a sum.
  bool running(ValueId p) const { return mean_ && running_mean_ && !grouped(p); }

  // How many micro-batches of this step came before.
  Term count() {
    if (!count_) {
      const TensorType t{DType::F32, {}, {}};
      Source counter{SourceKind::kMicroCount, kNoValue, "accum:#"};
      if (const Source* known = g_.find_source(SourceKind::kMicroCount)) {
        counter = *known;  // the model asks for its replica
        for (const StateUpdate& u : g_.updates)
          user_check(u.state != counter.value, "[state] \"{}\" counts micro-batches by itself",
                     counter.name);
      } else {
        counter.value = add_state(g_, counter, t);
      }
      count_ = Term{&here_, counter.value};
      count_there_ = update_->add_source(counter, t);
      g_.updates.push_back({count_->v, (*count_ + 1.0).v});
    }
    return *count_;
  }

  Term once(const char* key, const std::function<Term()>& make) {
    auto it = scalars_.find(key);
    if (it == scalars_.end()) it = scalars_.emplace(key, make()).first;
    return it->second;
  }

  // Returns the reduced gradient in the update.
  ValueId accumulate(const UpdateGroup& group, ValueId p, Term gradient) {
    const DType kept = group.on("accum_f16") ? DType::F16 : gradient.type().dtype;
    const TensorType t{kept, gradient.type().shape, {}};
    const Source accumulator{SourceKind::kAccumulator, kNoValue, "accum", names_[p]};
    ValueId state = add_state(g_, accumulator, t);
    Term before = cast({&here_, state}, gradient.type().dtype), after = before + gradient;
    if (running(p)) {
      Term weight = once("weight", [&] { return 1.0 / (count() + 1.0); });
      Term keep = once("keep", [&] { return count() * weight; });
      after = before * keep + gradient * weight;
    }
    g_.updates.push_back({state, cast(after, kept).v});
    ValueId total = update_->add_source(accumulator, t);
    update_->updates.push_back({total, fill_zero(t)});
    Term reduced = cast({&*there_, total}, gradient.type().dtype);
    if (mean_ && !running(p)) reduced = reduced * scale();
    return reduced.v;
  }

  // Velocity, decay and gradient in one tensor: the first micro-batch of a step starts it.
  ValueId into_velocity(UpdateGroup& group, ValueId p, Term gradient) {
    const DType kept = group.on("velocity_f16") ? DType::F16 : gradient.type().dtype;
    const TensorType t{kept, gradient.type().shape, {}};
    const Source kept_in{SourceKind::kOptimizer, kNoValue, "momentum", names_[p]};
    ValueId state = add_state(g_, kept_in, t);
    Term first = once("first", [&] { return apply(Op::Eq, count(), 0.0); });
    Term keep = group.shared("keep", [&] { return where(first, group.hyper("momentum"), 1.0); });
    Term fresh = group.shared("fresh", [&] {
      Term part =
          group.has("velocity_scaling")
              ? group.hyper("velocity_scaling")
              : Term{&here_, here_.pointwise(Op::Fill, {Arg::real(1)}, {}, {DType::F32, {}, {}})};
      if (group.has("one_minus_dampening")) part = part * group.hyper("one_minus_dampening");
      return part;
    });
    Term weight = group.shared("weight", [&] {
      Term part = fresh * ((mean_ ? scale() : 1.0) * (group.on("maximize") ? -1 : 1));
      return scale_ ? part / *scale_ : part;
    });
    Term velocity = cast({&here_, state}, gradient.type().dtype) * keep + gradient * weight;
    if (group.has("weight_decay")) {
      Term decay = group.shared(
          "decay", [&] { return where(first, fresh * group.hyper("weight_decay"), 0.0); });
      velocity = velocity + cast({&here_, p}, gradient.type().dtype) * decay;
    }
    g_.updates.push_back({state, cast(velocity, kept).v});
    return update_->add_source(kept_in, t);
  }

  // The mean is over all replicas, also of a parameter with a value per group of them: then groups
  // that share the data's work and groups that share the model's train as one big model.
  double scale() const { return 1.0 / static_cast<double>(ctx_.gradient_accumulation); }

  Graph& g_;
  const PassContext& ctx_;
  const bool mean_, running_mean_;
  Builder here_;
  std::unique_ptr<Graph> update_;
  std::optional<Builder> there_;
  std::map<ValueId, std::string> names_;
  std::map<std::string, Term> scalars_;
  std::optional<Term> scale_, count_;
  ValueId count_there_ = kNoValue;
};

}  // namespace

std::unique_ptr<Graph> split_update(Graph& g, const PassContext& ctx) {
  const bool mean = ctx.settings.get(kMean), running_mean = ctx.settings.get(kRunningMean);
  const bool once = has_updates_once(g);
  if (ctx.gradient_accumulation <= 1 || (g.optimizer.empty() && !once)) {
    for (StateUpdate& u : g.updates) u.once = false;  // one micro-batch is the whole step
    return nullptr;
  }
  return Splitter(g, ctx, mean, running_mean).run();
}

}  // namespace tessera
