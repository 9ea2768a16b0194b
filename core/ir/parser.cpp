// SPDX-License-Identifier: Apache-2.0
// Text to graph. One pass over the characters; every error names the line and column of the text.
// What the text says is bounded here, so that nothing behind the parser can overflow on it.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <unordered_map>
#include <unordered_set>

#include "ir/graph.h"

namespace tessera {
namespace {

// Lists in lists of arguments; deeper ones serve no op and would end the stack.
constexpr int kMaxListDepth = 16;
// Bodies in bodies: a fused region holds none.
constexpr int kMaxBodyDepth = 4;
constexpr size_t kMaxRank = 64;       // as PyTorch
constexpr int32_t kMaxPlace = 65535;  // IPUs, stages and phases

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

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
    for (const Node& n : g->nodes)
      if (n.loc >= static_cast<int64_t>(g->locations.size()))
        fail(n.place, fmt::format("location !{} is missing", n.loc));
    return g;
  }

 private:
  template <typename... A>
  void check(bool ok, fmt::format_string<A...> message, A&&... args) const {
    if (ok) return;
    fail({line_, column()}, fmt::format(message, std::forward<A>(args)...));
  }
  [[noreturn]] static void fail(TextPlace at, const std::string& message) {
    throw UserError(fmt::format("[ir] line {}, column {}: {}", at.line, at.column, message));
  }
  int32_t column() const { return static_cast<int32_t>(pos_ - line_start_ + 1); }

  bool at_end() const { return pos_ >= text_.size(); }
  char peek() {
    skip();
    return at_end() ? '\0' : text_[pos_];
  }
  void skip() {
    while (!at_end()) {
      char c = text_[pos_];
      if (c == '\n') ++line_, line_start_ = pos_ + 1;
      if (c == '/' && text_.substr(pos_, 2) == "//") {
        while (!at_end() && text_[pos_] != '\n') ++pos_;
        continue;
      }
      if (c != ' ' && c != '\n' && c != '\t' && c != '\r') return;
      ++pos_;
    }
  }
  bool take(char c) {
    if (peek() != c) return false;
    ++pos_;
    return true;
  }
  void expect(char c) {
    check(take(c), "expected '{}', found '{}'", c,
          at_end() ? "the end" : std::string(1, text_[pos_]));
  }

  static bool is_word(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '.';
  }
  std::string_view word() {
    skip();
    size_t start = pos_;
    while (!at_end() && is_word(text_[pos_])) ++pos_;
    check(pos_ > start, "expected a word");
    return text_.substr(start, pos_ - start);
  }
  void expect_word(std::string_view w) {
    std::string_view got = word();
    check(got == w, "expected `{}`, found `{}`", w, got);
  }
  int64_t integer() {
    skip();
    int64_t v = 0;
    auto [end, ec] = std::from_chars(text_.data() + pos_, text_.data() + text_.size(), v);
    check(ec != std::errc::result_out_of_range, "an integer is out of range");
    check(ec == std::errc(), "expected an integer");
    pos_ = end - text_.data();
    return v;
  }
  int32_t integer_in(const char* what, int32_t low, int32_t high = INT32_MAX) {
    const int64_t v = integer();
    check(v >= low && v <= high, "{} {} is out of range", what, v);
    return static_cast<int32_t>(v);
  }
  std::string string() {
    expect('"');
    std::string out;
    while (!at_end() && text_[pos_] != '"') {
      char c = text_[pos_++];
      if (c == '\\' && !at_end()) {
        c = text_[pos_++];
        if (c == 'n') c = '\n';
      } else if (c == '\n') {
        ++line_, line_start_ = pos_;
      }
      out += c;
    }
    check(!at_end(), "a string does not end");
    ++pos_;
    return out;
  }

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
                        line_, column()));
      check(t.shape.size() < kMaxRank, "a tensor has more than {} dims", kMaxRank);
      bytes *= std::max<int64_t>(d, 1);
      t.shape.push_back(d);
      take(',');
    }
    if (!at_end() && text_[pos_] == '{') {
      ++pos_;
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

  // A number: int, or float if it has a point or an exponent.
  Arg number() {
    skip();
    size_t start = pos_;
    if (text_[pos_] == '-' || text_[pos_] == '+') ++pos_;
    bool real = false;
    while (!at_end()) {
      char c = text_[pos_];
      if (c >= '0' && c <= '9') {
      } else if (c == '.' || c == 'e' || c == 'E' || c == 'i' || c == 'n' || c == 'f' || c == 'a') {
        real = true;
      } else if ((c == '-' || c == '+') && (text_[pos_ - 1] == 'e' || text_[pos_ - 1] == 'E')) {
      } else {
        break;
      }
      ++pos_;
    }
    std::string_view t = text_.substr(start, pos_ - start);
    if (t == "inf") return Arg::real(std::numeric_limits<double>::infinity());
    if (t == "-inf") return Arg::real(-std::numeric_limits<double>::infinity());
    if (t == "nan") return Arg::real(std::nan(""));
    if (real) {
      double v = 0;
      auto [end, ec] = std::from_chars(t.data(), t.data() + t.size(), v);
      // from_chars reports denormals out of range on some libraries; strtod reads them.
      if (ec == std::errc::result_out_of_range) v = std::strtod(std::string(t).c_str(), nullptr);
      check(ec != std::errc::invalid_argument && end == t.data() + t.size(), "`{}` is not a number",
            t);
      return Arg::real(v);
    }
    int64_t v = 0;
    auto [end, ec] = std::from_chars(t.data(), t.data() + t.size(), v);
    check(ec == std::errc() && end == t.data() + t.size(), "`{}` is not a number", t);
    return Arg::integer(v);
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
      ++pos_;
      std::vector<Arg> items;
      while (!take(']')) {
        items.push_back(arg(n, depth + 1));
        take(',');
      }
      return Arg::of(std::move(items));
    }
    if (c == '-' || c == '+' || (c >= '0' && c <= '9')) return number();
    size_t before = pos_;
    std::string_view w = word();
    if (w == "none") return Arg::none();
    if (w == "true") return Arg::boolean(true);
    if (w == "false") return Arg::boolean(false);
    if (w == "inf" || w == "nan") {
      pos_ = before;
      return number();
    }
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
    n.place = {line_, column()};
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
    if (peek() == '{') {
      check(bodies_ < kMaxBodyDepth, "bodies lie more than {} deep in each other", kMaxBodyDepth);
      ++bodies_;
      n.body = std::make_shared<Graph>();
      Names* outer = names_;
      Names inner;
      names_ = &inner;
      graph_lines(*n.body);
      names_ = outer;
      --bodies_;
    }
    expect(':');
    for (size_t i = 0; i < results.size(); ++i) {
      if (i) expect(',');
      n.results.push_back(g.add_value(type(), static_cast<int32_t>(i)));
    }
    for (size_t i = 0; i < results.size(); ++i) define(results[i], n.results[i]);
    if (take('!')) {
      check(bodies_ == 0, "a node of a body has no location of its own");
      n.loc = integer_in("location", 0);
    }
    g.nodes.push_back(std::move(n));
  }

  void graph_body(Graph& g) {
    Names names;
    names_ = &names;
    graph_lines(g);
    names_ = nullptr;
  }

  void source(Graph& g, SourceKind kind) {
    int64_t number = value_number();
    std::string name = string();
    expect(':');
    const ValueId v = g.add_source(kind, name, type());
    define(number, v);
    if (bodies_ > 0) return;
    // The engine finds states by name.
    check(kind == SourceKind::kInput || state_names_.insert(name).second,
          "two states are called \"{}\"", name);
    kinds_[v] = kind;
  }

  // A value that a step may change.
  ValueId state(bool param_only) {
    const ValueId v = value();
    auto it = kinds_.find(v);
    check(it != kinds_.end() && (it->second == SourceKind::kParam ||
                                 (it->second == SourceKind::kBuffer && !param_only)),
          "this is not {}", param_only ? "a param" : "a param or buffer");
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
    (grad ? g.grads : g.updates).push_back({s, v});
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
      if (w == "param") {
        source(g, SourceKind::kParam);
      } else if (w == "buffer") {
        source(g, SourceKind::kBuffer);
      } else if (w == "const") {
        source(g, SourceKind::kConst);
      } else if (w == "input") {
        source(g, SourceKind::kInput);
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
        static_cast<int32_t>(std::min<size_t>(text_.size(), std::numeric_limits<int32_t>::max()))));
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
  }

  std::string_view text_;
  size_t pos_ = 0;
  int32_t line_ = 1;
  size_t line_start_ = 0;
  int bodies_ = 0;
  Names* names_ = nullptr;
  std::unordered_map<ValueId, SourceKind> kinds_;
  std::unordered_set<std::string> state_names_;
  std::unordered_set<ValueId> graded_, updated_, optimized_;
};

}  // namespace

std::unique_ptr<Graph> parse_graph(std::string_view text) {
  return Parser(text).parse();
}

}  // namespace tessera
