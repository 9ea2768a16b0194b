// SPDX-License-Identifier: Apache-2.0
// The functions of tessera/compat/detail/vertices.h.
#include <exception>
#include <iterator>
#include <string>
#include <string_view>

#include "custom/codelets/compute_sets.h"
#include "tessera/abi.h"
#include "tessera/compat/detail/vertices.h"

using tessera::codelets::ComputeSets;
using tessera::codelets::Library;
using tessera::codelets::Pieces;
using tessera::codelets::VariableInfo;

struct tessera_vertices {
  tessera_recorder* recorder = nullptr;
  ComputeSets sets;
};

namespace {

thread_local std::string last_error;
thread_local bool failed = false;

template <typename R, typename F>
R guarded(R bad, F f) {
  failed = false;
  try {
    return f();
  } catch (const std::exception& e) {
    last_error = e.what();
  } catch (...) {
    last_error = "unknown error";
  }
  failed = true;
  return bad;
}

// The recorder and the codelets count types alike.
constexpr bool same_types() {
  constexpr std::string_view rows[] = {
#define ROW(name, vertex, ir, bytes) vertex,
      TESSERA_POPLAR_TYPES(ROW)
#undef ROW
  };
  using tessera::codelets::kTypeNames;
  if (std::size(rows) != std::size(kTypeNames)) return false;
  for (size_t i = 0; i < std::size(rows); ++i)
    if (rows[i] != kTypeNames[i]) return false;
  return true;
}
static_assert(same_types(), "the rows of TESSERA_POPLAR_TYPES");

Pieces pieces_of(const tessera_view* view) {
  int64_t count = 0;
  const tessera_tile_interval* regions = tessera_rec_regions(view, &count);
  if (regions == nullptr && view->elements > 0) throw std::runtime_error(tessera_rec_error());
  Pieces pieces;
  for (int64_t i = 0; i < count; ++i)
    pieces.push_back({static_cast<uint32_t>(regions[i].tile),
                      static_cast<uint64_t>(regions[i].begin),
                      static_cast<uint64_t>(regions[i].end - regions[i].begin)});
  return pieces;
}

int32_t dtype_of(std::string_view text) {
  static const char* const kNames[] = {"f32", "f16", "bf16", "f64", "i64",
                                       "i32", "i16", "i8",   "u8",  "bool"};
  for (size_t i = 0; i < std::size(kNames); ++i)
    if (text == kNames[i]) return static_cast<int32_t>(i);
  throw std::runtime_error("vertices cannot be given tensors of type " + std::string(text));
}

VariableInfo info_of(const tessera_view* view) {
  struct Row {
    const char* ir;
    uint64_t bytes;
  };
  static const Row kRows[] = {
#define ROW(name, vertex, ir, bytes) {ir, bytes},
      TESSERA_POPLAR_TYPES(ROW)
#undef ROW
  };
  const Row& row = kRows[view->type];
  return {dtype_of(row.ir), row.bytes, std::vector<int64_t>(view->shape, view->shape + view->rank)};
}

}  // namespace

extern "C" {

const char* tessera_vertices_error(void) {
  return failed ? last_error.c_str() : nullptr;
}

tessera_vertices* tessera_vertices_new(tessera_recorder* recorder) {
  return guarded<tessera_vertices*>(nullptr, [&] { return new tessera_vertices{recorder, {}}; });
}

void tessera_vertices_delete(tessera_vertices* vertices) {
  delete vertices;
}

int tessera_add_codelets(tessera_vertices* v, const char* path, const char* flags) {
  return guarded(-1, [&] {
    v->sets.add(Library::open(path, flags == nullptr ? "" : flags));
    return 0;
  });
}

int tessera_add_codelets_text(tessera_vertices* v, const char* text, const char* flags) {
  return guarded(-1, [&] {
    v->sets.add(Library::open_text(text, flags == nullptr ? "" : flags));
    return 0;
  });
}

int64_t tessera_add_compute_set(tessera_vertices* v, const char* name) {
  return guarded<int64_t>(-1, [&] { return v->sets.add_set(name == nullptr ? "" : name); });
}

int64_t tessera_add_vertex(tessera_vertices* v, int64_t set, const char* name) {
  return guarded<int64_t>(-1, [&] { return v->sets.add_vertex(set, name); });
}

int tessera_connect(tessera_vertices* v, int64_t vertex, const char* field, int64_t element,
                    const tessera_view* const* views, int64_t count) {
  return guarded(-1, [&] {
    std::vector<Pieces> rows;
    int32_t type = -1;
    for (int64_t i = 0; i < count; ++i) {
      if (i > 0 && views[i]->type != type)
        throw std::runtime_error(std::string("connect: tensors of different types for field ") +
                                 field);
      type = views[i]->type;
      rows.push_back(pieces_of(views[i]));
    }
    if (count == 0) {
      // Nothing to connect to: of whatever type.
      v->sets.set_size(vertex, field, 0);
      return 0;
    }
    int64_t first = count == 1 && views[0]->rank > 0 ? views[0]->shape[0] : -1;
    v->sets.connect(vertex, field, element, type, std::move(rows), first);
    return 0;
  });
}

int tessera_set_field_size(tessera_vertices* v, int64_t vertex, const char* field, int64_t size) {
  return guarded(-1, [&] {
    v->sets.set_size(vertex, field, size);
    return 0;
  });
}

int tessera_set_field(tessera_vertices* v, int64_t vertex, const char* field, int64_t element,
                      const double* numbers, const int64_t* integers, int64_t count) {
  return guarded(-1, [&] {
    v->sets.set_value(vertex, field, element, {numbers, integers, count});
    return 0;
  });
}

const tessera_statement* tessera_execute(tessera_vertices* v, int64_t set) {
  return guarded<const tessera_statement*>(nullptr, [&]() -> const tessera_statement* {
    auto whole = [&](uint32_t variable) {
      const tessera_view* view = tessera_rec_whole(v->recorder, variable);
      if (view == nullptr) throw std::runtime_error(tessera_rec_error());
      return view;
    };
    auto plan = v->sets.plan(set, [&](uint32_t variable) { return info_of(whole(variable)); });
    if (plan->outputs.empty()) return nullptr;  // no vertices, or they write nothing
    std::vector<const tessera_view*> in, out;
    for (const auto& t : plan->inputs) in.push_back(whole(t.variable));
    for (const auto& t : plan->outputs) out.push_back(whole(t.variable));
    const int64_t random = plan->random ? 1 : 0;
    std::string text =
        std::string("\"") + tessera::codelets::kDomain + "\", \"" + plan->op + "\", 1";
    register_plan(std::move(plan));
    tessera_statement_desc d{};
    d.size = sizeof d;
    d.kind = TESSERA_DO_CUSTOM;
    d.in = in.data();
    d.ins = static_cast<int64_t>(in.size());
    d.out = out.data();
    d.outs = static_cast<int64_t>(out.size());
    d.ints = &random;
    d.int_count = 1;
    d.text = text.c_str();
    d.attributes = "[]";
    const tessera_statement* statement = tessera_rec_statement(v->recorder, &d, out.data());
    if (statement == nullptr) throw std::runtime_error(tessera_rec_error());
    return statement;
  });
}

}  // extern "C"
