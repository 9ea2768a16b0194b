// SPDX-License-Identifier: Apache-2.0
#include "damage.h"

#include <algorithm>
#include <cctype>
#include <iterator>

#include "session/op_rows.h"

namespace tessera::fuzz {
namespace {

constexpr const char* kIntegers[] = {"0",
                                     "1",
                                     "-1",
                                     "2",
                                     "3",
                                     "4",
                                     "7",
                                     "16",
                                     "-2",
                                     "63",
                                     "65",
                                     "255",
                                     "4096",
                                     "65536",
                                     "1000003",
                                     "2147483647",
                                     "2147483648",
                                     "-2147483648",
                                     "4294967296",
                                     "3037000500",
                                     "140737488355327",
                                     "1152921504606846976",
                                     "9223372036854775807",
                                     "-9223372036854775808",
                                     "-9223372036854775807"};
constexpr const char* kOthers[] = {"none",     "true", "false",  "0.5",   "-1.5", "1e308", "1e-320",
                                   "nan",      "inf",  "-inf",   "f32",   "bool", "[]",    "[1]",
                                   "\"mean\"", "\"\"", "[1, 2]", "[[1]]", "1.0",  "1e300"};
constexpr const char* kTypes[] = {"f32", "f16",  "bf16", "f64", "i64", "i32", "i16", "i8",
                                  "u8",  "bool", "u16",  "u32", "u64", "c32", "c64", "c128"};
constexpr const char* kLines[] = {"param",       "buffer",      "const",      "input",
                                  "output",      "loss",        "grad",       "update",
                                  "optimize",    "random",      "hyper",      "optimizer",
                                  "accumulator", "micro_count", "loss_scale", "loss_steps"};

bool word_char(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.';
}

// Half-open range of the text.
struct Span {
  size_t begin = 0, end = 0;
  std::string in(const std::string& s) const { return s.substr(begin, end - begin); }
};

std::vector<Span> lines_of(const std::string& s) {
  std::vector<Span> out;
  for (size_t at = 0; at < s.size();) {
    size_t end = std::min(s.find('\n', at), s.size() - 1) + 1;
    out.push_back({at, end});
    at = end;
  }
  return out;
}

// Words, values, strings and signs, in order.
std::vector<Span> tokens_of(const std::string& s, Span in) {
  std::vector<Span> out;
  for (size_t at = in.begin; at < in.end;) {
    const char c = s[at];
    size_t end = at + 1;
    if (c == '"') {
      while (end < in.end && s[end] != '"') ++end;
      end = std::min(end + 1, in.end);
    } else if (word_char(c) || c == '%' || c == '-') {
      while (end < in.end && word_char(s[end])) ++end;
    }
    if (!std::isspace(static_cast<unsigned char>(c))) out.push_back({at, end});
    at = end;
  }
  return out;
}

bool is_number(const std::string& t) {
  return !t.empty() &&
         (std::isdigit(static_cast<unsigned char>(t[0])) ||
          (t.size() > 1 && t[0] == '-' && std::isdigit(static_cast<unsigned char>(t[1]))));
}
bool is_type(const std::string& t) {
  return std::find(std::begin(kTypes), std::end(kTypes), t) != std::end(kTypes);
}

void replace(std::string& s, Span at, const std::string& by) {
  s.replace(at.begin, at.end - at.begin, by);
}

class Mutator {
 public:
  Mutator(const std::vector<std::string>& programs, Random& r) : programs_(programs), r_(r) {}

  void damage(std::string& s) {
    if (s.empty()) return;
    switch (r_.below(24)) {
      case 0:
      case 1:
      case 2:
        return number(s);
      case 3:
      case 4:
      case 5:
        return same_number_everywhere(s);
      case 6:
      case 7:
        return dtype(s);
      case 8:
      case 9:
        return dims(s);
      case 10:
      case 11:
        return op(s);
      case 12:
      case 13:
        return operand(s);
      case 14:
      case 15:
      case 16:
        return argument(s);
      case 17:
        return line(s);
      case 18:
        return splice(s);
      case 19:
        return results(s);
      case 20:
        return keyword(s);
      case 21:
        return token(s);
      case 22:
        return nest(s);
      default:
        return bytes(s);
    }
  }

 private:
  // A token of the text for which `wanted` holds; an empty span if there is none.
  template <typename F>
  Span find(const std::string& s, F wanted) {
    std::vector<Span> fits;
    for (Span t : tokens_of(s, {0, s.size()}))
      if (wanted(t)) fits.push_back(t);
    return fits.empty() ? Span{} : r_.pick(fits);
  }

  std::string some_number(const std::string& old) {
    if (r_.one_in(3)) {
      const int64_t v = std::strtoll(old.c_str(), nullptr, 10);
      if (v > -(1 << 30) && v < 1 << 30) {
        const int64_t near[] = {v / 2, v + 1, v - 1, -v};
        return std::to_string(r_.pick(near));
      }
    }
    // Small ones oftener: they leave programs that run.
    return kIntegers[r_.one_in(2) ? r_.below(8) : r_.below(std::size(kIntegers))];
  }

  void number(std::string& s) {
    Span t = find(s, [&](Span x) { return is_number(x.in(s)); });
    if (t.end) replace(s, t, r_.one_in(6) ? r_.pick(kOthers) : some_number(t.in(s)));
  }

  // One size of the program becomes another in all places: types still agree.
  void same_number_everywhere(std::string& s) {
    Span t = find(s, [&](Span x) { return is_number(x.in(s)); });
    if (!t.end) return;
    const std::string old = t.in(s), now = some_number(old);
    std::vector<Span> all = tokens_of(s, {0, s.size()});
    for (size_t i = all.size(); i-- > 0;)
      if (all[i].in(s) == old) replace(s, all[i], now);
  }

  void dtype(std::string& s) {
    Span t = find(s, [&](Span x) { return is_type(x.in(s)); });
    if (!t.end) return;
    const std::string old = t.in(s), now = r_.pick(kTypes);
    if (r_.one_in(2)) return replace(s, t, now);
    std::vector<Span> all = tokens_of(s, {0, s.size()});
    for (size_t i = all.size(); i-- > 0;)
      if (all[i].in(s) == old) replace(s, all[i], now);
  }

  void dims(std::string& s) {
    Span t =
        find(s, [&](Span x) { return is_type(x.in(s)) && x.end < s.size() && s[x.end] == '['; });
    const size_t close = t.end ? s.find(']', t.end) : std::string::npos;
    if (close == std::string::npos) return;
    std::vector<std::string> list;
    for (Span x : tokens_of(s, {t.end + 1, close}))
      if (is_number(x.in(s))) list.push_back(x.in(s));
    switch (r_.below(4)) {
      case 0:
        list.insert(list.begin() + static_cast<int64_t>(r_.below(list.size() + 1)),
                    some_number("2"));
        break;
      case 1:
        if (!list.empty()) list.erase(list.begin() + static_cast<int64_t>(r_.below(list.size())));
        break;
      case 2:
        if (!list.empty()) std::swap(list[r_.below(list.size())], list[r_.below(list.size())]);
        break;
      default:
        list.resize(list.size() + r_.below(70), "1");
    }
    std::string text = "[";
    for (size_t i = 0; i < list.size(); ++i) text += (i ? "," : "") + list[i];
    replace(s, {t.end, close}, text);
  }

  void op(std::string& s) {
    static const std::vector<std::string> names = [] {
      std::vector<std::string> out;
      for (const RowInfo& row : op_rows()) out.push_back(row.name);
      return out;
    }();
    Span t = find(
        s, [&](Span x) { return x.end < s.size() && s[x.end] == '(' && word_char(s[x.begin]); });
    if (t.end) replace(s, t, r_.one_in(20) ? "fused" : r_.pick(names));
  }

  Span value(const std::string& s) {
    return find(s, [&](Span x) { return s[x.begin] == '%'; });
  }

  void operand(std::string& s) {
    Span t = value(s), other = value(s);
    if (t.end) replace(s, t, r_.one_in(8) ? r_.pick(kOthers) : other.in(s));
  }

  // The arguments of one call: swapped, dropped, doubled, replaced.
  void argument(std::string& s) {
    Span t = find(
        s, [&](Span x) { return x.end < s.size() && s[x.end] == '(' && word_char(s[x.begin]); });
    if (!t.end) return;
    std::vector<std::string> args;
    size_t at = t.end + 1, start = at;
    int depth = 0;
    bool quoted = false;
    for (; at < s.size() && (depth > 0 || quoted || s[at] != ')'); ++at) {
      if (s[at] == '"') quoted = !quoted;
      if (!quoted && s[at] == '[') ++depth;
      if (!quoted && s[at] == ']') --depth;
      if (!quoted && depth == 0 && s[at] == ',')
        args.push_back(s.substr(start, at - start)), start = at + 1;
    }
    if (at > start) args.push_back(s.substr(start, at - start));
    const size_t i = r_.below(args.size());
    const Span other = value(s);
    switch (r_.below(6)) {
      case 0:
        if (!args.empty()) args.erase(args.begin() + static_cast<int64_t>(i));
        break;
      case 1:
        if (!args.empty()) args.insert(args.begin() + static_cast<int64_t>(i), args[i]);
        break;
      case 2:
        if (!args.empty()) std::swap(args[i], args[r_.below(args.size())]);
        break;
      case 3:
        args.insert(args.begin() + static_cast<int64_t>(i), r_.pick(kOthers));
        break;
      case 4:
        args.push_back(other.end ? other.in(s) : "%0");
        break;
      default:
        if (!args.empty()) args[i] = r_.one_in(2) ? r_.pick(kOthers) : r_.pick(kIntegers);
    }
    std::string text;
    for (size_t k = 0; k < args.size(); ++k) text += (k ? "," : "") + args[k];
    replace(s, {t.end + 1, std::min(at, s.size())}, text);
  }

  void line(std::string& s) {
    const std::vector<Span> lines = lines_of(s);
    const Span a = r_.pick(lines), b = r_.pick(lines);
    const std::string text = a.in(s);
    switch (r_.below(4)) {
      case 0:
        return replace(s, a, "");
      case 1:
        s.insert(b.begin, text);
        return;
      case 2:
        s.insert(s.rfind('}') == std::string::npos ? 0 : s.rfind('}'), text);
        return;
      default:
        s.resize(r_.below(s.size()));
    }
  }

  // A line of another program, with the values of this one.
  void splice(std::string& s) {
    const std::string& from = r_.pick(programs_);
    if (from.empty()) return;
    std::string text = r_.pick(lines_of(from)).in(from);
    const Span here = value(s);
    if (here.end && r_.one_in(2)) {
      std::vector<Span> all = tokens_of(text, {0, text.size()});
      for (size_t i = all.size(); i-- > 1;)
        if (text[all[i].begin] == '%') replace(text, all[i], value(s).in(s));
      if (!all.empty() && text[all[0].begin] == '%') replace(text, all[0], "%990");
    }
    const std::vector<Span> lines = lines_of(s);
    s.insert(r_.pick(lines).begin, text);
  }

  void results(std::string& s) {
    const size_t at = s.find(" = ", r_.below(s.size()));
    if (at == std::string::npos) return;
    const size_t start = s.rfind('\n', at) + 1, comma = s.find(',', start);
    if (r_.one_in(2) && comma < at) {
      s.erase(start, comma + 1 - start);
    } else {
      const size_t end = s.find('\n', at), loc = s.rfind(" !", end);
      s.insert(loc != std::string::npos && loc > at ? loc : std::min(end, s.size()), ", f32[2]");
      s.insert(at, ", %991");
    }
  }

  void keyword(std::string& s) {
    Span t = find(s, [&](Span x) {
      return std::find(std::begin(kLines), std::end(kLines), x.in(s)) != std::end(kLines);
    });
    if (t.end) replace(s, t, r_.pick(kLines));
  }

  void token(std::string& s) {
    Span t = find(s, [](Span) { return true; }), other = find(s, [](Span) { return true; });
    if (!t.end) return;
    const std::string text = other.in(s);
    if (r_.one_in(3)) return replace(s, t, "");
    if (r_.one_in(2)) return replace(s, t, text);
    s.insert(t.begin, text + " ");
  }

  void nest(std::string& s) {
    Span t = find(
        s, [&](Span x) { return is_number(x.in(s)) || s[x.begin] == '[' || s[x.begin] == '{'; });
    if (!t.end) return;
    const size_t depth = r_.one_in(4) ? 100000 : 1 + r_.below(40);
    s.insert(t.begin, std::string(depth, s[t.begin] == '{' ? '{' : '['));
    if (r_.one_in(2)) s.insert(t.end + depth, std::string(depth, ']'));
  }

  void bytes(std::string& s) {
    constexpr char kBytes[] = "%[](){}=:,!\"-+.eE0919 \n\\/\x01\xff";
    const size_t at = r_.below(s.size());
    switch (r_.below(3)) {
      case 0:
        s.erase(at, 1 + r_.below(8));
        break;
      case 1:
        s[at] = kBytes[r_.below(sizeof(kBytes))];
        break;
      default:
        s.insert(at, 1 + r_.below(3), kBytes[r_.below(sizeof(kBytes))]);
    }
  }

  const std::vector<std::string>& programs_;
  Random& r_;
};

}  // namespace

void damage(std::string& text, const std::vector<std::string>& programs, Random& r) {
  Mutator(programs, r).damage(text);
}

}  // namespace tessera::fuzz
