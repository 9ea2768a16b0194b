// SPDX-License-Identifier: Apache-2.0
#include "custom/codelets/scan.h"

#include <algorithm>
#include <map>
#include <set>

#include "custom/codelets/tokens.h"

namespace tessera::codelets {
namespace {

struct Class {
  std::vector<std::string> scope;
  std::string name, specialised;  // specialised: V<float> of `template <> class V<float>`
  std::vector<std::string> bases;
  std::vector<std::string> fields;
  bool is_template = false, constructor = false;
};

struct Instance {
  std::vector<std::string> scope;
  std::string written, of;
};

class Scanner {
 public:
  explicit Scanner(const std::vector<Token>& tokens) : t_(tokens) {}

  void run() {
    while (i_ < t_.size()) top();
  }

  std::vector<Class> classes;
  std::vector<Instance> instances;

 private:
  Token at(size_t i) const { return i < t_.size() ? t_[i] : Token{}; }
  bool is(size_t i, std::string_view text) const { return at(i) == text; }

  // The index behind the bracket that closes the one at `i`.
  size_t behind(size_t i, std::string_view open, std::string_view close) const {
    int depth = 0;
    for (; i < t_.size(); ++i) {
      if (t_[i] == open) ++depth;
      if (t_[i] == close && --depth == 0) return i + 1;
    }
    return i;
  }

  // Template parameters: < in parentheses are comparisons.
  size_t behind_angle(size_t i) const {
    int depth = 0, round = 0;
    for (; i < t_.size(); ++i) {
      if (t_[i] == "(" || t_[i] == "{") ++round;
      if (t_[i] == ")" || t_[i] == "}") --round;
      if (round > 0) continue;
      if (t_[i] == "<") ++depth;
      if (t_[i] == ">" && --depth == 0) return i + 1;
    }
    return i;
  }

  // [[...]], __attribute__((...)), alignas(...).
  size_t behind_attributes(size_t i) const {
    for (;;) {
      if (is(i, "[") && is(i + 1, "["))
        i = behind(i, "[", "]");
      else if ((is(i, "__attribute__") || is(i, "alignas")) && is(i + 1, "("))
        i = behind(i + 1, "(", ")");
      else
        return i;
    }
  }

  // Names of the blocks that are open, as far as they are namespaces.
  std::vector<std::string> scope() const {
    std::vector<std::string> names;
    for (const auto& block : blocks_) names.insert(names.end(), block.begin(), block.end());
    return names;
  }

  void top() {
    if (is(i_, "namespace")) return open_namespace();
    if (is(i_, "extern") && at(i_ + 1).substr(0, 1) == "\"") {
      i_ += 2;
      if (is(i_, "{")) {
        blocks_.emplace_back();
        ++i_;
      }
      return;
    }
    if (is(i_, "extern") && is(i_ + 1, "template")) return skip_statement();
    if (is(i_, "}")) {
      if (!blocks_.empty()) blocks_.pop_back();
      ++i_;
      return;
    }
    if (is(i_, "enum") || is(i_, "union")) return skip_statement();
    if (is(i_, "template")) return read_template();
    if (is(i_, "class") || is(i_, "struct")) return read_class(false);
    if (is(i_, "{")) {
      i_ = behind(i_, "{", "}");
      return;
    }
    if (is(i_, "(")) {
      i_ = behind(i_, "(", ")");
      return;
    }
    ++i_;
  }

  void skip_statement() {
    while (i_ < t_.size() && !is(i_, ";") && !is(i_, "{")) ++i_;
    i_ = is(i_, "{") ? behind(i_, "{", "}") : i_ + 1;
  }

  void open_namespace() {
    i_ = behind_attributes(i_ + 1);
    std::vector<std::string> names;
    while (is_word(at(i_)) || is(i_, "::")) {
      if (!is(i_, "::") && !is(i_, "inline")) names.emplace_back(at(i_));
      ++i_;
    }
    if (!is(i_, "{")) return skip_statement();
    if (names.empty()) names.emplace_back();
    blocks_.push_back(std::move(names));
    ++i_;
  }

  void read_template() {
    ++i_;
    if (is(i_, "class") || is(i_, "struct")) {
      size_t begin = behind_attributes(i_ + 1), end = begin;
      while (end < t_.size() && !is(end, ";")) ++end;
      std::string of;
      for (size_t i = begin; i < end && !is(i, "<"); ++i)
        if (is_word(t_[i])) of = t_[i];
      instances.push_back({scope(), join(t_.data() + begin, t_.data() + end), of});
      i_ = end + 1;
      return;
    }
    if (!is(i_, "<")) return;
    bool special = is(i_ + 1, ">");
    i_ = behind_angle(i_);
    if (is(i_, "class") || is(i_, "struct"))
      read_class(!special);
    else if (is(i_, "template"))
      read_template();
    else if (!is(i_, "union"))
      skip_statement();
  }

  void read_class(bool is_template) {
    size_t begin = behind_attributes(i_ + 1), end = begin;
    while (end < t_.size() && !is(end, "{") && !is(end, ";") && !is(end, "(") && !is(end, "="))
      ++end;
    if (!is(end, "{")) {
      // A declaration, a variable or a function.
      i_ = end;
      return;
    }
    Class c{scope(), std::string(at(begin)), "", {}, {}, is_template, false};
    size_t head = begin + 1;
    if (is(head, "<")) {
      head = behind_angle(head);
      c.specialised = join(t_.data() + begin, t_.data() + head);
    }
    // Bases: the last word before < or , of each.
    for (size_t i = head; i < end; ++i) {
      if (is(i, "<")) {
        i = behind_angle(i) - 1;
        continue;
      }
      bool access = is(i, "public") || is(i, "private") || is(i, "protected") || is(i, "virtual") ||
                    is(i, "final");
      if (is_word(t_[i]) && !access && !is(i + 1, "::")) c.bases.emplace_back(t_[i]);
    }
    size_t close = behind(end, "{", "}");
    read_body(c, end + 1, close - 1);
    classes.push_back(std::move(c));
    i_ = close;
  }

  void read_body(Class& c, size_t i, size_t end) {
    while (i < end) {
      if ((is(i, "public") || is(i, "private") || is(i, "protected")) && is(i + 1, ":")) {
        i += 2;
        continue;
      }
      i = read_member(c, i, end);
    }
  }

  // One member from `i`: its name if it is a field. Returns the index behind it.
  size_t read_member(Class& c, size_t i, size_t end) {
    static const std::set<std::string_view> kOther = {
        "using", "typedef", "static", "friend", "template",      "operator",
        "enum",  "class",   "struct", "union",  "static_assert", "constexpr"};
    i = behind_attributes(i);
    size_t begin = i;
    bool other = kOther.count(at(i)) != 0, function = false, value = false;
    std::vector<std::string> names;
    Token last;
    int words = 0;
    auto finish = [&] {
      if (words > 1 && !last.empty()) names.emplace_back(last);
    };
    while (i < end && !is(i, ";")) {
      if (size_t next = behind_attributes(i); next != i) {
        i = next;
        continue;
      }
      if (is(i, "<") && !value) {
        i = behind_angle(i);
        ++words;
        continue;
      }
      if (is(i, "(")) {
        if (!value) function = true;
        if (i == begin + 1 && at(begin) == c.name) c.constructor = true;
        i = behind(i, "(", ")");
        continue;
      }
      if (is(i, "[")) {
        i = behind(i, "[", "]");
        continue;
      }
      if (is(i, "{")) {
        i = behind(i, "{", "}");
        if (function) return is(i, ";") ? i + 1 : i;
        continue;
      }
      if (is(i, ",")) {
        finish();
        value = false;
      } else if (is(i, "=") || (is(i, ":") && !function)) {
        value = true;
      } else if (is_word(at(i)) && !value) {
        last = at(i);
        ++words;
      }
      ++i;
    }
    finish();
    if (!other && !function)
      for (std::string& name : names)
        if (std::find(c.fields.begin(), c.fields.end(), name) == c.fields.end())
          c.fields.push_back(std::move(name));
    return i + 1;
  }

  const std::vector<Token>& t_;
  size_t i_ = 0;
  std::vector<std::vector<std::string>> blocks_;
};

std::string with_scope(const std::vector<std::string>& scope, const std::string& written) {
  std::string name;
  for (const std::string& s : scope)
    if (!s.empty()) name += s + "::";
  return name + written;
}

// Own fields after those of the bases.
class Vertices {
 public:
  explicit Vertices(const std::vector<Class>& classes) {
    for (const Class& c : classes)
      if (c.specialised.empty()) by_name_.emplace(c.name, &c);
  }

  bool is_vertex(const Class& c, int depth = 0) const {
    for (const std::string& base : c.bases) {
      if (base == "Vertex" || base == "MultiVertex" || base == "SupervisorVertex") return true;
      const Class* b = find(base);
      if (b != nullptr && b != &c && depth < 16 && is_vertex(*b, depth + 1)) return true;
    }
    return false;
  }

  void fields(const Class& c, std::vector<std::string>& out, int depth = 0) const {
    for (const std::string& base : c.bases) {
      const Class* b = find(base);
      if (b != nullptr && b != &c && depth < 16) fields(*b, out, depth + 1);
    }
    for (const std::string& f : c.fields)
      if (std::find(out.begin(), out.end(), f) == out.end()) out.push_back(f);
  }

  const Class* find(const std::string& name) const {
    auto it = by_name_.find(name);
    return it == by_name_.end() ? nullptr : it->second;
  }

 private:
  std::map<std::string, const Class*> by_name_;
};

}  // namespace

Found scan(std::string_view text) {
  Found found;
  std::vector<Token> tokens = tokenize(text, &found.files);
  for (Token t : tokens)
    if (t.find("rand") != Token::npos) found.random = true;
  Scanner scanner(tokens);
  scanner.run();

  Vertices vertices(scanner.classes);
  std::set<std::string> seen;
  auto add = [&](const Class& c, const std::vector<std::string>& scope,
                 const std::string& written) {
    FoundVertex v{scope, written, with_scope(scope, written), {}, c.constructor};
    vertices.fields(c, v.fields);
    if (seen.insert(canonical_name(v.name)).second) found.vertices.push_back(std::move(v));
  };
  for (const Class& c : scanner.classes) {
    if (!vertices.is_vertex(c)) continue;
    if (!c.specialised.empty())
      add(c, c.scope, c.specialised);
    else if (!c.is_template)
      add(c, c.scope, c.name);
  }
  std::set<std::string> used;
  for (const Instance& i : scanner.instances) {
    const Class* c = vertices.find(i.of);
    if (c == nullptr || !vertices.is_vertex(*c)) continue;
    used.insert(i.of);
    add(*c, i.scope, i.written);
  }
  for (const Class& c : scanner.classes)
    if (c.is_template && c.specialised.empty() && vertices.is_vertex(c) && used.count(c.name) == 0)
      found.templates.push_back(c.name);
  return found;
}

namespace {

std::string canonical(std::string_view name, bool scopes) {
  static const std::map<std::string_view, std::string_view> kWords = {
      {"int8_t", "signed char"}, {"uint8_t", "unsigned char"},
      {"int16_t", "short"},      {"uint16_t", "unsigned short"},
      {"int32_t", "int"},        {"uint32_t", "unsigned"},
      {"int64_t", "long long"},  {"uint64_t", "unsigned long long"},
      {"_Float16", "half"}};
  static const std::set<std::string_view> kNothing = {"class", "struct", "typename", "enum",
                                                      "const"};
  std::vector<Token> tokens = tokenize(name), out;
  for (size_t i = 0; i < tokens.size(); ++i) {
    Token t = tokens[i];
    if (kNothing.count(t) != 0) continue;
    if (t == "int" && !out.empty() &&
        (out.back() == "unsigned" || out.back() == "short" || out.back() == "long"))
      continue;
    bool qualifies = i + 1 < tokens.size() && tokens[i + 1] == "::";
    if (t == "::" && (!scopes || out.empty() || !is_word(out.back()))) continue;
    if (is_word(t) && qualifies && (!scopes || t == "std" || t == "poplar")) {
      ++i;
      continue;
    }
    auto it = kWords.find(t);
    if (it != kWords.end()) t = it->second;
    if (!t.empty() && t.front() >= '0' && t.front() <= '9')
      while (t.size() > 1 && std::string_view("uUlL").find(t.back()) != std::string_view::npos)
        t.remove_suffix(1);
    out.push_back(t);
  }
  return join(out.data(), out.data() + out.size());
}

}  // namespace

std::string canonical_name(std::string_view name) {
  return canonical(name, true);
}
std::string bare_name(std::string_view name) {
  return canonical(name, false);
}

}  // namespace tessera::codelets
