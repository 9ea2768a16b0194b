// SPDX-License-Identifier: Apache-2.0
// Names of parts of a graph: compute sets, vertices, fields.
#pragma once

#include <string>

#include "../detail/vertices.h"
#include "StringRef.hpp"

namespace poplar {

class ComputeSet {
 public:
  ComputeSet() : vertices_(nullptr), id_(-1) {}
  ComputeSet(tessera_vertices* vertices, int64_t id) : vertices_(vertices), id_(id) {}
  unsigned getId() const { return static_cast<unsigned>(id_); }
  tessera_vertices* vertices() const { return vertices_; }
  int64_t id() const { return id_; }

 private:
  tessera_vertices* vertices_;
  int64_t id_;
};

class FieldRef {
 public:
  FieldRef(int64_t vertex, const std::string& name, int64_t element = -1)
      : vertex_(vertex), name_(name), element_(element) {}
  // One element of a field of several tensors.
  FieldRef operator[](std::size_t i) const {
    return FieldRef(vertex_, name_, static_cast<int64_t>(i));
  }
  int64_t vertex() const { return vertex_; }
  const std::string& name() const { return name_; }
  int64_t element() const { return element_; }

 private:
  int64_t vertex_;
  std::string name_;
  int64_t element_;
};

class VertexRef {
 public:
  VertexRef() : id_(-1) {}
  explicit VertexRef(int64_t id) : id_(id) {}
  FieldRef operator[](StringRef field) const { return FieldRef(id_, field); }
  FieldRef getFieldRef(StringRef field) const { return FieldRef(id_, field); }
  unsigned getId() const { return static_cast<unsigned>(id_); }
  int64_t id() const { return id_; }

 private:
  int64_t id_;
};

}  // namespace poplar
