// SPDX-License-Identifier: Apache-2.0
// One function per optimizer: the new weights and states of a parameter. Names of values and
// switches are those that the `optimize` line of the graph gives; a value that the line leaves out
// is zero and its part of the rule is not there.
#include <cmath>

#include "passes/optimizer_terms.h"

namespace tessera {
namespace {

// Weight decay as part of the gradient.
Term decayed(Update& u) {
  return u.has("weight_decay") ? u.g + u.w * u.hyper("weight_decay") : u.g;
}

// Weight decay apart from the gradient: the weights, made smaller.
Term shrunk(Update& u) {
  if (!u.has("weight_decay")) return u.w;
  return u.w * u.rate("shrink",
                      [&] { return 1.0 - u.group.exact("lr") * u.group.exact("weight_decay"); });
}

// An average that moves towards `x`.
Term moved(Update& u, const char* what, Term x, const char* weight, const char* half = "") {
  Term old = u.state(what, half);
  Term now = old + (x - old) * u.hyper(weight);
  u.store(what, now);
  return now;
}

Term square_average(Update& u, const char* what, Term g, const char* keep, const char* take,
                    const char* half = "") {
  Term now = u.state(what, half) * u.hyper(keep) + square(g) * u.hyper(take);
  u.store(what, now);
  return now;
}

void sgd(Update& u) {
  Term g = decayed(u);
  if (u.has("momentum")) {
    Term mu = u.hyper("momentum"), fresh = g;
    if (u.has("one_minus_dampening") && u.on("plain_first")) {
      // torch's first velocity is the gradient, whatever the dampening
      fresh = g * u.rate("fresh", [&] {
        return where(apply(Op::Le, u.group.step(), 1.0), 1.0, u.group.exact("one_minus_dampening"));
      });
    } else if (u.has("one_minus_dampening")) {
      fresh = g * u.hyper("one_minus_dampening");
    }
    if (u.has("velocity_scaling")) fresh = fresh * u.hyper("velocity_scaling");
    Term v = u.state("momentum", "velocity_f16") * mu + fresh;
    u.store("momentum", v);
    if (u.has("velocity_scaling")) v = v * u.hyper("inverse_velocity_scaling");
    g = u.on("nesterov") ? g + v * mu : v;
  }
  u.finish(u.w - g * u.hyper("lr"));
}

// The second half of SGD whose gradients went straight into the velocity, which stands here in the
// place of the gradient.
void sgd_velocity(Update& u) {
  Term v = u.has("velocity_scaling") ? u.g * u.hyper("inverse_velocity_scaling") : u.g;
  u.finish(u.w - v * u.hyper("lr"));
}

// Both moments of Adam; the second is returned as its root.
struct Moments {
  Term mean, root;
};

Moments moments(Update& u, Term g) {
  Term mean = moved(u, "exp_avg", g, "one_minus_beta1", "first_f16");
  Term top = square_average(u, "exp_avg_sq", g, "beta2", "one_minus_beta2", "second_f16");
  if (u.on("amsgrad")) {
    top = apply(Op::Maximum, u.state("max_exp_avg_sq", "second_f16"), top);
    u.store("max_exp_avg_sq", top);
  }
  return {mean, sqrt(top)};
}

Term unbiased_root(Update& u, Term root) {
  return root * u.rate("root", [&] { return 1.0 / sqrt(u.group.bias_correction("beta2")); });
}

// The rate divided by the bias of the first moment.
Term unbiased_rate(Update& u) {
  return u.rate("rate", [&] { return u.group.exact("lr") / u.group.bias_correction("beta1"); });
}

void adam(Update& u) {
  const bool apart = u.on("decoupled");
  auto [mean, root] = moments(u, apart ? u.g : decayed(u));
  Term rate = u.hyper("lr");
  if (u.on("bias_correction")) {
    root = unbiased_root(u, root);
    rate = unbiased_rate(u);
  }
  u.finish((apart ? shrunk(u) : u.w) - mean / (root + u.hyper("eps")) * rate);
}

void lamb(Update& u) {
  auto [mean, root] = moments(u, u.g);
  if (u.on("bias_correction")) {
    root = unbiased_root(u, root);
    mean = mean * u.rate("mean", [&] { return 1.0 / u.group.bias_correction("beta1"); });
  }
  Term change = mean / (root + u.hyper("eps"));
  if (u.has("weight_decay")) change = change + u.w * u.hyper("weight_decay");
  Term size = apply(Op::Minimum, norm(u.w), u.hyper("max_weight_norm"));
  Term step = norm(change);
  // 1 if one of the norms is 0
  Term ratio = where(apply(Op::Gt, apply(Op::Minimum, size, step), 0.0), size / step, 1.0);
  u.finish(u.w - change * (ratio * u.hyper("lr")));
}

void rmsprop(Update& u) {
  const bool tf = u.on("tf_variant");
  Term g = decayed(u);
  Term inside = square_average(u, "square_avg", g, "alpha", "one_minus_alpha", "second_f16");
  if (u.on("centered"))
    inside = inside - square(moved(u, "grad_avg", g, "one_minus_alpha", "first_f16"));
  Term change =
      tf ? g * u.hyper("lr") / sqrt(inside + u.hyper("eps")) : g / (sqrt(inside) + u.hyper("eps"));
  if (u.has("momentum")) {
    change = u.state("momentum", "first_f16") * u.hyper("momentum") + change;
    u.store("momentum", change);
  }
  u.finish(u.w - (tf ? change : change * u.hyper("lr")));
}

void adagrad(Update& u) {
  Term g = decayed(u);
  Term total = u.state("sum") + square(g);
  u.store("sum", total);
  Term rate = u.hyper("lr");
  if (u.has("lr_decay"))
    rate = u.rate("rate", [&] {
      return u.group.exact("lr") / ((u.group.step() - 1.0) * u.group.exact("lr_decay") + 1.0);
    });
  u.finish(u.w - g / (sqrt(total) + u.hyper("eps")) * rate);
}

void adadelta(Update& u) {
  Term g = decayed(u), eps = u.hyper("eps");
  Term average = square_average(u, "square_avg", g, "rho", "one_minus_rho");
  Term deltas = u.state("acc_delta");
  Term delta = sqrt(deltas + eps) / sqrt(average + eps) * g;
  u.store("acc_delta", deltas * u.hyper("rho") + square(delta) * u.hyper("one_minus_rho"));
  u.finish(u.w - delta * u.hyper("lr"));
}

void adamax(Update& u) {
  Term g = decayed(u);
  Term mean = moved(u, "exp_avg", g, "one_minus_beta1");
  Term top =
      apply(Op::Maximum, u.state("exp_inf") * u.hyper("beta2"), apply(Op::Abs, g) + u.hyper("eps"));
  u.store("exp_inf", top);
  u.finish(u.w - mean / top * unbiased_rate(u));
}

void nadam(Update& u) {
  const bool apart = u.on("decoupled");
  Term g = apart ? u.g : decayed(u);
  auto [mean, root] = moments(u, g);
  UpdateGroup& group = u.group;
  auto momentum = [&](double later) {
    Term decay = apply(Op::Pow, 0.96, (group.step() + later) * group.exact("momentum_decay"));
    return group.exact("beta1") * (1.0 - decay * 0.5);
  };
  Term now = group.shared("mu", [&] { return momentum(0); });
  Term next = group.shared("mu next", [&] { return momentum(1); });
  Term product = group.shared("mu product", [&] {
    Term before = group.scalar_state("mu_product");
    // it starts at 1
    Term after = where(apply(Op::Le, group.step(), 1.0), now, before * now);
    group.update(before.v, after);
    return after;
  });
  Term for_g = u.rate("for g", [&] { return group.exact("lr") * (1.0 - now) / (1.0 - product); });
  Term for_mean =
      u.rate("for mean", [&] { return group.exact("lr") * next / (1.0 - product * next); });
  Term below = unbiased_root(u, root) + u.hyper("eps");
  u.finish((apart ? shrunk(u) : u.w) - (g * for_g + mean * for_mean) / below);
}

void radam(Update& u) {
  const bool apart = u.on("decoupled");
  auto [mean, root] = moments(u, apart ? u.g : decayed(u));
  UpdateGroup& group = u.group;
  Term rho_max =
      group.shared("rho max", [&] { return 2.0 / group.exact("one_minus_beta2") - 1.0; });
  Term rho = group.shared("rho", [&] {
    Term power = 1.0 - group.bias_correction("beta2");
    return rho_max - group.step() * power / group.bias_correction("beta2") * 2.0;
  });
  Term adaptive = group.shared("adaptive", [&] { return apply(Op::Gt, rho, 5.0); });
  Term rectified = u.rate("rectified", [&] {
    Term ratio = (rho - 4.0) * (rho - 2.0) * rho_max / ((rho_max - 4.0) * (rho_max - 2.0) * rho);
    return sqrt(apply(Op::ClampMin, ratio * group.bias_correction("beta2"), 0.0));
  });
  Term factor = where(adaptive, rectified / (root + u.hyper("eps")), 1.0);
  u.finish((apart ? shrunk(u) : u.w) - mean * factor * unbiased_rate(u));
}

void rprop(Update& u) {
  Term first = u.group.shared("first", [&] { return apply(Op::Le, u.group.step(), 1.0); });
  Term agreement = u.g * u.state("prev");
  Term apart = apply(Op::Lt, agreement, 0.0);
  Term factor = where(apply(Op::Gt, agreement, 0.0), u.hyper("eta_plus"),
                      where(apart, u.hyper("eta_minus"), 1.0));
  Term size = where(first, u.hyper("lr"), u.state("step_size")) * factor;
  size = apply(Op::Minimum, apply(Op::Maximum, size, u.hyper("step_min")), u.hyper("step_max"));
  u.store("step_size", size);
  Term g = where(apart, 0.0, u.g);
  u.store("prev", g);
  u.finish(u.w - apply(Op::Sign, g) * size);
}

void asgd(Update& u) {
  UpdateGroup& group = u.group;
  // The rate of a step is made at the end of the one before.
  Term exact = group.shared("eta", [&] {
    Term before = group.scalar_state("eta");
    Term now = where(apply(Op::Le, group.step(), 1.0), group.exact("lr"), before);
    Term base = group.exact("lambd") * group.exact("lr") * group.step() + 1.0;
    group.update(before.v, group.exact("lr") / pow(base, group.exact("alpha")));
    return now;
  });
  Term eta = u.rate("eta", [&] { return exact; });
  Term kept = u.rate("kept", [&] { return 1.0 - group.exact("lambd") * exact; });
  Term share = u.rate("share", [&] {
    return 1.0 / apply(Op::ClampMin, group.step() - 1.0 - group.exact("t0"), 1.0);
  });
  Term g = decayed(u);
  Term w = u.w * kept - g * eta;
  Term average = u.state("ax");
  u.store("ax", where(apply(Op::Eq, share, 1.0), w, average + (w - average) * share));
  u.finish(w);
}

void adafactor(Update& u) {
  UpdateGroup& group = u.group;
  const Dims& shape = u.w.type().shape;
  const int64_t rank = static_cast<int64_t>(shape.size());
  const double count = static_cast<double>(u.w.type().count());
  Term take = u.rate("take", [&] { return pow(group.step(), group.exact("beta2_decay")); });
  Term rate = u.rate(
      "rate", [&] { return apply(Op::Minimum, group.exact("lr"), 1.0 / sqrt(group.step())); });
  auto blend = [&](const char* what, Term x, Dims of) {
    Term old = u.state(what, std::move(of));
    Term now = old + (x - old) * take;
    u.store(what, now);
    return now;
  };
  Term g = u.g, eps = u.hyper("eps1"), variance;
  if (rank > 1) {
    Dims rows = shape, columns = shape;
    rows[rank - 1] = columns[rank - 2] = 1;
    Term of_rows = blend(
        "row_var", sum(square(g), {rank - 1}) * (1.0 / static_cast<double>(shape[rank - 1])), rows);
    Term of_columns =
        blend("col_var", sum(square(g), {rank - 2}) * (1.0 / static_cast<double>(shape[rank - 2])),
              columns);
    Term mean = sum(of_rows, {rank - 2}) * (1.0 / static_cast<double>(shape[rank - 2]));
    variance = of_rows * (of_columns / apply(Op::Maximum, mean, eps));
  } else {
    variance = blend("variance", square(g), shape);
  }
  Term change = g / sqrt(apply(Op::Maximum, variance, square(eps)));
  Term limit = norm(change) / u.hyper("d") * (1.0 / std::sqrt(count));
  Term size = apply(Op::Maximum, norm(u.w) * (1.0 / std::sqrt(count)), u.hyper("eps2"));
  u.finish(shrunk(u) - change * (size * rate / apply(Op::ClampMin, limit, 1.0)));
}

struct Row {
  const char* kind;
  UpdateRule rule;
};

constexpr Row kRules[] = {
    {"adadelta", adadelta}, {"adafactor", adafactor},
    {"adagrad", adagrad},   {"adam", adam},
    {"adamax", adamax},     {"adamw", adam},
    {"asgd", asgd},         {"lamb", lamb},
    {"nadam", nadam},       {"radam", radam},
    {"rmsprop", rmsprop},   {"rprop", rprop},
    {"sgd", sgd},           {"sgd_velocity", sgd_velocity},
};

}  // namespace

UpdateRule update_rule(const std::string& kind) {
  for (const Row& row : kRules)
    if (row.kind == kind) return row.rule;
  std::string known;
  for (const Row& row : kRules) known += fmt::format("{}{}", known.empty() ? "" : ", ", row.kind);
  throw UserError(fmt::format("[optimizer] there is no rule `{}`, only {}", kind, known));
}

}  // namespace tessera
