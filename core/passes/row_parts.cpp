// SPDX-License-Identifier: Apache-2.0
// One sweep behind the product. A value is inside (made piece by piece), after (made from what all
// pieces give) or neither; a node with operands that come after is no part, so pieces never wait
// for each other.
#include "passes/row_parts.h"

#include <algorithm>
#include <numeric>
#include <optional>

namespace tessera {
namespace {

using Part = RowPart;

class Finder {
 public:
  Finder(const Graph& g, int seed, int64_t least) : g_(g), seed_(seed), least_(least) {
    out_.units = g.type(g.nodes[seed].operands[0]).shape[0];
  }

  RowParts run() {
    find_parts();
    return std::move(out_);
  }

 private:
  bool inside(ValueId v) const { return out_.inside.count(v) > 0; }
  int dim_of(ValueId v) const {
    auto it = out_.inside.find(v);
    return it == out_.inside.end() ? kWhole : it->second;
  }

  void find_parts() {
    const bool batched = g_.nodes[seed_].op == Op::Bmm;
    add({seed_, {0, batched ? 0 : kWhole}, {0}, false});
    for (int i = seed_ + 1; i < static_cast<int>(g_.nodes.size()); ++i) {
      const Node& n = g_.nodes[i];
      const bool late = any(n, [&](ValueId v) { return after_.count(v) > 0; });
      const bool touched = any(n, [&](ValueId v) { return inside(v) || out_.counts.count(v) > 0; });
      if (!late && !touched) continue;
      std::optional<Part> part = late ? std::nullopt : part_of(i);
      if (part)
        add(std::move(*part));
      else
        after_.insert(n.results.begin(), n.results.end());
    }
  }

  template <typename F>
  static bool any(const Node& n, const F& is) {
    return std::any_of(n.operands.begin(), n.operands.end(), is);
  }

  void add(Part p) {
    const Node& n = g_.nodes[p.node];
    for (size_t r = 0; r < n.results.size(); ++r) {
      if (n.op == Op::NllLoss && r == 1)
        out_.counts.insert(n.results[r]);
      else if (p.closes || p.rows[r] == kSummed)
        after_.insert(n.results[r]);
      else
        out_.inside[n.results[r]] = p.rows[r];
    }
    out_.parts.push_back(std::move(p));
  }

  std::optional<Part> part_of(int i) {
    const Node& n = g_.nodes[i];
    if (is_pointwise(n.op)) return pointwise(i);
    switch (n.op) {
      case Op::View:
        return viewed(i);
      case Op::Slice:
        return sliced(i);
      case Op::ConstantPad:
        return padded(i);
      case Op::Softmax:
      case Op::LogSoftmax:
      case Op::SoftmaxGrad:
      case Op::LogSoftmaxGrad:
        return along_rows(i);
      case Op::NllLoss:
      case Op::NllLossGrad:
        return loss(i);
      case Op::Permute:
        return permuted(i);
      case Op::Amax:
      case Op::Amin:
      case Op::Argmax:
      case Op::Argmin:
        return reduced(i, false);
      case Op::Topk:
        return topk(i);
      case Op::Sum:
        return reduced(i, true);
      case Op::Mm:
        return product(i);
      case Op::Bmm:
        return batched(i);
      default:
        return std::nullopt;
    }
  }

  std::optional<Part> pointwise(int i) const {
    const Node& n = g_.nodes[i];
    const Dims& shape = g_.type(n.results[0]).shape;
    Part p{i, {}, {kWhole}, false};
    for (ValueId v : n.operands)
      if (inside(v)) {
        if (g_.type(v).shape != shape || (p.rows[0] != kWhole && p.rows[0] != dim_of(v)))
          return std::nullopt;
        p.rows[0] = dim_of(v);
      }
    if (p.rows[0] == kWhole) return std::nullopt;
    for (ValueId v : n.operands) {
      const Dims& s = g_.type(v).shape;
      const int dim = p.rows[0] - static_cast<int>(shape.size() - s.size());
      p.cut.push_back(dim < 0 || s[dim] == 1 ? kWhole : dim);
    }
    return p;
  }

  std::optional<Part> along_rows(int i) const {
    const Node& n = g_.nodes[i];
    const bool gradient = n.op == Op::SoftmaxGrad || n.op == Op::LogSoftmaxGrad;
    const Dims& shape = g_.type(n.results[0]).shape;
    int64_t dim = n.args.integer(gradient ? 2 : 1);
    if (dim < 0) dim += static_cast<int64_t>(shape.size());
    Part p{i, {}, {kWhole}, false};
    for (ValueId v : n.operands)
      if (inside(v)) p.rows[0] = dim_of(v);
    for (ValueId v : n.operands) {
      if (g_.type(v).shape != shape || (inside(v) && dim_of(v) != p.rows[0])) return std::nullopt;
      p.cut.push_back(p.rows[0]);
    }
    if (dim == p.rows[0] || p.rows[0] == kWhole) return std::nullopt;
    return p;
  }

  std::optional<Part> loss(int i) const {
    const Node& n = g_.nodes[i];
    const bool gradient = n.op == Op::NllLossGrad;
    const size_t first = gradient ? 1 : 0;
    const ValueId x = n.arg_value(first), target = n.arg_value(first + 1);
    const bool each = n.args.integer(first + 3) == 0;
    if (dim_of(x) != 0 || g_.type(x).rank() != 2 ||
        g_.type(target).shape != Dims{g_.type(x).shape[0]} || inside(target) ||
        n.arg_value_or_none(first + 2) != kNoValue)
      return std::nullopt;
    Part p{i, {}, {}, false};
    p.cut.assign(n.operands.size(), kWhole);
    p.cut[n.args.operand(first)] = p.cut[n.args.operand(first + 1)] = 0;
    if (gradient && each) p.cut[n.args.operand(0)] = 0;
    p.rows = gradient ? std::vector<int>{0} : std::vector<int>{each ? 0 : kSummed, kSummed};
    for (size_t k = 0; k < n.operands.size(); ++k)
      if (inside(n.operands[k]) && p.cut[k] == kWhole) return std::nullopt;
    return p;
  }

  std::optional<Part> permuted(int i) const {
    const Node& n = g_.nodes[i];
    std::vector<int64_t> dims = n.args.ints(1);
    for (size_t d = 0; d < dims.size(); ++d) {
      if (dims[d] < 0) dims[d] += static_cast<int64_t>(dims.size());
      if (dims[d] == dim_of(n.operands[0]))
        return Part{i, {dim_of(n.operands[0])}, {static_cast<int>(d)}, false};
    }
    return std::nullopt;
  }

  // The rows in other groups: their units lie one behind the other, here and there.
  std::optional<Part> viewed(int i) {
    const Node& n = g_.nodes[i];
    const Dims& shape = g_.type(n.results[0]).shape;
    if (dim_of(n.operands[0]) != 0 || n.args.list[1].kind != Arg::Kind::kList || shape.empty())
      return std::nullopt;
    const int64_t units = std::gcd(out_.units, shape[0]);
    if (shape[0] < 1 || units < least_) return std::nullopt;
    out_.units = units;
    return Part{i, {0}, {0}, false};
  }

  std::optional<Part> sliced(int i) const {
    const Node& n = g_.nodes[i];
    const int row = dim_of(n.operands[0]), rank = g_.type(n.operands[0]).rank();
    const int64_t dim = n.args.has(1) ? n.args.integer(1) : 0;
    if (row == kWhole || (dim < 0 ? dim + rank : dim) == row) return std::nullopt;
    return Part{i, {row}, {row}, false};
  }

  std::optional<Part> padded(int i) const {
    const Node& n = g_.nodes[i];
    const int row = dim_of(n.operands[0]), rank = g_.type(n.operands[0]).rank();
    const std::vector<int64_t> pads = n.args.ints(1);  // of the last dims, the last one first
    const auto at = static_cast<size_t>(2 * (rank - 1 - row));
    if (row == kWhole || (at + 1 < pads.size() && (pads[at] != 0 || pads[at + 1] != 0)))
      return std::nullopt;
    return Part{i, {row}, {row}, false};
  }

  // Over the rows only if pieces of the result can be added.
  std::optional<Part> reduced(int i, bool adds) const {
    const Node& n = g_.nodes[i];
    const TensorType &x = g_.type(n.operands[0]), &y = g_.type(n.results[0]);
    const int row = dim_of(n.operands[0]);
    if (row == kWhole) return std::nullopt;
    std::set<int64_t> dims;
    if (n.args.has(1))
      for (int64_t d : n.args.ints(1)) dims.insert(d < 0 ? d + x.rank() : d);
    if (dims.empty() || dims.count(row)) {
      if (!adds) return std::nullopt;
      return Part{i, {row}, {kSummed}, false};
    }
    const auto before = static_cast<int>(std::distance(dims.begin(), dims.lower_bound(row)));
    return Part{i, {row}, {x.rank() == y.rank() ? row : row - before}, false};
  }

  std::optional<Part> topk(int i) const {
    const Node& n = g_.nodes[i];
    const int row = dim_of(n.operands[0]);
    int64_t dim = n.args.integer(2);
    if (dim < 0) dim += g_.type(n.operands[0]).rank();
    if (row == kWhole || dim == row) return std::nullopt;
    return Part{i, {row}, {row, row}, false};
  }

  // The rows of the piece are rows or columns of the result, or what is summed over.
  std::optional<Part> product(int i) const {
    const Node& n = g_.nodes[i];
    const int a = dim_of(n.operands[0]), b = dim_of(n.operands[1]);
    if (a == 0 && b == kWhole) return Part{i, {0, kWhole}, {0}, true};
    if (a == kWhole && b == 1) return Part{i, {kWhole, 1}, {1}, true};
    if ((a == 1 && b != 1) || (a == kWhole && b == 0)) return Part{i, {1, 0}, {kSummed}, true};
    return std::nullopt;
  }

  std::optional<Part> batched(int i) const {
    const Node& n = g_.nodes[i];
    for (ValueId v : n.operands)
      if (inside(v) && dim_of(v) != 0) return std::nullopt;
    return Part{i, {0, 0}, {0}, true};
  }

  const Graph& g_;
  int seed_;
  int64_t least_;
  RowParts out_;
  std::set<ValueId> after_;
};

}  // namespace

RowParts find_row_parts(const Graph& g, int seed, int64_t least) {
  return Finder(g, seed, least).run();
}

}  // namespace tessera
