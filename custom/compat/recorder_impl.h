// SPDX-License-Identifier: Apache-2.0
// What a recorder holds: variables, views of them, statements. Views and statements never change,
// so a program may name them in any order and as often as it likes; variables get their values one
// by one while the program is written out (compose.cpp).
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/compat/detail/expr_ops.h"
#include "tessera/compat/detail/recorder.h"

namespace tessera::compat {

using Shape = std::vector<int64_t>;

enum Type : int32_t {
#define ROW(name, text, ir, bytes) name,
  TESSERA_POPLAR_TYPES(ROW)
#undef ROW
      kTypes
};

struct TypeRow {
  const char* name;
  const char* ir;
  int bytes;
};
const TypeRow& row_of(int32_t type);
bool is_real(int32_t type);

std::string text_of(const Shape& shape);
int64_t product(const Shape& shape);
[[noreturn]] void fail(const std::string& text);

struct Interval {
  int64_t begin, end, tile;
};

struct View;

struct Variable {
  int id = 0;
  const View* whole = nullptr;
  int32_t type = FLOAT;
  Shape shape;
  int input = -1;  // number of the op's input
  std::string name;
  // Values before the program runs: none, one for all elements, or one per element.
  std::vector<double> numbers;
  std::vector<int64_t> integers;
  bool constant = false;
  // Disjoint and sorted by place; empty: nothing was said.
  std::vector<Interval> mapping;
};

struct View : tessera_view {
  tessera_view_kind how = TESSERA_VIEW_VARIABLE;
  Variable* variable = nullptr;
  std::vector<const View*> parents;
  std::vector<int64_t> args;
  Shape dims;  // what `shape` points to

  const View& parent() const { return *parents[0]; }
};

struct Statement {
  tessera_statement_kind kind;
  std::vector<const View*> in, out;
  std::vector<int64_t> ints;
  std::vector<double> reals;
  std::vector<tessera_expr> expr;
  std::string text, attributes;
};

// Part of a variable that lies in one piece.
struct Region {
  const Variable* variable;
  int64_t begin, end;
};
std::vector<Region> regions_of(const View& v);

const View* new_variable(tessera_recorder& r, int32_t type, Shape shape, std::string name = {});
const View* make_view(tessera_view_kind how, std::vector<const View*> parents,
                      std::vector<int64_t> args);
// Fills in results that are not given and checks what is.
void complete(tessera_recorder& r, Statement& s);

// Types and shape of the result of an expression (expr.cpp).
struct ExprType {
  int32_t type;
  Shape shape;
};
ExprType type_of_map(const std::vector<tessera_expr>& e, const std::vector<const View*>& in,
                     const View* out);
Shape broadcast(const Shape& a, const Shape& b, std::string_view what);

inline const View& view_of(const tessera_view* v) {
  return *static_cast<const View*>(v);
}

// Runs f; what it throws becomes the error of this thread and `failed` the result.
void set_error(const char* text);
template <typename F, typename R>
R guarded(R failed, F&& f) {
  try {
    return f();
  } catch (const std::exception& e) {
    set_error(e.what());
    return failed;
  }
}

}  // namespace tessera::compat

struct tessera_recorder {
  std::deque<tessera::compat::Variable> variables;
  std::deque<tessera::compat::View> views;
  std::deque<tessera::compat::Statement> statements;
  std::string text;
};

// Statements are handed out as opaque pointers.
inline const tessera::compat::Statement& statement_of(const tessera_statement* s) {
  return *reinterpret_cast<const tessera::compat::Statement*>(s);
}
