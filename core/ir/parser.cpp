// SPDX-License-Identifier: Apache-2.0
// Text to graph. One pass over the characters; every error names the line of the text.
#include <charconv>
#include <cmath>
#include <limits>
#include <unordered_map>

#include "ir/graph.h"

namespace tessera {
namespace {

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
    for (Node& n : g->nodes)
      check(n.loc < static_cast<int32_t>(g->locations.size()), "location !{} is missing", n.loc);
    return g;
  }

 private:
  template <typename... A>
  void check(bool ok, fmt::format_string<A...> message, A&&... args) const {
    if (ok) return;
    throw UserError(
        fmt::format("[ir] line {}: {}", line_, fmt::format(message, std::forward<A>(args)...)));
  }

  bool at_end() const { return pos_ >= text_.size(); }
  char peek() {
    skip();
    return at_end() ? '\0' : text_[pos_];
  }
  void skip() {
    while (!at_end()) {
      char c = text_[pos_];
      if (c == '\n') ++line_;
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
    check(ec == std::errc(), "expected an integer");
    pos_ = end - text_.data();
    return v;
  }
  std::string string() {
    expect('"');
    std::string out;
    while (!at_end() && text_[pos_] != '"') {
      char c = text_[pos_++];
      if (c == '\\' && !at_end()) {
        c = text_[pos_++];
        if (c == 'n') c = '\n';
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
    while (!take(']')) {
      t.shape.push_back(integer());
      check(t.shape.back() >= 0, "a dimension is negative");
      take(',');
    }
    if (!at_end() && text_[pos_] == '{') {
      ++pos_;
      while (!take('}')) {
        t.order.push_back(static_cast<int>(integer()));
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
      check(ec != std::errc::invalid_argument, "`{}` is not a number", t);
      return Arg::real(v);
    }
    int64_t v = 0;
    auto [end, ec] = std::from_chars(t.data(), t.data() + t.size(), v);
    check(ec == std::errc() && end == t.data() + t.size(), "`{}` is not a number", t);
    return Arg::integer(v);
  }

  Arg arg(Node& n) {
    char c = peek();
    if (c == '%') {
      n.operands.push_back(value());
      return Arg::operand(static_cast<int64_t>(n.operands.size()) - 1);
    }
    if (c == '"') return Arg::string(string());
    if (c == '[') {
      ++pos_;
      std::vector<Arg> items;
      while (!take(']')) {
        items.push_back(arg(n));
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
      n.body = std::make_shared<Graph>();
      Names* outer = names_;
      Names inner;
      names_ = &inner;
      graph_lines(*n.body, inner);
      names_ = outer;
    }
    expect(':');
    for (size_t i = 0; i < results.size(); ++i) {
      if (i) expect(',');
      n.results.push_back(g.add_value(type(), static_cast<int32_t>(i)));
    }
    for (size_t i = 0; i < results.size(); ++i) define(results[i], n.results[i]);
    if (take('!')) n.loc = static_cast<int32_t>(integer());
    g.nodes.push_back(std::move(n));
  }

  void graph_body(Graph& g) {
    Names names;
    names_ = &names;
    graph_lines(g, names);
    names_ = nullptr;
  }

  void source(Graph& g, SourceKind kind) {
    int64_t number = value_number();
    std::string name = string();
    expect(':');
    define(number, g.add_source(kind, name, type()));
  }

  void graph_lines(Graph& g, Names&) {
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
      } else if (w == "loss") {
        g.loss = value();
      } else if (w == "grad" || w == "update") {
        ValueId s = value();
        ValueId v = value();
        (w == "grad" ? g.grads : g.updates).push_back({s, v});
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
    o.group = static_cast<int>(integer());
    expect('[');
    while (!take(']')) {
      o.params.push_back(value());
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
    size_t index = static_cast<size_t>(integer());
    check(index < 1000000, "location !{} is out of range", index);
    if (g.locations.size() <= index) g.locations.resize(index + 1);
    Location& l = g.locations[index];
    l.file = string();
    l.line = static_cast<int>(integer());
    l.scope = string();
    l.backward = word() == "bwd";
    l.ipu = static_cast<int>(integer());
    l.stage = static_cast<int>(integer());
    l.phase = static_cast<int>(integer());
  }

  std::string_view text_;
  size_t pos_ = 0;
  int line_ = 1;
  Names* names_ = nullptr;
};

}  // namespace

std::unique_ptr<Graph> parse_graph(std::string_view text) {
  return Parser(text).parse();
}

}  // namespace tessera
