// SPDX-License-Identifier: Apache-2.0
// Graph to text. Values are numbered in order of appearance, so equal graphs print equal text
// whatever passes did to their ids; that text is what tests compare and what the cache key hashes.
#include "ir/printer.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <unordered_map>

#include "ir/graph.h"

namespace tessera {
namespace {

std::string quoted(const std::string& s) {
  std::string out = "\"";
  for (char c : s) {
    if (c == '"' || c == '\\') out += '\\';
    if (c == '\n') {
      out += "\\n";
      continue;
    }
    out += c;
  }
  return out + "\"";
}

std::string real(double f) {
  if (std::isnan(f)) return "nan";
  if (std::isinf(f)) return f < 0 ? "-inf" : "inf";
  std::string s = fmt::format("{}", f);
  if (s.find_first_of(".e") == std::string::npos) s += ".0";
  return s;
}

class Printer {
 public:
  explicit Printer(const Graph& g) : Printer(g, own_) {}

  std::string graph() {
    std::string out = fmt::format("tessera 1\ngraph {} {{\n", quoted(g_.name));
    body(out, "  ");
    out += "}\n";
    for (size_t i = 0; i < own_.lines.size(); ++i)
      out += fmt::format("loc !{} {}\n", i, own_.lines[i]);
    return out;
  }

  void body(std::string& out, const std::string& indent) {
    for (const Source& s : g_.sources)
      out += fmt::format("{}{} {} {}{} : {}\n", indent, text_of(s.kind), define(s.value),
                         quoted(s.name), owner(s), to_string(g_.type(s.value)));
    for (const Node& n : g_.nodes) out += node(n, indent);
    if (!g_.outputs.empty()) {
      std::vector<std::string> names;
      for (ValueId v : g_.outputs) names.push_back(use(v));
      out += fmt::format("{}output {}\n", indent, fmt::join(names, ", "));
    }
    if (g_.loss != kNoValue) out += fmt::format("{}loss {}\n", indent, use(g_.loss));
    for (const StateUpdate& u : g_.grads)
      out += fmt::format("{}grad {} {}\n", indent, use(u.state), use(u.value));
    for (const StateUpdate& u : g_.updates)
      out += fmt::format("{}update {} {}{}\n", indent, use(u.state), use(u.value),
                         u.once ? " once" : "");
    for (const OptimizerGroup& o : g_.optimizer) {
      std::vector<std::string> params, flags;
      for (ValueId v : o.params) params.push_back(use(v));
      std::map<std::string, double> sorted(o.flags.begin(), o.flags.end());
      for (auto& [k, v] : sorted) flags.push_back(fmt::format("{}={}", k, v));
      out += fmt::format("{}optimize {} {} [{}] {{{}}}\n", indent, quoted(o.kind), o.group,
                         fmt::join(params, ", "), fmt::join(flags, ", "));
    }
  }

 private:
  // Those of the whole text; bodies may have tables of their own.
  struct Locations {
    std::unordered_map<std::string, int32_t> numbers;
    std::vector<std::string> lines;
  };

  Printer(const Graph& g, Locations& locations)
      : g_(g), number_(g.values.size(), -1), locations_(locations) {}

  static std::string owner(const Source& s) {
    if (!s.param.empty()) return fmt::format(" of {}", quoted(s.param));
    return s.group < 0 ? "" : fmt::format(" of {}", s.group);
  }

  std::string define(ValueId v) {
    number_[v] = next_++;
    return fmt::format("%{}", number_[v]);
  }
  std::string use(ValueId v) const {
    invariant(v >= 0 && v < static_cast<ValueId>(number_.size()) && number_[v] >= 0,
              "value {} is used before it is defined", v);
    return fmt::format("%{}", number_[v]);
  }

  static std::string location_line(const Location& l) {
    std::string out = fmt::format("{} {} {} {} {} {} {}", quoted(l.file), l.line, quoted(l.scope),
                                  l.backward ? "bwd" : "fwd", l.ipu, l.stage, l.phase);
    std::vector<std::string> more;
    if (!l.checkpoints.empty())
      more.push_back(fmt::format("checkpoints=[{}]", fmt::join(l.checkpoints, ", ")));
    if (l.turn) more.push_back(fmt::format("turn={}", l.turn));
    if (l.memory > 0) more.push_back(fmt::format("memory={}", l.memory));
    if (l.pieces) more.push_back(fmt::format("pieces={}", l.pieces));
    if (!more.empty()) out += fmt::format(" {{{}}}", fmt::join(more, ", "));
    return out;
  }

  int32_t location(int32_t loc) {
    std::string line = location_line(g_.locations[loc]);
    const auto next = static_cast<int32_t>(locations_.lines.size());
    auto [it, added] = locations_.numbers.emplace(line, next);
    if (added) locations_.lines.push_back(std::move(line));
    return it->second;
  }

  std::string node(const Node& n, const std::string& indent) {
    std::vector<std::string> args, results, types;
    if (n.op == Op::HostCall) args.push_back(quoted(n.target));
    auto operand = [&](int64_t i) { return use(n.operands[i]); };
    for (const Arg& a : n.args.list) args.push_back(print_arg(a, operand));
    for (ValueId v : n.results) {
      results.push_back(define(v));
      types.push_back(to_string(g_.type(v)));
    }
    std::string out = fmt::format("{}{} = {}({})", indent, fmt::join(results, ", "), op_text(n.op),
                                  fmt::join(args, ", "));
    auto add_body = [&](const Graph& body) {
      out += " {\n";
      Printer(body, locations_).body(out, indent + "  ");
      out += indent + "}";
    };
    if (n.body) add_body(*n.body);
    for (const auto& body : n.bodies) add_body(*body);
    out += fmt::format(" : {}", fmt::join(types, ", "));
    if (n.loc >= 0) out += fmt::format(" !{}", location(n.loc));
    return out + "\n";
  }

  const Graph& g_;
  std::vector<int32_t> number_;
  int32_t next_ = 0;
  Locations own_;
  Locations& locations_;  // of the whole text
};

}  // namespace

std::string print_arg(const Arg& a, const std::function<std::string(int64_t)>& operand) {
  switch (a.kind) {
    case Arg::Kind::kNone:
      return "none";
    case Arg::Kind::kBool:
      return a.i ? "true" : "false";
    case Arg::Kind::kInt:
      return fmt::format("{}", a.i);
    case Arg::Kind::kFloat:
      return real(a.f);
    case Arg::Kind::kString:
      return quoted(a.s);
    case Arg::Kind::kDType:
      return std::string(name_of(static_cast<DType>(a.i)));
    case Arg::Kind::kOperand:
      return operand(a.i);
    case Arg::Kind::kList: {
      std::vector<std::string> items;
      for (const Arg& x : a.list) items.push_back(print_arg(x, operand));
      return fmt::format("[{}]", fmt::join(items, ", "));
    }
  }
  return "";
}

std::string print_graph(const Graph& g) {
  return Printer(g).graph();
}

}  // namespace tessera
