// SPDX-License-Identifier: Apache-2.0
// Chooses the memory order of activations. Convolutions decide (batch in the vector lanes for few
// channels, channels last otherwise), what stands between them follows, and matrix products write
// in the order that their consumers want. Shapes stay logical; where an op needs another order than
// its operand has, a `clone` into that order is put in between.
#include "ops/convolution.h"
#include "passes/pass.h"

namespace tessera {
namespace {

enum class Order : uint8_t { kRowMajor, kChannelsLast, kLanes };

std::vector<int> order_dims(Order order, int rank) {
  if (order == Order::kRowMajor) return {};
  std::vector<int> dims;
  if (order == Order::kChannelsLast) dims.push_back(1);
  if (order == Order::kLanes) dims.push_back(0);
  for (int d = rank - 1; d >= 0; --d)
    if (d != dims[0]) dims.push_back(d);
  return dims;
}

// A reshape that keeps dim 0 keeps the batch-innermost order.
bool keeps_batch(const Graph& g, const Node& n) {
  if (n.op != Op::View) return false;
  const Dims& a = g.type(n.operands[0]).shape;
  const Dims& b = g.type(n.results[0]).shape;
  return !a.empty() && !b.empty() && a[0] == b[0];
}

class Layouts {
 public:
  explicit Layouts(Graph& g) : g_(g), order_(g.values.size(), Order::kRowMajor) {}

  bool run() {
    bool any = false;
    for (const Node& n : g_.nodes)
      any |= n.op == Op::Convolution || n.op == Op::ConvInputGrad || n.op == Op::ConvWeightGrad;
    if (!any) return false;
    for (const Node& n : g_.nodes) forward(n);
    for (size_t i = g_.nodes.size(); i-- > 0;) demand(g_.nodes[i]);
    // Reshapes follow their operand, whose order a demand of a later node may have changed.
    for (const Node& n : g_.nodes)
      if (keeps_batch(g_, n) && order_[n.operands[0]] == Order::kLanes)
        order_[n.results[0]] = Order::kLanes;
    for (const Node& n : g_.nodes)
      if (!is_view(n.op))
        for (ValueId v : n.results) g_.type(v).order = order_dims(order_[v], g_.type(v).rank());
    insert_copies();
    return true;
  }

 private:
  Order conv_order(const Node& n) const {
    const Args& a = n.args;
    bool fwd = n.op == Op::Convolution;
    if (fwd && a.boolean(6)) return Order::kRowMajor;
    const Dims x = fwd                         ? g_.type(n.operands[0]).shape
                   : n.op == Op::ConvInputGrad ? a.ints(2)
                                               : g_.type(n.operands[1]).shape;
    const Dims w = n.op == Op::ConvWeightGrad ? a.ints(2) : g_.type(n.operands[1]).shape;
    switch (preferred_conv_order(x, w, a.ints(3), fwd ? a.integer(8) : a.integer(6))) {
      case ConvOrder::kChwn:
        return Order::kLanes;
      case ConvOrder::kChannelsLast:
        return Order::kChannelsLast;
      default:
        return Order::kRowMajor;
    }
  }

  bool is_image(ValueId v) const { return g_.type(v).rank() == 4 || g_.type(v).rank() == 5; }

  bool full_shape(const Node& n, ValueId v) const {
    return g_.type(v).shape == g_.type(n.results[0]).shape;
  }

  void forward(const Node& n) {
    if (n.op == Op::Convolution || n.op == Op::ConvInputGrad) {
      order_[n.results[0]] = conv_order(n);
      return;
    }
    if (has_fact(n.op, kAnyLayout)) {
      Order o = order_[n.operands[0]];
      // In a backward op the saved activation decides, the gradient may still be in any order.
      if (o == Order::kRowMajor && n.operands.size() > 1 && is_image(n.operands[1]))
        o = order_[n.operands[1]];
      for (ValueId v : n.results)
        if (is_image(v)) order_[v] = o;
      return;
    }
    if (is_pointwise(n.op)) {
      for (ValueId v : n.operands)
        if (order_[v] != Order::kRowMajor && full_shape(n, v)) {
          order_[n.results[0]] = order_[v];
          return;
        }
      return;
    }
    if (keeps_batch(g_, n) && order_[n.operands[0]] == Order::kLanes)
      order_[n.results[0]] = Order::kLanes;
  }

  // What the consumers would like: matrix products and pointwise ops can write any order at no
  // cost.
  void demand(const Node& n) {
    auto want = [&](ValueId v, Order o) {
      if (wanted_.size() <= static_cast<size_t>(v))
        wanted_.resize(g_.values.size(), Order::kRowMajor);
      wanted_[v] = o;
    };
    auto wanted = [&](ValueId v) {
      return static_cast<size_t>(v) < wanted_.size() ? wanted_[v] : Order::kRowMajor;
    };
    if (n.op == Op::Mm && wanted(n.results[0]) == Order::kLanes)
      order_[n.results[0]] = Order::kLanes;
    if (is_pointwise(n.op) && order_[n.results[0]] == Order::kRowMajor &&
        wanted(n.results[0]) == Order::kLanes)
      order_[n.results[0]] = Order::kLanes;
    Order o = Order::kRowMajor;
    if (n.op == Op::Convolution || n.op == Op::ConvInputGrad || n.op == Op::ConvWeightGrad)
      o = conv_order(n);
    else if (has_fact(n.op, kAnyLayout) || is_pointwise(n.op))
      o = order_[n.results[0]];
    else if (keeps_batch(g_, n))
      o = wanted(n.results[0]);
    if (o != Order::kLanes) return;
    for (ValueId v : n.operands) {
      bool activation = is_pointwise(n.op) ? full_shape(n, v) : true;
      if (activation && g_.type(v).rank() >= 2 && order_[v] == Order::kRowMajor)
        want(v, Order::kLanes);
    }
  }

  void insert_copies() {
    rewrite(g_, [&](Node& n, Builder& b) -> std::vector<ValueId> {
      bool conv =
          n.op == Op::Convolution || n.op == Op::ConvInputGrad || n.op == Op::ConvWeightGrad;
      if (!conv && !has_fact(n.op, kAnyLayout)) return {};
      Order o = conv ? conv_order(n) : order_[n.results[0]];
      if (n.op == Op::GroupNormGrad || n.op == Op::BatchNormGrad) o = order_[n.operands[1]];
      for (size_t i = 0; i < n.operands.size(); ++i) {
        ValueId v = n.operands[i];
        if (!is_image(v) || order_of(v) == o || is_weight(n, i)) continue;
        TensorType t = g_.type(v);
        t.order = order_dims(o, t.rank());
        n.operands[i] = b.add(Op::Copy, {v}, t);
        order_.resize(g_.values.size(), Order::kRowMajor);
        order_[n.operands[i]] = o;
      }
      return {};
    });
  }

  Order order_of(ValueId v) const {
    return static_cast<size_t>(v) < order_.size() ? order_[v] : Order::kRowMajor;
  }

  // Filters stay row-major: the kernels pack them themselves.
  static bool is_weight(const Node& n, size_t i) {
    return (n.op == Op::Convolution || n.op == Op::ConvInputGrad) && i == 1;
  }

  Graph& g_;
  std::vector<Order> order_;
  std::vector<Order> wanted_;
};

}  // namespace

bool assign_layouts(Graph& g, const PassContext&) {
  return Layouts(g).run();
}

}  // namespace tessera
