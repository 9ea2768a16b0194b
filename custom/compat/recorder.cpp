// SPDX-License-Identifier: Apache-2.0
// Variables and views, and the C functions of the recorder.
#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <mutex>

#include "custom/compat/recorder_impl.h"
#include "custom/host.h"

namespace tessera::compat {

namespace {

thread_local std::string last_error;

std::vector<int64_t> ints_of(const int64_t* values, int64_t count) {
  return {values, values + count};
}

std::vector<const View*> views_of(const tessera_view* const* values, int64_t count) {
  std::vector<const View*> out;
  for (int64_t i = 0; i < count; ++i) out.push_back(&view_of(values[i]));
  return out;
}

void set_values(Variable& v, const double* numbers, const int64_t* integers, int64_t count) {
  if (count != 1 && count != product(v.shape))
    fail(std::to_string(count) + " values for a tensor of shape " + text_of(v.shape));
  if (numbers) v.numbers.assign(numbers, numbers + count);
  if (integers) v.integers.assign(integers, integers + count);
}

}  // namespace

void set_error(const char* text) {
  last_error = text;
}

void fail(const std::string& text) {
  throw std::runtime_error(text);
}

const TypeRow& row_of(int32_t type) {
  static const TypeRow rows[] = {
#define ROW(name, text, ir, bytes) {text, ir, bytes},
      TESSERA_POPLAR_TYPES(ROW)
#undef ROW
  };
  if (type < 0 || type >= kTypes) fail("unknown element type");
  return rows[type];
}

bool is_real(int32_t type) {
  return type == FLOAT || type == HALF || type == BFLOAT16;
}

std::string text_of(const Shape& shape) {
  std::string s = "{";
  for (size_t i = 0; i < shape.size(); ++i) {
    if (i) s += ',';
    s += std::to_string(shape[i]);
  }
  return s + "}";
}

int64_t product(const Shape& shape) {
  int64_t n = 1;
  for (int64_t d : shape)
    if (__builtin_mul_overflow(n, d, &n))
      fail("a tensor of shape " + text_of(shape) + " is too large");
  return n;
}

namespace {

View* add_view(tessera_recorder& r, int32_t type, Shape shape) {
  row_of(type);
  for (int64_t d : shape)
    if (d < 0) fail("negative size in shape " + text_of(shape));
  View& v = r.views.emplace_back();
  v.dims = std::move(shape);
  v.recorder = &r;
  v.type = type;
  v.rank = static_cast<int32_t>(v.dims.size());
  v.shape = v.dims.data();
  v.elements = product(v.dims);
  return &v;
}

void check_dim(const View& v, int64_t dim, const char* what) {
  if (dim < 0 || dim >= v.rank)
    fail(std::string(what) + ": dimension " + std::to_string(dim) + " of a tensor of shape " +
         text_of(v.dims));
}

Shape permuted(const View& p, const std::vector<int64_t>& order) {
  std::vector<bool> seen(p.rank, false);
  Shape out;
  for (int64_t d : order) {
    if (d < 0 || d >= p.rank || seen[d])
      fail("dimShuffle: " + text_of(order) + " is no permutation");
    seen[d] = true;
    out.push_back(p.dims[d]);
  }
  if (out.size() != p.dims.size())
    fail("dimShuffle: " + text_of(order) + " for a tensor of shape " + text_of(p.dims));
  return out;
}

Shape joined(const std::vector<const View*>& parts, int64_t dim) {
  Shape out = parts[0]->dims;
  check_dim(*parts[0], dim, "concat");
  for (size_t i = 1; i < parts.size(); ++i) {
    const View& p = *parts[i];
    if (p.type != parts[0]->type)
      fail(std::string("concat: tensors of ") + row_of(parts[0]->type).name + " and " +
           row_of(p.type).name);
    bool fits = p.dims.size() == out.size();
    for (size_t d = 0; fits && d < out.size(); ++d)
      fits = static_cast<int64_t>(d) == dim || p.dims[d] == out[d];
    if (!fits)
      fail("concat: shapes " + text_of(parts[0]->dims) + " and " + text_of(p.dims) +
           " along dimension " + std::to_string(dim));
    out[dim] += p.dims[dim];
  }
  return out;
}

Shape viewed_shape(tessera_view_kind how, const std::vector<const View*>& parents,
                   const std::vector<int64_t>& a) {
  const View& p = *parents[0];
  Shape s = p.dims;
  switch (how) {
    case TESSERA_VIEW_RESHAPE:
      if (product(a) != p.elements)
        fail("reshape: " + text_of(p.dims) + " to " + text_of(a) +
             " changes the number of elements");
      return a;
    case TESSERA_VIEW_PERMUTE:
      return permuted(p, a);
    case TESSERA_VIEW_SLICE:
      check_dim(p, a[0], "slice");
      if (a[1] < 0 || a[1] > a[2] || a[2] > s[a[0]])
        fail("slice: [" + std::to_string(a[1]) + "," + std::to_string(a[2]) + ") of dimension " +
             std::to_string(a[0]) + " of a tensor of shape " + text_of(s));
      s[a[0]] = a[2] - a[1];
      return s;
    case TESSERA_VIEW_BROADCAST:
      check_dim(p, a[0], "broadcast");
      s[a[0]] *= a[1];
      return s;
    case TESSERA_VIEW_REVERSE:
      check_dim(p, a[0], "reverse");
      return s;
    case TESSERA_VIEW_CONCAT:
      return joined(parents, a[0]);
    default:
      return s;
  }
}

}  // namespace

const View* new_variable(tessera_recorder& r, int32_t type, Shape shape, std::string name) {
  View* v = add_view(r, type, std::move(shape));
  Variable& var = r.variables.emplace_back();
  var.id = static_cast<int>(r.variables.size() - 1);
  var.type = type;
  var.shape = v->dims;
  var.name = std::move(name);
  v->variable = &var;
  var.whole = v;
  return v;
}

const View* make_view(tessera_view_kind how, std::vector<const View*> parents,
                      std::vector<int64_t> args) {
  if (parents.empty()) fail("concat of no tensors");
  for (const View* p : parents)
    if (p->recorder != parents[0]->recorder) fail("tensors of two graphs");
  Shape shape = viewed_shape(how, parents, args);
  const View& p = *parents[0];
  int32_t type = p.type;
  if (how == TESSERA_VIEW_REINTERPRET) {
    type = static_cast<int32_t>(args[0]);
    if (row_of(type).bytes != row_of(p.type).bytes)
      fail(std::string("reinterpret: ") + row_of(p.type).name + " and " + row_of(type).name +
           " differ in size");
  }
  const bool same = shape == p.dims && type == p.type && parents.size() == 1;
  if (same && how != TESSERA_VIEW_PERMUTE && how != TESSERA_VIEW_REVERSE) return &p;
  View* v = add_view(*p.recorder, type, std::move(shape));
  v->how = how;
  v->parents = std::move(parents);
  v->args = std::move(args);
  return v;
}

}  // namespace tessera::compat

using namespace tessera::compat;

const char* tessera_rec_error(void) {
  return last_error.c_str();
}

tessera_recorder* tessera_rec_new(void) {
  return new tessera_recorder;
}

void tessera_rec_delete(tessera_recorder* r) {
  delete r;
}

const tessera_view* tessera_rec_variable(tessera_recorder* r, int32_t type, int32_t rank,
                                         const int64_t* shape, int32_t input, const char* name) {
  return guarded<>(static_cast<const tessera_view*>(nullptr), [&]() -> const tessera_view* {
    const View* v = new_variable(*r, type, ints_of(shape, rank), name);
    v->variable->input = input;
    return v;
  });
}

const tessera_view* tessera_rec_constant(tessera_recorder* r, int32_t type, int32_t rank,
                                         const int64_t* shape, const double* numbers,
                                         const int64_t* integers, int64_t count) {
  return guarded<>(static_cast<const tessera_view*>(nullptr), [&]() -> const tessera_view* {
    const View* v = new_variable(*r, type, ints_of(shape, rank));
    set_values(*v->variable, numbers, integers, count);
    v->variable->constant = true;
    return v;
  });
}

int tessera_rec_set_initial(const tessera_view* view, const double* numbers,
                            const int64_t* integers, int64_t count) {
  return guarded<>(1, [&] {
    const View& v = view_of(view);
    const View* base = &v;
    while (base->how == TESSERA_VIEW_RESHAPE) base = base->parents[0];
    if (!base->variable) fail("setInitialValue of a tensor that is no whole variable");
    set_values(*base->variable, numbers, integers, count);
    return 0;
  });
}

const tessera_view* tessera_rec_whole(tessera_recorder* r, int64_t variable) {
  return guarded<>(static_cast<const tessera_view*>(nullptr), [&]() -> const tessera_view* {
    return r->variables.at(static_cast<size_t>(variable)).whole;
  });
}

const tessera_view* tessera_rec_view(tessera_view_kind how, const tessera_view* const* parents,
                                     int64_t parent_count, const int64_t* args, int64_t arg_count) {
  return guarded<>(static_cast<const tessera_view*>(nullptr), [&]() -> const tessera_view* {
    return make_view(how, views_of(parents, parent_count), ints_of(args, arg_count));
  });
}

const tessera_statement* tessera_rec_statement(tessera_recorder* r, const tessera_statement_desc* d,
                                               const tessera_view** results) {
  return guarded<>(static_cast<const tessera_statement*>(nullptr),
                   [&]() -> const tessera_statement* {
                     Statement s;
                     s.kind = static_cast<tessera_statement_kind>(d->kind);
                     s.in = views_of(d->in, d->ins);
                     s.out = views_of(d->out, d->outs);
                     s.ints = ints_of(d->ints, d->int_count);
                     s.reals.assign(d->reals, d->reals + d->real_count);
                     s.expr.assign(d->expr, d->expr + d->expr_count);
                     if (d->text) s.text = d->text;
                     if (d->attributes) s.attributes = d->attributes;
                     for (const View* v : s.in)
                       if (v->recorder != r) fail("a tensor of another graph");
                     complete(*r, s);
                     Statement& kept = r->statements.emplace_back(std::move(s));
                     if (results)
                       for (size_t i = 0; i < kept.out.size(); ++i) results[i] = kept.out[i];
                     return reinterpret_cast<const tessera_statement*>(&kept);
                   });
}

namespace {

struct Creators {
  std::mutex mutex;
  std::map<std::string, void*> of;
  std::map<std::string, std::vector<void*>> of_kind;
  std::map<std::string, int64_t> facts;
};
Creators& creators() {
  static Creators* c = new Creators;  // libraries register and look up until the process ends
  return *c;
}

}  // namespace

int tessera_creator_add(const char* kind, const char* key, void* creator) {
  const std::lock_guard<std::mutex> lock(creators().mutex);
  if (!creators().of.emplace(std::string(kind) + " " + key, creator).second) return 1;
  creators().of_kind[kind].push_back(creator);
  return 0;
}

void* tessera_creator_find(const char* kind, const char* key) {
  const std::lock_guard<std::mutex> lock(creators().mutex);
  const auto at = creators().of.find(std::string(kind) + " " + key);
  return at == creators().of.end() ? nullptr : at->second;
}

void* tessera_creator_at(const char* kind, int64_t index) {
  const std::lock_guard<std::mutex> lock(creators().mutex);
  const std::vector<void*>& all = creators().of_kind[kind];
  return index < 0 || static_cast<size_t>(index) >= all.size() ? nullptr
                                                               : all[static_cast<size_t>(index)];
}

int64_t tessera_fact(const char* name, int64_t otherwise) {
  const std::lock_guard<std::mutex> lock(creators().mutex);
  const auto at = creators().facts.find(name);
  return at == creators().facts.end() ? otherwise : at->second;
}

void tessera_set_facts(const char* const* names, const int64_t* values, int64_t count) {
  const std::lock_guard<std::mutex> lock(creators().mutex);
  creators().facts.clear();
  for (int64_t i = 0; i < count; ++i) creators().facts[names[i]] = values[i];
}

// Levels as popart's logger has them: 0 trace, 1 debug, 2 info, 3 warn, 4 err.
void tessera_compat_log(int32_t level, const char* text) {
  static const int32_t shown = [] {
    const char* env = std::getenv("POPART_LOG_LEVEL");
    const std::string_view wanted = env ? env : "";
    const char* names[] = {"TRACE", "DEBUG", "INFO", "WARN", "ERR", "OFF"};
    for (int32_t i = 0; i < 6; ++i)
      if (wanted == names[i]) return i;
    return 3;
  }();
  if (level >= shown) std::cerr << "[popart] " << text << std::endl;
}
