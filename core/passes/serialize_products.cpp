// SPDX-License-Identifier: Apache-2.0
// A product that is to be done in pieces (poptorch.serializedMatMul) is cut by rows, together with
// what works on it row by row: activation, softmax, loss, their gradients, up to the products that
// take the gradient to the operands. One piece is done from end to end before the next, so instead
// of the whole product (the logits of a large vocabulary, their logarithms and their gradients)
// only a piece of each is alive. Products themselves need no memory beside operands and result.
//
// A product is a matrix product, cut by rows, or a batch of them, cut by batch. What is needed
// whole (a product that is returned) is put together piece by piece, and only if others as large
// are not: else nothing is cut.
#include <algorithm>
#include <map>
#include <set>

#include "passes/pass.h"
#include "passes/row_parts.h"

namespace tessera {
namespace {

constexpr int64_t kMostPieces = 256;

enum Reduction : int64_t { kNone = 0, kMean = 1, kSum = 2 };

using Part = RowPart;

bool is_reduction(Op op) {
  return op == Op::Sum || op == Op::Amax || op == Op::Amin;
}

bool half(DType d) {
  return d == DType::F16 || d == DType::BF16;
}

class Cutter {
 public:
  // Views that leave fewer than `least` units of rows end the part.
  Cutter(Graph& g, int seed, int64_t least)
      : g_(g), seed_(seed), made_by_(producers(g)), found_(find_row_parts(g, seed, least)) {}

  bool run() {
    const int64_t wanted = g_.locations[g_.nodes[seed_].loc].pieces;
    pieces_ = static_cast<int>(std::min<int64_t>({found_.units, wanted, kMostPieces}));
    if (pieces_ < 2 || found_.parts.size() < 2 || !find_joined()) return false;
    rebuild();
    return true;
  }

 private:
  bool inside(ValueId v) const { return found_.inside.count(v) > 0; }

  const Node& node(const Part& p) const { return old_.empty() ? g_.nodes[p.node] : old_[p.node]; }

  bool is_count(ValueId v) const { return found_.counts.count(v) > 0; }

  // Results that are needed whole; false if one is too large for the pieces to be worth while.
  bool find_joined() {
    std::set<int> members;
    for (const Part& p : found_.parts) members.insert(p.node);
    auto want = [&](ValueId v) {
      if (inside(v)) joined_.insert(v);
    };
    for (int i = 0; i < static_cast<int>(g_.nodes.size()); ++i)
      if (!members.count(i))
        std::for_each(g_.nodes[i].operands.begin(), g_.nodes[i].operands.end(), want);
    for (ValueId v : g_.outputs) want(v);
    for (const StateUpdate& u : g_.updates) want(u.value);
    for (const StateUpdate& u : g_.grads) want(u.value);
    if (g_.loss != kNoValue) want(g_.loss);
    const int64_t most = g_.type(g_.nodes[seed_].results[0]).bytes() / 2;
    auto large = [&](ValueId v) { return g_.type(v).bytes() >= most; };
    for (ValueId v : joined_)
      if (large(v)) whole_.insert(v);
    // Is there another large one in memory: one that a step of another kind reads?
    auto saved = [&](const Part& p) {
      const Node& n = g_.nodes[p.node];
      if (is_pointwise(n.op) || is_view(n.op)) return false;
      return std::any_of(n.operands.begin(), n.operands.end(), [&](ValueId v) {
        if (!inside(v) || !large(v) || whole_.count(v)) return false;
        const Op by = g_.nodes[made_by_[v]].op;
        return !is_view(by) && !(is_pointwise(by) && is_reduction(n.op));
      });
    };
    if (!whole_.empty() && std::none_of(found_.parts.begin(), found_.parts.end(), saved))
      return false;
    for (const Part& p : found_.parts)
      for (size_t r = 0; p.closes && r < p.rows.size(); ++r)
        if (p.rows[r] != kSummed) joined_.insert(g_.nodes[p.node].results[r]);
    return true;
  }

  void rebuild() {
    std::vector<bool> done(g_.nodes.size(), false);
    old_ = std::move(g_.nodes);
    Builder b(g_);
    for (int i = 0; i < seed_; ++i) {
      b.append(old_[i]);
      done[i] = true;
    }
    for (int i : made_before()) {
      b.append(old_[i]);
      done[i] = true;
    }
    for (const Part& p : found_.parts) {
      done[p.node] = true;
      if (node(p).op == Op::NllLoss) count_labels(node(p), b);
    }
    for (piece_ = 0; piece_ < pieces_; ++piece_) {
      now_.clear();
      slices_.clear();
      for (const Part& p : found_.parts) do_piece(p, b);
    }
    for (const Part& p : found_.parts) finish(p, b);
    for (size_t i = 0; i < old_.size(); ++i)
      if (!done[i]) b.append(std::move(old_[i]));
    g_.nodes = std::move(b.out);
  }

  // Nodes behind the product that its parts read and that do not depend on it, in their order.
  std::set<int> made_before() const {
    std::set<int> out;
    std::vector<ValueId> todo;
    for (const Part& p : found_.parts)
      todo.insert(todo.end(), node(p).operands.begin(), node(p).operands.end());
    while (!todo.empty()) {
      const ValueId v = todo.back();
      todo.pop_back();
      if (inside(v) || is_count(v) || made_by_[v] < seed_) continue;
      if (!out.insert(made_by_[v]).second) continue;
      const Node& n = old_[made_by_[v]];
      todo.insert(todo.end(), n.operands.begin(), n.operands.end());
    }
    return out;
  }

  void count_labels(const Node& n, Builder& b) {
    const ValueId target = n.arg_value(1);
    const Dims shape = g_.type(target).shape;
    b.loc = n.loc;
    const ValueId counts =
        b.add(Op::Ne, {target}, {DType::Bool, shape, {}}, {Arg::integer(n.args.integer(4))});
    const ValueId ones = b.add(Op::Cast, {counts}, {DType::F32, shape, {}});
    ValueId total =
        b.add(Op::Sum, {ones}, {DType::F32, {}, {}}, {Arg::ints({0}), Arg::boolean(false)});
    // Nothing is divided by it if the losses are returned one by one; torch has 0 then.
    if (n.args.integer(3) == kNone)
      total = b.add(Op::Mul, {total}, {DType::F32, {}, {}}, {Arg::real(0)});
    give(total, n.results[1], b);
  }

  // `to`, which others read, is what the last node makes, in its own type.
  void give(ValueId from, ValueId to, Builder& b) {
    if (g_.type(from).dtype != g_.type(to).dtype) {
      b.add(Op::Cast, {from}, g_.type(to));
      from = b.out.back().results[0];
    }
    auto made = std::find_if(b.out.rbegin(), b.out.rend(),
                             [&](const Node& n) { return n.results[0] == from; });
    made->results = {to};
    g_.values[to].result_index = 0;
  }

  // Of a dim of so many rows.
  int64_t first_row(int piece, int64_t rows) const {
    return rows / found_.units * (found_.units * piece / pieces_);
  }
  int64_t rows_of_piece(int64_t rows) const {
    return first_row(piece_ + 1, rows) - first_row(piece_, rows);
  }

  ValueId sliced(ValueId v, int dim, Builder& b) {
    auto [it, added] = slices_.emplace(std::pair{v, dim}, kNoValue);
    if (added) {
      TensorType t = g_.type(v);
      const int64_t from = first_row(piece_, t.shape[dim]),
                    to = first_row(piece_ + 1, t.shape[dim]);
      t.shape[dim] = to - from;
      it->second =
          b.add(Op::Slice, {v}, t,
                {Arg::integer(dim), Arg::integer(from), Arg::integer(to), Arg::integer(1)});
    }
    return it->second;
  }

  void do_piece(const Part& p, Builder& b) {
    const Node& n = node(p);
    b.loc = location_of(n.loc);
    std::vector<ValueId> operands;
    for (size_t k = 0; k < n.operands.size(); ++k) {
      const ValueId v = n.operands[k];
      operands.push_back(inside(v) ? now_.at(v) : p.cut[k] == kWhole ? v : sliced(v, p.cut[k], b));
    }
    Args args = n.args;
    if (n.op == Op::NllLoss && args.integer(3) == kMean) args.list[3] = Arg::integer(kSum);
    std::vector<TensorType> types;
    for (size_t r = 0; r < n.results.size(); ++r) {
      TensorType t = g_.type(n.results[r]);
      if (p.rows[r] != kSummed) t.shape[p.rows[r]] = rows_of_piece(t.shape[p.rows[r]]);
      // Sums of halves are rounded once, at the end.
      if (p.rows[r] == kSummed && n.op == Op::Mm && half(t.dtype)) t.dtype = DType::F32;
      types.push_back(t);
    }
    if (n.op == Op::View) args.list[1] = Arg::ints(types[0].shape);
    const std::vector<ValueId> made = b.add_node(n.op, operands, args, types);
    for (size_t r = 0; r < made.size(); ++r) {
      const ValueId v = n.results[r];
      if (is_count(v)) continue;
      now_[v] = made[r];
      if (whole_.count(v))
        put(v, made[r], p.rows[r], b);
      else if (joined_.count(v))
        lists_[v].push_back(made[r]);
      if (p.rows[r] == kSummed) add_up(v, made[r], b);
    }
  }

  // A piece takes its place in the whole at once and need not be kept.
  void put(ValueId v, ValueId piece, int dim, Builder& b) {
    const TensorType t = g_.type(v);
    auto [it, first] = filled_.emplace(v, kNoValue);
    if (first) it->second = b.add(Op::Fill, {}, t, {Arg::real(0)});
    const int64_t from = first_row(piece_, t.shape[dim]), to = first_row(piece_ + 1, t.shape[dim]);
    it->second = b.add(Op::SliceScatter, {it->second, piece}, t,
                       {Arg::integer(dim), Arg::integer(from), Arg::integer(to), Arg::integer(1)});
  }

  void add_up(ValueId v, ValueId piece, Builder& b) {
    auto [it, first] = sums_.emplace(v, piece);
    if (first) {
      // Small sums are f32 as well; a product is one already.
      if (half(g_.type(piece).dtype))
        it->second = b.add(Op::Cast, {piece}, {DType::F32, g_.type(piece).shape, {}});
      return;
    }
    it->second = b.add(Op::Add, {piece, it->second}, g_.type(it->second));
  }

  // What others read of the part, under its old name.
  void finish(const Part& p, Builder& b) {
    const Node& n = node(p);
    b.loc = location_of(n.loc);  // that of the last piece: they may become one step
    for (size_t r = 0; r < n.results.size(); ++r) {
      const ValueId v = n.results[r];
      if (is_count(v)) continue;
      if (auto it = sums_.find(v); it != sums_.end()) {
        ValueId all = it->second;
        if (n.op == Op::NllLoss && n.args.integer(3) == kMean)
          all = b.add(Op::Div, {all, n.results[1]}, g_.type(all));
        give(all, v, b);
      } else if (whole_.count(v)) {
        give(filled_.at(v), v, b);
      } else if (joined_.count(v)) {
        const std::vector<ValueId>& list = lists_.at(v);
        std::vector<Arg> items;
        for (size_t i = 0; i < list.size(); ++i)
          items.push_back(Arg::operand(static_cast<int64_t>(i)));
        Args args;
        args.list = {Arg::of(std::move(items)), Arg::integer(p.rows[r])};
        b.add_node(Op::Cat, list, std::move(args), {g_.type(v)});
        b.out.back().results = {v};
        g_.values[v].result_index = 0;
      }
    }
  }

  // Pieces are different turns, or sums over them would wait for all of them.
  int32_t location_of(int32_t loc) {
    if (loc < 0) return loc;
    const int piece = std::min(piece_, pieces_ - 1);
    auto [it, added] = locations_.emplace(std::pair{loc, piece}, 0);
    if (added) {
      int highest = 0;
      if (first_turn_ == 0) {
        for (const Location& l : g_.locations) highest = std::max(highest, l.turn);
        first_turn_ = highest + 1;
      }
      it->second = static_cast<int32_t>(g_.locations.size());
      Location l = g_.locations[loc];
      l.turn = first_turn_ + piece;
      g_.locations.push_back(std::move(l));
    }
    return it->second;
  }

  Graph& g_;
  int seed_;
  std::vector<int32_t> made_by_;
  int pieces_ = 0, piece_ = 0, first_turn_ = 0;
  RowParts found_;
  std::set<ValueId> joined_;
  std::set<ValueId> whole_;            // those of them that are as large as the product
  std::map<ValueId, ValueId> filled_;  // as far as they are put together
  std::vector<Node> old_;              // the nodes before, once they are taken apart
  std::map<ValueId, ValueId> now_;     // values of the piece
  std::map<std::pair<ValueId, int>, ValueId> slices_;     // of the piece
  std::map<ValueId, std::vector<ValueId>> lists_;         // of all pieces, to be joined
  std::map<ValueId, ValueId> sums_;                       // of the pieces so far
  std::map<std::pair<int32_t, int>, int32_t> locations_;  // by location and piece
};

bool is_seed(const Graph& g, const Node& n) {
  if ((n.op != Op::Mm && n.op != Op::Bmm) || n.loc < 0) return false;
  const Location& l = g.locations[n.loc];
  return l.pieces > 1 && !l.backward && l.turn == 0;
}

// A matrix seen as [batch, tokens, columns] and summed over all but the columns, as for the
// gradient of a bias, is summed as a matrix: its rows are then still rows.
bool sum_matrices(Graph& g) {
  std::map<ValueId, ValueId> viewed;
  return rewrite(g, [&](Node& n, Builder& b) -> std::vector<ValueId> {
    if (n.op == Op::View) viewed[n.results[0]] = n.operands[0];
    if (n.op != Op::Sum || !viewed.count(n.operands[0]) || !n.args.has(1)) return {};
    const TensorType x = g.type(viewed[n.operands[0]]), v = g.type(n.operands[0]);
    std::set<int64_t> dims;
    for (int64_t d : n.args.ints(1)) dims.insert(d < 0 ? d + v.rank() : d);
    if (x.rank() != 2 || v.rank() < 2 || v.shape.back() != x.shape[1] ||
        static_cast<int>(dims.size()) != v.rank() - 1 || dims.count(v.rank() - 1))
      return {};
    const TensorType out = g.type(n.results[0]);
    const ValueId sum = b.add(Op::Sum, {viewed[n.operands[0]]}, {out.dtype, {x.shape[1]}, {}},
                              {Arg::ints({0}), Arg::boolean(false)});
    return {b.add(Op::View, {sum}, out, {Arg::ints(out.shape)})};
  });
}

}  // namespace

bool serialize_products(Graph& g, const PassContext& ctx) {
  auto seed = [&](const Node& n) { return is_seed(g, n); };
  if (std::none_of(g.nodes.begin(), g.nodes.end(), seed)) return false;
  bool changed = sum_matrices(g);
  if (changed) dce(g, ctx);
  std::set<ValueId> seen;
  for (size_t i = 0; i < g.nodes.size(); ++i)
    if (is_seed(g, g.nodes[i]) && seen.insert(g.nodes[i].results[0]).second) {
      const auto at = static_cast<int>(i);
      const int64_t wanted = std::min<int64_t>(g.locations[g.nodes[i].loc].pieces, kMostPieces);
      changed |= Cutter(g, at, wanted).run() || Cutter(g, at, 2).run();
    }
  return changed;
}

}  // namespace tessera
