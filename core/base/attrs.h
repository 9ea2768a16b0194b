// SPDX-License-Identifier: Apache-2.0
// The arguments of one op call in ATen schema order: operands (indices into the node's operand
// list) and literals, nested lists included. Graph nodes and program steps share this form.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/error.h"

namespace tessera {

struct Arg {
  enum class Kind : uint8_t { kNone, kBool, kInt, kFloat, kString, kDType, kOperand, kList };
  Kind kind = Kind::kNone;
  int64_t i = 0;  // bool, int, dtype, operand index
  double f = 0;
  std::string s;
  std::vector<Arg> list;

  static Arg none() { return {}; }
  static Arg boolean(bool v) { return {Kind::kBool, v, 0, {}, {}}; }
  static Arg integer(int64_t v) { return {Kind::kInt, v, 0, {}, {}}; }
  static Arg real(double v) { return {Kind::kFloat, 0, v, {}, {}}; }
  static Arg string(std::string v) { return {Kind::kString, 0, 0, std::move(v), {}}; }
  static Arg dtype(DType v) { return {Kind::kDType, static_cast<int64_t>(v), 0, {}, {}}; }
  static Arg operand(int64_t index) { return {Kind::kOperand, index, 0, {}, {}}; }
  static Arg ints(const std::vector<int64_t>& v) {
    Arg a{Kind::kList, 0, 0, {}, {}};
    for (int64_t x : v) a.list.push_back(integer(x));
    return a;
  }
  static Arg of(std::vector<Arg> v) { return {Kind::kList, 0, 0, {}, std::move(v)}; }

  bool is_none() const { return kind == Kind::kNone; }
  bool is_operand() const { return kind == Kind::kOperand; }
  bool is_number() const {
    return kind == Kind::kBool || kind == Kind::kInt || kind == Kind::kFloat;
  }
  double number() const { return kind == Kind::kFloat ? f : static_cast<double>(i); }
  bool operator==(const Arg&) const = default;
};

// Typed reading with a clear error; `what` is the op's text name.
class Args {
 public:
  std::vector<Arg> list;

  size_t size() const { return list.size(); }
  const Arg& at(size_t i) const {
    invariant(i < list.size(), "argument {} asked of a call with {}", i, list.size());
    return list[i];
  }
  bool has(size_t i) const { return i < list.size() && !list[i].is_none(); }
  // Index into the operand list.
  int operand(size_t i) const {
    invariant(at(i).is_operand(), "argument {} is not a tensor", i);
    return static_cast<int>(at(i).i);
  }
  // The same, -1 if the argument is none or left out.
  int operand_or_none(size_t i) const { return has(i) ? operand(i) : -1; }
  int64_t integer(size_t i) const {
    invariant(at(i).is_number(), "argument {} is not a number", i);
    return at(i).kind == Arg::Kind::kFloat ? static_cast<int64_t>(at(i).f) : at(i).i;
  }
  int64_t integer_or(size_t i, int64_t otherwise) const { return has(i) ? integer(i) : otherwise; }
  double real(size_t i) const {
    invariant(at(i).is_number(), "argument {} is not a number", i);
    return at(i).number();
  }
  double real_or(size_t i, double otherwise) const { return has(i) ? real(i) : otherwise; }
  bool boolean(size_t i) const { return integer(i) != 0; }
  bool boolean_or(size_t i, bool otherwise) const { return has(i) ? boolean(i) : otherwise; }
  std::string text(size_t i) const {
    invariant(at(i).kind == Arg::Kind::kString, "argument {} is not a string", i);
    return at(i).s;
  }
  // A list of integers; a lone integer counts as a list of one.
  std::vector<int64_t> ints(size_t i) const {
    if (!has(i)) return {};
    if (at(i).is_number()) return {integer(i)};
    std::vector<int64_t> out;
    for (const Arg& a : at(i).list)
      out.push_back(a.kind == Arg::Kind::kFloat ? static_cast<int64_t>(a.f) : a.i);
    return out;
  }
  bool operator==(const Args&) const = default;
};

}  // namespace tessera
