// SPDX-License-Identifier: Apache-2.0
// Types of element-wise expressions. Tensors that meet must be of one type; a constant takes the
// type of what it meets. An expression that is constants all through (both values of a Select)
// takes the type of the result, or of the tensors it is for: popops is stricter, and its users
// write float for half.
#include "custom/compat/expr.h"

namespace tessera::compat {

namespace {

const char* name_of(const tessera_expr& e) {
  static const char* const unary[] = {
#define ROW(name, cls, fn) #cls,
      TESSERA_UNARY_OPS(ROW)
#undef ROW
  };
  static const char* const binary[] = {
#define ROW(name, cls, fn) #cls,
      TESSERA_BINARY_OPS(ROW)
#undef ROW
  };
  static const char* const ternary[] = {"Clamp", "Select"};
  if (e.kind == TESSERA_EXPR_UNARY) return unary[e.op];
  if (e.kind == TESSERA_EXPR_BINARY) return binary[e.op];
  if (e.kind == TESSERA_EXPR_TERNARY) return ternary[e.op];
  return e.kind == TESSERA_EXPR_CAST ? "Cast" : "Const";
}

bool gives_bool(const tessera_expr& e) {
  if (e.kind == TESSERA_EXPR_UNARY)
    return e.op == U_IS_FINITE || e.op == U_IS_INF || e.op == U_IS_NAN || e.op == U_LOGICAL_NOT;
  if (e.kind != TESSERA_EXPR_BINARY) return false;
  switch (e.op) {
    case B_EQUAL:
    case B_GREATER_THAN_EQUAL:
    case B_GREATER_THAN:
    case B_LESS_THAN_EQUAL:
    case B_LOGICAL_AND:
    case B_LOGICAL_OR:
    case B_LESS_THAN:
    case B_NOT_EQUAL:
      return true;
    default:
      return false;
  }
}

struct Typer {
  std::vector<ExprNode> nodes;

  void retype(int i, int32_t type) {
    ExprNode& n = nodes[i];
    if (!n.weak) return;
    n.type = type;
    n.weak = false;
    const bool select = n.e.kind == TESSERA_EXPR_TERNARY && n.e.op == T_SELECT;
    for (size_t k = 0; k < n.operands.size(); ++k)
      if (!(select && k == 2)) retype(n.operands[k], type);
  }

  // Gives the operands one type, and says whether it may still change.
  void unite(const std::vector<int>& operands, ExprNode& n) {
    int strong = -1, weak = operands[0];
    for (int i : operands) {
      if (nodes[i].weak) {
        if (is_real(nodes[i].type)) weak = i;
      } else if (strong < 0) {
        strong = i;
      } else if (nodes[strong].type != nodes[i].type) {
        fail(std::string(name_of(n.e)) + " of tensors of " + row_of(nodes[strong].type).name +
             " and " + row_of(nodes[i].type).name + ": popops wants one type, use Cast");
      }
    }
    n.type = nodes[strong < 0 ? weak : strong].type;
    n.weak = strong < 0;
    for (int i : operands) {
      if (!nodes[i].weak) continue;
      if (n.weak)
        nodes[i].type = n.type;
      else
        retype(i, n.type);
    }
  }
};

int arity(const tessera_expr& e) {
  switch (e.kind) {
    case TESSERA_EXPR_CAST:
    case TESSERA_EXPR_UNARY:
      return 1;
    case TESSERA_EXPR_BINARY:
      return 2;
    case TESSERA_EXPR_TERNARY:
      return 3;
    default:
      return 0;
  }
}

}  // namespace

Shape broadcast(const Shape& a, const Shape& b, std::string_view what) {
  const Shape& longer = a.size() >= b.size() ? a : b;
  const Shape& shorter = a.size() >= b.size() ? b : a;
  Shape out = longer;
  const size_t skip = longer.size() - shorter.size();
  for (size_t i = 0; i < shorter.size(); ++i) {
    int64_t& d = out[skip + i];
    if (d == 1)
      d = shorter[i];
    else if (shorter[i] != 1 && shorter[i] != d)
      fail(std::string(what) + ": shapes " + text_of(a) + " and " + text_of(b) + " do not fit");
  }
  return out;
}

std::vector<ExprNode> typed(const std::vector<tessera_expr>& e, const std::vector<const View*>& in,
                            const View* out) {
  Typer t;
  std::vector<int> stack;
  for (const tessera_expr& x : e) {
    ExprNode n{x, {}, x.type, false};
    const int wanted = arity(x);
    if (static_cast<int>(stack.size()) < wanted) fail("an expression that lacks operands");
    n.operands.assign(stack.end() - wanted, stack.end());
    stack.resize(stack.size() - wanted);
    if (x.kind == TESSERA_EXPR_CONST) {
      n.weak = !x.strict;
    } else if (x.kind == TESSERA_EXPR_PLACEHOLDER) {
      if (x.op < 0 || x.op >= static_cast<int>(in.size()))
        fail("the expression uses _" + std::to_string(x.op + 1) + " but has " +
             std::to_string(in.size()) + " tensors");
      n.type = in[x.op]->type;
    } else if (x.kind == TESSERA_EXPR_TERNARY && x.op == T_SELECT) {
      t.retype(n.operands[2], BOOL);
      if (t.nodes[n.operands[2]].type != BOOL)
        fail(std::string("Select: the condition is ") + row_of(t.nodes[n.operands[2]].type).name +
             ", not bool");
      t.unite({n.operands[0], n.operands[1]}, n);
    } else if (x.kind == TESSERA_EXPR_CAST) {
      t.retype(n.operands[0], t.nodes[n.operands[0]].type);
    } else {
      t.unite(n.operands, n);
    }
    if (gives_bool(x)) {
      for (int i : n.operands) t.retype(i, n.type);
      n.type = BOOL;
      n.weak = false;
    }
    stack.push_back(static_cast<int>(t.nodes.size()));
    t.nodes.push_back(std::move(n));
  }
  if (stack.size() != 1) fail("no expression");
  const int root = stack[0];
  if (out) {
    t.retype(root, out->type);
  } else if (is_real(t.nodes[root].type)) {
    for (const View* v : in)
      if (is_real(v->type)) {
        t.retype(root, v->type);
        break;
      }
  }
  t.retype(root, t.nodes[root].type);
  if (out && t.nodes[root].type != out->type)
    fail(std::string(name_of(t.nodes[root].e)) + " gives " + row_of(t.nodes[root].type).name +
         ", the tensor for it is of " + row_of(out->type).name);
  return std::move(t.nodes);
}

ExprType type_of_map(const std::vector<tessera_expr>& e, const std::vector<const View*>& in,
                     const View* out) {
  const std::vector<ExprNode> nodes = typed(e, in, out);
  // popops gives the result the shape that all tensors broadcast to, used or not.
  Shape shape;
  for (const View* v : in) shape = broadcast(shape, v->dims, "map");
  return {nodes.back().type, shape};
}

}  // namespace tessera::compat
