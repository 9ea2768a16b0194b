// SPDX-License-Identifier: Apache-2.0
// Reads the signatures of ops.def once and holds calls against them. Pointwise rows need none: they
// take as many tensors or numbers as they have operands.
#include "ir/signature.h"

#include <array>
#include <cstdlib>

namespace tessera {
namespace {

// A set of kinds of arguments, one bit each.
constexpr std::string_view kLetters = "TNFIMiwjrbsd";
constexpr std::string_view kTensors = "TNFIM";
constexpr std::string_view kNames[] = {
    "a tensor",
    "a tensor of numbers",
    "a tensor of floats",
    "a tensor of integers",
    "a mask",
    "an integer",
    "an integer",
    "an integer",
    "a number",
    "a bool",
    "a string",
    "a dtype",
};
static_assert(std::size(kNames) == kLetters.size());

struct Param {
  uint32_t one = 0, list = 0;  // bits of kLetters: as they are, and as items of a list
  bool none = false;
  bool same = false;  // as the first tensor
};

struct Signature {
  std::vector<Param> params;
  size_t required = 0;
  bool anything = false;
};

Param read_param(std::string_view word) {
  Param p;
  bool list = false;
  for (char c : word) {
    const size_t bit = kLetters.find(c);
    if (c == 'l') {
      list = true;
    } else if (c == '/') {
      list = false;
    } else if (c == '?') {
      p.none = true;
    } else if (c == '=') {
      p.same = true;
    } else {
      invariant(bit != std::string_view::npos, "a signature says {}", word);
      (list ? p.list : p.one) |= 1u << bit;
    }
  }
  return p;
}

Signature read_signature(std::string_view text) {
  Signature s;
  bool optional = false;
  while (!text.empty()) {
    const size_t end = std::min(text.find(' '), text.size());
    const std::string_view word = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (word == "...") {
      s.anything = true;
    } else if (word == "|") {
      optional = true;
    } else {
      s.params.push_back(read_param(word));
      if (!optional) s.required = s.params.size();
    }
  }
  return s;
}

const Signature& signature(Op op) {
  static const auto& table = *[] {
    auto* t = new std::array<Signature, static_cast<size_t>(Op::kCount)>();
    for (size_t i = 0; i < t->size(); ++i)
      (*t)[i] = read_signature(op_signature(static_cast<Op>(i)));
    return t;
  }();
  return table[static_cast<size_t>(op)];
}

bool is_a(char letter, const Graph& g, const Node& n, const Arg& a) {
  if (kTensors.find(letter) != std::string_view::npos) {
    if (!a.is_operand()) return false;
    const DType t = g.type(n.operands[a.i]).dtype;
    return letter == 'T'   ? true
           : letter == 'N' ? class_of(t) != DTypeClass::kOpaque
           : letter == 'F' ? is_float(t)
           : letter == 'I' ? is_int(t)
                           : t == DType::Bool;
  }
  const bool whole = a.kind == Arg::Kind::kInt || a.kind == Arg::Kind::kBool;
  auto below = [&](int64_t bound) { return whole && a.i < bound && a.i > -bound; };
  switch (letter) {
    case 'i':
      return below(kMaxTensorBytes);
    case 'w':
      return below(int64_t{1} << 31);
    case 'j':
    case 'b':
      return whole;
    case 'r':
      return a.is_number();
    case 's':
      return a.kind == Arg::Kind::kString;
    default:
      return a.kind == Arg::Kind::kDType;
  }
}

bool fits(uint32_t kinds, const Graph& g, const Node& n, const Arg& a) {
  for (size_t bit = 0; bit < kLetters.size(); ++bit)
    if ((kinds >> bit & 1) && is_a(kLetters[bit], g, n, a)) return true;
  return false;
}

bool fits(const Param& p, const Graph& g, const Node& n, const Arg& a) {
  if (a.is_none()) return p.none;
  if (a.kind != Arg::Kind::kList)
    // A lone integer stands for a list of one.
    return fits(p.one, g, n, a) ||
           (!a.is_operand() && a.kind != Arg::Kind::kBool && fits(p.list, g, n, a));
  if (p.list == 0) return false;
  const uint32_t holes = 1u << kLetters.find('I');
  for (const Arg& x : a.list)
    if (!(x.is_none() && p.list == holes) && !fits(p.list, g, n, x)) return false;
  return true;
}

std::string describe(const Param& p) {
  std::string text;
  auto add = [&](uint32_t kinds, const char* prefix) {
    for (size_t bit = 0; bit < kLetters.size(); ++bit)
      if (kinds >> bit & 1)
        text += fmt::format("{}{}{}", text.empty() ? "" : " or ", prefix, kNames[bit]);
  };
  add(p.one, "");
  add(p.list, "a list, each item ");
  return p.none ? text + " or none" : text;
}

// The first operand that a call names, which the others are compared with.
const Arg* first_tensor(const Node& n) {
  for (const Arg& a : n.args.list)
    if (a.is_operand()) return &a;
  return nullptr;
}

void check_pointwise(const Graph& g, const Node& n) {
  const auto arity = static_cast<size_t>(pointwise_arity(n.op));
  // iota(dim, start, step); clone(x, "checkpoint") keeps a value for another task.
  const size_t most = n.op == Op::Iota ? 3 : n.op == Op::Copy ? 2 : arity;
  const size_t count = n.args.size();
  user_check(count >= arity && count <= most, "{} takes {} arguments, not {}", op_text(n.op), arity,
             count);
  for (size_t i = 0; i < count; ++i) {
    const Arg& a = n.args.at(i);
    const bool keeps = n.op == Op::Copy && i == 1 && a.kind == Arg::Kind::kString;
    user_check(keeps || a.is_number() || (a.is_operand() && is_a('N', g, n, a)),
               "argument {} of {} is neither a number nor a tensor of numbers", i, op_text(n.op));
  }
  // Numbers alone are made by `full` and `iota`; everything else follows a tensor.
  const bool makes = n.op == Op::Fill || n.op == Op::Iota;
  user_check(n.operands.empty() == makes, "{} takes {} tensor", op_text(n.op),
             makes ? "no" : "at least one");
  user_check(n.op != Op::Copy || (n.args.at(0).is_operand() && n.operands.size() == 1),
             "clone takes one tensor");
  if (n.op != Op::Copy) return;
  const TensorType &from = g.type(n.operands[0]), &to = g.type(n.results[0]);
  user_check(from.dtype == to.dtype && from.shape == to.shape, "clone of {} is no {}",
             to_string(from), to_string(to));
}

}  // namespace

void check_signature(const Graph& g, const Node& n) {
  if (is_pointwise(n.op)) return check_pointwise(g, n);
  const Signature& s = signature(n.op);
  if (s.anything) return;
  const size_t count = n.args.size();
  // The operands of an epilogue follow those of its product.
  user_check(count >= s.required && (count <= s.params.size() || n.body),
             "{} takes {}{} arguments, not {}", op_text(n.op),
             s.required < s.params.size() ? fmt::format("{} to ", s.required) : "", s.params.size(),
             count);
  const Arg* first = first_tensor(n);
  for (size_t i = 0; i < count; ++i) {
    const Arg& a = n.args.at(i);
    const Param p = i < s.params.size() ? s.params[i] : read_param("N");
    user_check(fits(p, g, n, a), "argument {} of {} is not {}", i, op_text(n.op), describe(p));
    user_check(!p.same || !a.is_operand() ||
                   g.type(n.operands[a.i]).dtype == g.type(n.operands[first->i]).dtype,
               "argument {} of {} has another type than the first tensor", i, op_text(n.op));
  }
}

}  // namespace tessera
