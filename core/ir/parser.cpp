// SPDX-License-Identifier: Apache-2.0
// Text to graph. One pass over the characters; every error names the line and column of the text.
// What the text says is bounded here, so that nothing after the parser can overflow on it.
#include <algorithm>
#include <limits>
#include <set>
#include <tuple>
#include <unordered_map>
#include <unordered_set>

#include "ir/graph.h"
#include "ir/text_reader.h"

namespace tessera {
namespace {

// Lists in lists of arguments; deeper ones serve no op and would end the stack.
constexpr int kMaxListDepth = 16;
// Bodies in bodies: loops in loops, with fused regions that hold none.
constexpr int kMaxBodyDepth = 16;
constexpr size_t kMaxRank = 64;       // as PyTorch
constexpr int32_t kMaxPlace = 65535;  // IPUs, stages and phases
constexpr int32_t kMaxRegions = 64;   // checkpointed ones in each other

class Parser : TextReader {
 public:
  explicit Parser(std::string_view text) : TextReader(text) {}

  std::unique_ptr<Graph> parse() {
    expect_word("tessera");
    int64_t version = integer();
    check(version == 1, "this text is of version {}, this build reads version 1", version);
    expect_word("graph");
    auto g = std::make_unique<Graph>();
    g->name = string();
    graph_body(*g);
    skip();
    while (!at_end()) {
      expect_word("loc");
      location(*g);
      skip();
    }
    place_nodes(*g, g->locations);
    return g;
  }

 private:
  using Names = std::unordered_map<int64_t, ValueId>;

  int64_t value_number() {
    expect('%');
    return integer();
  }
  ValueId value() {
    int64_t n = value_number();
    auto it = names_->find(n);
    check(it != names_->end(), "%{} is not defined here", n);
    return it->second;
  }
  void define(int64_t number, ValueId v) {
    check(names_->emplace(number, v).second, "%{} is defined twice", number);
  }

  TensorType type() {
    TensorType t;
    std::string_view w = word();
    auto dtype = parse_dtype(w);
    check(dtype.has_value(), "`{}` is not a dtype", w);
    t.dtype = *dtype;
    expect('[');
    int64_t bytes = size_of(t.dtype);
    while (!take(']')) {
      const int64_t d = integer();
      check(d >= 0, "a dimension is negative");
      // Strides are products of the other dims even where one of them is 0.
      if (d > kMaxTensorBytes || std::max<int64_t>(d, 1) > kMaxTensorBytes / bytes)
        throw MemoryError(
            fmt::format("[ir] line {}, column {}: a tensor of this size has no room in any memory",
                        here().line, here().column));
      check(t.shape.size() < kMaxRank, "a tensor has more than {} dims", kMaxRank);
      bytes *= std::max<int64_t>(d, 1);
      t.shape.push_back(d);
      take(',');
    }
    if (follows('{')) {
      take('{');
      while (!take('}')) {
        const int d = integer_in("dim", 0, static_cast<int32_t>(t.shape.size()) - 1);
        check(std::find(t.order.begin(), t.order.end(), d) == t.order.end(),
              "the order names dim {} twice", d);
        t.order.push_back(d);
        take(',');
      }
      check(t.order.size() == t.shape.size(), "the order does not name every dimension");
    }
    return t;
  }

  Arg arg(Node& n, int depth = 0) {
    char c = peek();
    if (c == '%') {
      n.operands.push_back(value());
      return Arg::operand(static_cast<int64_t>(n.operands.size()) - 1);
    }
    if (c == '"') return Arg::string(string());
    if (c == '[') {
      check(depth < kMaxListDepth, "lists lie more than {} deep in each other", kMaxListDepth);
      take('[');
      std::vector<Arg> items;
      while (!take(']')) {
        items.push_back(arg(n, depth + 1));
        take(',');
      }
      return Arg::of(std::move(items));
    }
    if (c == '-' || c == '+' || (c >= '0' && c <= '9')) return number();
    std::string_view w = peek_word();
    if (w == "inf" || w == "nan") return number();
    word();
    if (w == "none") return Arg::none();
    if (w == "true") return Arg::boolean(true);
    if (w == "false") return Arg::boolean(false);
    auto dtype = parse_dtype(w);
    check(dtype.has_value(), "`{}` is not an argument", w);
    return Arg::dtype(*dtype);
  }

  void node(Graph& g) {
    Node n;
    std::vector<int64_t> results;
    do results.push_back(value_number());
    while (take(','));
    expect('=');
    skip();
    n.place = here();
    std::string_view name = word();
    auto op = op_from_text(name);
    check(op.has_value(), "`{}` is no op of this build", name);
    n.op = *op;
    expect('(');
    while (!take(')')) {
      n.args.list.push_back(arg(n));
      take(',');
    }
    if (n.op == Op::HostCall) {
      check(!n.args.list.empty() && n.args.list[0].kind == Arg::Kind::kString,
            "a host_call begins with its target");
      n.target = n.args.list[0].s;
      n.args.list.erase(n.args.list.begin());
    }
    if (n.op == Op::Scan || n.op == Op::While || n.op == Op::Branch) {
      while (peek() == '{') n.bodies.push_back(body());
    } else if (peek() == '{') {
      ++regions_;
      n.body = body();
      --regions_;
    }
    expect(':');
    for (size_t i = 0; i < results.size(); ++i) {
      if (i) expect(',');
      n.results.push_back(g.add_value(type(), static_cast<int32_t>(i)));
    }
    for (size_t i = 0; i < results.size(); ++i) define(results[i], n.results[i]);
    if (take('!')) {
      check(regions_ == 0, "a node of a region has no location of its own");
      n.loc = integer_in("location", 0);
    }
    g.nodes.push_back(std::move(n));
  }

  std::shared_ptr<Graph> body() {
    check(bodies_ < kMaxBodyDepth, "bodies lie more than {} deep in each other", kMaxBodyDepth);
    ++bodies_;
    auto g = std::make_shared<Graph>();
    g->name = "body";
    Names* outer = names_;
    Names inner;
    names_ = &inner;
    graph_lines(*g);
    names_ = outer;
    --bodies_;
    return g;
  }

  // The one table of locations is that of all bodies.
  void place_nodes(Graph& g, const std::vector<Location>& locations) {
    for (Node& n : g.nodes) {
      if (n.loc >= static_cast<int64_t>(locations.size()))
        fail(n.place, fmt::format("location !{} is missing", n.loc));
      for (const std::shared_ptr<Graph>& inner : n.bodies) {
        inner->locations = locations;
        place_nodes(*inner, locations);
      }
    }
  }

  void graph_body(Graph& g) {
    Names names;
    names_ = &names;
    graph_lines(g);
    names_ = nullptr;
  }

  void source(Graph& g, SourceKind kind) {
    check(bodies_ == 0 || kind == SourceKind::kInput || is_of_the_model(kind), "a body has no {}",
          text_of(kind));
    int64_t number = value_number();
    Source s{kind, kNoValue, string()};
    owner(s);
    expect(':');
    const TensorType t = type();
    check(missing_type(kind, t).empty(), "a state of kind {} is {}, not {}", text_of(kind),
          missing_type(kind, t), to_string(t));
    if (bodies_ == 0 && kind != SourceKind::kInput) distinct(s, t);
    const ValueId v = g.add_source(std::move(s), t);
    define(number, v);
    if (bodies_ == 0) kinds_[v] = kind;
  }

  // `of "fc.weight"` or `of 0`: the parameter or the group that a state belongs to.
  void owner(Source& s) {
    const Owner kind = owner_of(s.kind);
    if (kind == Owner::kNone) return;
    check(peek() == 'o' && word() == "of",
          "a state of kind {} says whom it belongs to, as in `of 0` or `of \"weight\"`",
          text_of(s.kind));
    if (peek() == '"') {
      check(kind != Owner::kGroup, "a state of kind {} belongs to a group", text_of(s.kind));
      s.param = string();
      check(!s.param.empty(), "a parameter has a name");
    } else {
      check(kind != Owner::kParam, "a state of kind {} belongs to a parameter", text_of(s.kind));
      s.group = integer_in("group", 0);
    }
  }

  // The user finds states by name, the passes those of the optimizer by what they are.
  void distinct(const Source& s, const TensorType& t) {
    const std::string name = state_name(s);
    check(state_names_.insert(name).second, "two states are called \"{}\"", name);
    const bool once = !is_of_the_model(s.kind) && owner_of(s.kind) == Owner::kNone;
    if (!once && s.kind != SourceKind::kHyper) return;
    const auto what = std::tuple(s.kind, s.group, t.dtype);
    check(single_.insert(what).second, "there are two states of kind {}", text_of(s.kind));
  }

  // A value that a step may change.
  ValueId state(bool param_only) {
    const ValueId v = value();
    auto it = kinds_.find(v);
    check(it != kinds_.end() &&
              (param_only ? it->second == SourceKind::kParam : may_be_written(it->second)),
          "this is not {}", param_only ? "a param" : "a state that a step may write");
    return v;
  }

  void state_line(Graph& g, bool grad) {
    const ValueId s = state(grad), v = value();
    const TensorType &have = g.type(s), &now = g.type(v);
    check(have.shape == now.shape &&
              (grad ? is_float(have.dtype) && is_float(now.dtype) : have.dtype == now.dtype),
          "{} for {} does not fit", to_string(now), to_string(have));
    check((grad ? graded_ : updated_).insert(s).second, "this state has one {} already",
          grad ? "gradient" : "update");
    const bool once = !grad && peek() == 'o' && peek_word() == "once";
    if (once) word();
    (grad ? g.grads : g.updates).push_back({s, v, once});
  }

  void graph_lines(Graph& g) {
    expect('{');
    while (!take('}')) {
      check(!at_end(), "the graph does not end");
      if (peek() == '%') {
        node(g);
        continue;
      }
      std::string_view w = word();
      if (auto kind = source_kind(w)) {
        source(g, *kind);
      } else if (w == "output") {
        do g.outputs.push_back(value());
        while (take(','));
      } else if (bodies_ > 0) {
        check(false, "`{}` begins no line of a body", w);
      } else if (w == "loss") {
        g.loss = value();
      } else if (w == "grad" || w == "update") {
        state_line(g, w == "grad");
      } else if (w == "optimize") {
        optimize(g);
      } else {
        check(false, "`{}` begins no line of a graph", w);
      }
    }
  }

  void optimize(Graph& g) {
    OptimizerGroup o;
    o.kind = string();
    o.group = integer_in("group", 0);
    expect('[');
    while (!take(']')) {
      o.params.push_back(state(true));
      check(optimized_.insert(o.params.back()).second, "this param is in two groups");
      take(',');
    }
    expect('{');
    while (!take('}')) {
      std::string key(word());
      expect('=');
      o.flags[key] = number().number();
      take(',');
    }
    g.optimizer.push_back(std::move(o));
  }

  void location(Graph& g) {
    expect('!');
    // No more locations than characters: a number alone does not make a table.
    const auto index = static_cast<size_t>(integer_in(
        "location", 0,
        static_cast<int32_t>(std::min<size_t>(size(), std::numeric_limits<int32_t>::max()))));
    if (g.locations.size() <= index) g.locations.resize(index + 1);
    Location& l = g.locations[index];
    l.file = string();
    l.line = integer_in("line", INT32_MIN);
    l.scope = string();
    std::string_view direction = word();
    check(direction == "fwd" || direction == "bwd", "`{}` is neither fwd nor bwd", direction);
    l.backward = direction == "bwd";
    l.ipu = integer_in("IPU", 0, kMaxPlace);
    l.stage = integer_in("stage", -1, kMaxPlace);
    l.phase = integer_in("phase", -1, kMaxPlace);
    if (!take('{')) return;
    while (!take('}')) {
      const std::string_view key = word();
      expect('=');
      if (key == "checkpoints") {
        expect('[');
        while (!take(']')) {
          l.checkpoints.push_back(integer_in("checkpoint", 0));
          take(',');
        }
        check(l.checkpoints.size() <= kMaxRegions, "more than {} regions in each other",
              kMaxRegions);
      } else if (key == "turn") {
        l.turn = integer_in("turn", 0);
      } else if (key == "pieces") {
        l.pieces = integer_in("pieces", 0);
      } else {
        check(key == "memory", "a location has no `{}`", key);
        l.memory = number().number();
        check(l.memory >= 0 && l.memory <= 1, "{} is no share of memory", l.memory);
      }
      take(',');
    }
  }

  int bodies_ = 0;   // around this line
  int regions_ = 0;  // of them fused regions and epilogues
  Names* names_ = nullptr;
  std::unordered_map<ValueId, SourceKind> kinds_;
  std::unordered_set<std::string> state_names_;
  std::set<std::tuple<SourceKind, int, DType>> single_;  // kinds of which there is one
  std::unordered_set<ValueId> graded_, updated_, optimized_;
};

}  // namespace

std::unique_ptr<Graph> parse_graph(std::string_view text) {
  return Parser(text).parse();
}

}  // namespace tessera
