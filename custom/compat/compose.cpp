// SPDX-License-Identifier: Apache-2.0
#include "custom/compat/compose.h"

#include <algorithm>

#include "tessera/compat/detail/vertices.h"

namespace tessera::compat {

namespace {

std::vector<int64_t> inverse(const std::vector<int64_t>& order) {
  std::vector<int64_t> out(order.size());
  for (size_t i = 0; i < order.size(); ++i) out[order[i]] = static_cast<int64_t>(i);
  return out;
}

}  // namespace

Composer::Composer(tessera_recorder& r) : Frame(r.variables.size()), r_(r) {
  std::vector<const Variable*> inputs;
  for (const Variable& v : r.variables)
    if (v.input >= 0) inputs.push_back(&v);
  std::sort(inputs.begin(), inputs.end(), [](auto* a, auto* b) { return a->input < b->input; });
  for (const Variable* v : inputs) values[v->id] = w.input(v->type, v->shape);
}

// Lists of values are an op of our own (constant.cpp), for the text has no literals of tensors.
Value Composer::constant(const Variable& v) {
  if (v.numbers.empty()) return w.full(0, 0, v.type, v.shape);
  if (v.numbers.size() == 1) return w.full(v.numbers[0], v.integers[0], v.type, v.shape);
  const bool real = is_real(v.type);
  std::string list;
  for (size_t i = 0; i < v.numbers.size(); ++i)
    list += (i ? ", " : "") + (real ? number_text(v.numbers[i]) : std::to_string(v.integers[i]));
  const Value flat =
      w.node("custom", "\"tessera\", \"Constant\", 1, [], [[\"values\", [" + list + "]]]",
             real ? FLOAT : LONGLONG, {static_cast<int64_t>(v.numbers.size())});
  return w.reshape(w.cast(flat, v.type), v.shape);
}

Value Composer::current(const Variable& v) {
  Value& x = values[v.id];
  if (x.there()) return x;
  // What is cheap to make is made where it is read.
  if (depth_ == 0 || (v.constant && v.numbers.size() <= 1)) return x = constant(v);
  return x = inputs[v.id] = w.input(v.type, v.shape);
}

void Composer::set(const Variable& v, const Value& x) {
  values[v.id] = w.cast(x, v.type);
  written[v.id] = true;
}

Value Composer::read(const View& v) {
  const auto& a = v.args;
  switch (v.how) {
    case TESSERA_VIEW_VARIABLE:
      return current(*v.variable);
    case TESSERA_VIEW_RESHAPE:
      return w.reshape(read(v.parent()), v.dims);
    case TESSERA_VIEW_PERMUTE:
      return w.permute(read(v.parent()), a);
    case TESSERA_VIEW_SLICE:
      return w.slice(read(v.parent()), a[0], a[1], a[2]);
    case TESSERA_VIEW_BROADCAST: {
      // [.., n, ..] repeated k times along the dim: [.., 1, n, ..] -> [.., k, n, ..] -> [.., k * n,
      // ..]
      const Shape& in = v.parent().dims;
      Shape one = in, many = in;
      if (in[a[0]] == 1) return w.expand(read(v.parent()), v.dims);
      one.insert(one.begin() + a[0], 1);
      many.insert(many.begin() + a[0], a[1]);
      return w.reshape(w.expand(w.reshape(read(v.parent()), one), many), v.dims);
    }
    case TESSERA_VIEW_REVERSE:
      return w.flip(read(v.parent()), a[0]);
    case TESSERA_VIEW_REINTERPRET:
      return w.bits(read(v.parent()), v.type);
    case TESSERA_VIEW_CONCAT: {
      std::vector<Value> parts;
      for (const View* p : v.parents) parts.push_back(read(*p));
      return w.cat(parts, a[0]);
    }
  }
  fail("unknown view");
}

void Composer::write(const View& v, const Value& x) {
  const auto& a = v.args;
  switch (v.how) {
    case TESSERA_VIEW_VARIABLE:
      if (v.variable->constant) fail("a write to a constant");
      return set(*v.variable, x);
    case TESSERA_VIEW_RESHAPE:
      return write(v.parent(), w.reshape(x, v.parent().dims));
    case TESSERA_VIEW_PERMUTE:
      return write(v.parent(), w.permute(x, inverse(a)));
    case TESSERA_VIEW_SLICE:
      return write(v.parent(), w.put(read(v.parent()), x, a[0], a[1]));
    case TESSERA_VIEW_REVERSE:
      return write(v.parent(), w.flip(x, a[0]));
    case TESSERA_VIEW_REINTERPRET:
      return write(v.parent(), w.bits(x, v.parent().type));
    case TESSERA_VIEW_CONCAT: {
      int64_t begin = 0;
      for (const View* p : v.parents) {
        const int64_t end = begin + p->dims[a[0]];
        write(*p, w.slice(x, a[0], begin, end));
        begin = end;
      }
      return;
    }
    case TESSERA_VIEW_BROADCAST:
      fail("a write to a broadcast tensor, in which elements appear more than once");
  }
}

void Composer::run(const tessera_program& p) {
  switch (p.kind) {
    case TESSERA_SEQUENCE:
      for (int64_t i = 0; i < p.child_count; ++i) run(*p.children[i]);
      return;
    case TESSERA_STATEMENT:
      return run(statement_of(p.statement));
    case TESSERA_REPEAT:
      return repeat(p);
    case TESSERA_IF:
      return branch(p);
    case TESSERA_EXECUTE: {
      const tessera_statement* s = tessera_execute(p.vertices, p.count);
      if (s != nullptr) return run(statement_of(s));
      if (tessera_vertices_error() != nullptr) fail(tessera_vertices_error());
      return;
    }
    case TESSERA_REPEAT_WHILE:
      return repeat_while(p);
  }
  fail("unknown program");
}

void Composer::run(const Statement& s) {
  switch (s.kind) {
    case TESSERA_DO_MAP:
      return map(s);
    case TESSERA_DO_COPY:
      return write(*s.out[0], w.reshape(read(*s.in[0]), s.out[0]->dims));
    case TESSERA_DO_FILL: {
      const View& v = *s.out[0];
      return write(v, w.full(s.reals.at(0), s.ints.at(0), v.type, v.dims));
    }
    case TESSERA_DO_CAST:
      return write(*s.out[0], w.reshape(w.cast(read(*s.in[0]), s.out[0]->type), s.out[0]->dims));
    case TESSERA_DO_REDUCE:
      return reduce(s);
    case TESSERA_DO_DYNAMIC_SLICE:
      return dynamic_slice(s);
    case TESSERA_DO_DYNAMIC_UPDATE:
      return dynamic_update(s);
    case TESSERA_DO_MATMUL:
    case TESSERA_DO_MATMUL_ADD:
      return matmul(s);
    case TESSERA_DO_ARG_EXTREME:
      return arg_extreme(s);
    case TESSERA_DO_TOP_K:
      return top_k(s);
    case TESSERA_DO_SORT:
      return sort(s);
    case TESSERA_DO_MULTI_SLICE:
      return multi_slice(s);
    case TESSERA_DO_MULTI_UPDATE:
      return multi_update(s);
    case TESSERA_DO_RANDOM:
      return random(s);
    case TESSERA_DO_EXCHANGE:
      return exchange(s);
    case TESSERA_DO_CUSTOM:
      return custom(s);
  }
}

}  // namespace tessera::compat

using namespace tessera::compat;

const char* tessera_rec_compose(tessera_recorder* r, const tessera_program* p,
                                const tessera_view* const* outputs, int64_t output_count) {
  return guarded<>(static_cast<const char*>(nullptr), [&]() -> const char* {
    Composer c(*r);
    c.run(*p);
    std::vector<Value> results;
    for (int64_t i = 0; i < output_count; ++i) results.push_back(c.read(view_of(outputs[i])));
    r->text = c.w.finish(results);
    return r->text.c_str();
  });
}
