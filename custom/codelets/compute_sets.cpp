// SPDX-License-Identifier: Apache-2.0
#include "custom/codelets/compute_sets.h"

#include <algorithm>
#include <iterator>
#include <stdexcept>

namespace tessera::codelets {
namespace {

[[noreturn]] void fail(const std::string& text) {
  throw std::runtime_error(text);
}

bool is_list(const tessera_field& f) {
  return f.kind == TESSERA_FIELD_SCALARS || f.kind == TESSERA_FIELD_VECTORS;
}
bool is_connected(const tessera_field& f) {
  return f.kind >= TESSERA_FIELD_SCALAR;
}
bool is_scalar(const tessera_field& f) {
  return f.kind == TESSERA_FIELD_SCALAR || f.kind == TESSERA_FIELD_SCALARS;
}

uint64_t elements(const Pieces& pieces) {
  uint64_t n = 0;
  for (const Piece& p : pieces) n += p.count;
  return n;
}

// Neighbours become one piece, empty ones go.
Pieces merged(const Pieces& pieces) {
  Pieces out;
  for (const Piece& p : pieces) {
    if (p.count == 0) continue;
    if (!out.empty() && out.back().variable == p.variable &&
        out.back().begin + out.back().count == p.begin)
      out.back().count += p.count;
    else
      out.push_back(p);
  }
  return out;
}

// The pieces of `rows` equal parts.
std::vector<Pieces> cut(const Pieces& pieces, uint64_t rows) {
  std::vector<Pieces> out(rows);
  uint64_t each = rows == 0 ? 0 : elements(pieces) / rows, row = 0, room = each;
  for (Piece p : pieces) {
    while (p.count > 0) {
      if (room == 0) {
        ++row;
        room = each;
      }
      uint64_t n = std::min(room, p.count);
      out[row].push_back({p.variable, p.begin, n});
      p.begin += n;
      p.count -= n;
      room -= n;
    }
  }
  return out;
}

std::string listed(const std::vector<std::string>& names, size_t most = 12) {
  std::string text;
  for (size_t i = 0; i < names.size() && i < most; ++i) text += (i > 0 ? ", " : "") + names[i];
  if (names.size() > most) text += ", ...";
  return text;
}

std::string quoted(const std::string& name) {
  return "\"" + name + "\"";
}

}  // namespace

std::string type_name(int32_t type) {
  if (type < 0 || type >= static_cast<int32_t>(std::size(kTypeNames))) return "another type";
  return std::string(kTypeNames[type]);
}

void ComputeSets::add(std::shared_ptr<const Library> library) {
  if (std::find(libraries_.begin(), libraries_.end(), library) == libraries_.end())
    libraries_.push_back(std::move(library));
}

int64_t ComputeSets::add_set(const std::string& name) {
  sets_.push_back({name, {}});
  return static_cast<int64_t>(sets_.size()) - 1;
}

int64_t ComputeSets::add_vertex(int64_t set, const std::string& name) {
  if (set < 0 || set >= static_cast<int64_t>(sets_.size())) fail("addVertex: no such compute set");
  for (const auto& library : libraries_) {
    const tessera_vertex* type = library->find(name);
    if (type == nullptr) continue;
    sets_[set].vertices.push_back(static_cast<int64_t>(vertices_.size()));
    VertexDescription v{type, library, {}};
    v.fields.resize(type->field_count);
    vertices_.push_back(std::move(v));
    return static_cast<int64_t>(vertices_.size()) - 1;
  }
  std::string text = "addVertex: there is no vertex " + quoted(name);
  if (libraries_.empty()) fail(text + "; no codelets were added (Graph::addCodelets)");
  std::vector<std::string> names, templates;
  for (const auto& library : libraries_) {
    for (uint32_t i = 0; i < library->table().vertex_count; ++i)
      names.emplace_back(library->table().vertices[i].name);
    templates.insert(templates.end(), library->templates().begin(), library->templates().end());
  }
  text +=
      names.empty() ? "; the codelets that were added have none" : "; there are " + listed(names);
  if (!templates.empty())
    text += "; not instantiated (template class ...<...>;): " + listed(templates);
  fail(text);
}

ComputeSets::FieldRef ComputeSets::find(int64_t vertex, const std::string& field) {
  if (vertex < 0 || vertex >= static_cast<int64_t>(vertices_.size())) fail("no such vertex");
  VertexDescription& v = vertices_[vertex];
  std::vector<std::string> names;
  for (uint32_t i = 0; i < v.type->field_count; ++i) {
    if (field == v.type->fields[i].name) return {v.type->fields[i], v.fields[i]};
    names.emplace_back(v.type->fields[i].name);
  }
  fail("vertex " + quoted(v.type->name) + " has no field " + quoted(field) + "; it has " +
       listed(names));
}

void ComputeSets::connect(int64_t vertex, const std::string& field, int64_t element, int32_t type,
                          std::vector<Pieces> rows, int64_t first_dim) {
  auto [f, value] = find(vertex, field);
  std::string where =
      "connect: field " + quoted(field) + " of " + quoted(vertices_[vertex].type->name);
  if (!is_connected(f))
    fail(where + " is not an Input, Output or InOut of a type that is supported");
  if (type != f.type)
    fail(where + " is of " + type_name(f.type) + ", the tensor of " + type_name(type));
  for (Pieces& p : rows) p = merged(p);
  if (is_list(f) && element < 0) {
    if (rows.size() == 1 && first_dim >= 0) rows = cut(rows[0], static_cast<uint64_t>(first_dim));
    value.given.assign(rows.size(), true);
    value.rows = std::move(rows);
  } else {
    Pieces all;
    for (const Pieces& p : rows) all.insert(all.end(), p.begin(), p.end());
    size_t i = element < 0 ? 0 : static_cast<size_t>(element);
    if (!is_list(f) && element > 0) fail(where + " has no elements to connect one by one");
    if (i >= (size_t{1} << 32)) fail(where + " has no element " + std::to_string(element));
    if (value.rows.size() <= i) {
      value.rows.resize(i + 1);
      value.given.resize(i + 1);
    }
    value.rows[i] = merged(all);
    value.given[i] = true;
  }
  if (is_scalar(f))
    for (size_t i = 0; i < value.rows.size(); ++i)
      if (value.given[i] && elements(value.rows[i]) != 1)
        fail(where + " is one element, the tensor has " + std::to_string(elements(value.rows[i])));
  value.connected = true;
}

void ComputeSets::set_size(int64_t vertex, const std::string& field, int64_t size) {
  auto [f, value] = find(vertex, field);
  if (size < 0 || size >= int64_t{1} << 32) fail("setFieldSize: a size of " + std::to_string(size));
  auto n = static_cast<size_t>(size);
  if (is_list(f)) {
    value.rows.resize(n);
    value.given.resize(n);
    value.connected = true;
  } else if (f.kind == TESSERA_FIELD_STATE) {
    value.set = true;
    value.reals.resize(n);
    value.ints.resize(n);
  } else if (f.kind != TESSERA_FIELD_VECTOR) {
    fail("setFieldSize: field " + quoted(field) + " is not a vector");
  }
}

void ComputeSets::set_value(int64_t vertex, const std::string& field, int64_t element,
                            Values values) {
  auto [f, value] = find(vertex, field);
  std::string where =
      "setInitialValue: field " + quoted(field) + " of " + quoted(vertices_[vertex].type->name);
  if (f.kind != TESSERA_FIELD_VALUE && f.kind != TESSERA_FIELD_STATE)
    fail(where + (f.kind == TESSERA_FIELD_UNKNOWN ? " is of a type that is not supported"
                                                  : " is to be connected to a tensor"));
  if (f.kind == TESSERA_FIELD_VALUE && element < 0 && values.count != f.count)
    fail(where + " has " + std::to_string(f.count) + " elements, the value " +
         std::to_string(values.count));
  std::vector<double> reals;
  std::vector<int64_t> ints;
  for (int64_t i = 0; i < values.count; ++i) {
    reals.push_back(values.reals != nullptr ? values.reals[i]
                                            : static_cast<double>(values.ints[i]));
    ints.push_back(values.ints != nullptr ? values.ints[i] : static_cast<int64_t>(values.reals[i]));
  }
  value.set = true;
  if (element < 0) {
    value.reals = std::move(reals);
    value.ints = std::move(ints);
    return;
  }
  auto i = static_cast<size_t>(element);
  if (values.count != 1 || i >= std::max(value.reals.size(), value.ints.size()))
    fail(where + " has no element " + std::to_string(element));
  value.reals.resize(std::max(value.reals.size(), value.ints.size()));
  value.ints.resize(value.reals.size());
  value.reals[i] = reals[0];
  value.ints[i] = ints[0];
}

}  // namespace tessera::codelets
