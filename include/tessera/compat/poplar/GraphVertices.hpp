// SPDX-License-Identifier: Apache-2.0
// The part of a graph that deals with codelets. They are compiled with the host's compiler, and a
// compute set becomes one step of the program that runs its vertices on all threads.
#pragma once

#include <memory>
#include <sstream>
#include <string>
#include <type_traits>
#include <vector>

#include "ArrayRef.hpp"
#include "CodeletFileType.hpp"
#include "DebugContext.hpp"
#include "GraphElements.hpp"
#include "Tensor.hpp"
#include "exceptions.hpp"

namespace poplar {
namespace detail {

template <typename T>
T checked_vertices(T result) {
  if (result < 0) throw graph_error(tessera_vertices_error());
  return result;
}

// Numbers for state, whole and not.
struct Numbers {
  template <typename T>
  explicit Numbers(ArrayRef<T> values) {
    for (const T& x : values) {
      reals.push_back(static_cast<double>(x));
      integers.push_back(static_cast<int64_t>(x));
    }
  }
  std::vector<double> reals;
  std::vector<int64_t> integers;
};

template <typename T>
using IfNumber =
    typename std::enable_if<std::is_arithmetic<T>::value || std::is_enum<T>::value>::type;

}  // namespace detail

// What a field is to be, given with addVertex.
class VertexConnection {
 public:
  VertexConnection(StringRef field, const Tensor& t) : field_(field), tensors_{t} {}
  VertexConnection(StringRef field, const std::vector<Tensor>& ts) : field_(field), tensors_(ts) {}
  template <typename T, typename = detail::IfNumber<T>>
  VertexConnection(StringRef field, T value)
      : field_(field), numbers_(std::make_shared<detail::Numbers>(ArrayRef<T>(&value, 1))) {}

  const std::string& field() const { return field_; }
  const std::vector<Tensor>& tensors() const { return tensors_; }
  const detail::Numbers* numbers() const { return numbers_.get(); }

 private:
  std::string field_;
  std::vector<Tensor> tensors_;
  std::shared_ptr<detail::Numbers> numbers_;
};

class GraphVertices {
 public:
  // C++ only. Compiled once for each text, headers and flags, and kept in the user's cache.
  void addCodelets(StringRef path, CodeletFileType = CodeletFileType::Auto,
                   StringRef compileFlags = "", StringRef targetName = "") {
    (void)targetName;
    const std::string p = path, flags = compileFlags;
    detail::checked_vertices(tessera_add_codelets(vertices(), p.c_str(), flags.c_str()));
  }
  void addCodelets(ArrayRef<std::string> paths, StringRef compileFlags = "") {
    for (const std::string& p : paths) addCodelets(p, CodeletFileType::Auto, compileFlags);
  }
  void addCodelets(std::stringstream& text, StringRef compileFlags = "",
                   CodeletFileType = CodeletFileType::CppSource, StringRef targetName = "") {
    (void)targetName;
    const std::string t = text.str(), flags = compileFlags;
    detail::checked_vertices(tessera_add_codelets_text(vertices(), t.c_str(), flags.c_str()));
  }

  ComputeSet addComputeSet(const DebugContext& dc = {}) {
    return ComputeSet(vertices(), detail::checked_vertices(tessera_add_compute_set(
                                      vertices(), dc.getPathName().c_str())));
  }

  VertexRef addVertex(ComputeSet cs, StringRef name) {
    const std::string n = name;
    return VertexRef(detail::checked_vertices(tessera_add_vertex(vertices(), cs.id(), n.c_str())));
  }
  VertexRef addVertex(ComputeSet cs, StringRef name, ArrayRef<VertexConnection> connections) {
    VertexRef v = addVertex(cs, name);
    for (const VertexConnection& c : connections) {
      if (c.numbers())
        set(v[c.field()], *c.numbers());
      else
        connect(v[c.field()], c.tensors());
    }
    return v;
  }

  void connect(const FieldRef& field, const Tensor& t) {
    const tessera_view* view = t.handle();
    join(field, &view, 1);
  }
  void connect(const FieldRef& field, ArrayRef<Tensor> tensors) {
    std::vector<const tessera_view*> views;
    for (const Tensor& t : tensors) views.push_back(t.handle());
    join(field, views.data(), static_cast<int64_t>(views.size()));
  }

  template <typename T, typename = detail::IfNumber<T>>
  void setInitialValue(const FieldRef& field, T value) {
    set(field, detail::Numbers(ArrayRef<T>(&value, 1)));
  }
  template <typename T>
  void setInitialValue(const FieldRef& field, ArrayRef<T> values) {
    set(field, detail::Numbers(values));
  }
  template <typename T>
  void setInitialValue(const FieldRef& field, const std::vector<T>& values) {
    set(field, detail::Numbers(ArrayRef<T>(values)));
  }
  void setFieldSize(const FieldRef& field, std::size_t size) {
    detail::checked_vertices(tessera_set_field_size(
        vertices(), field.vertex(), field.name().c_str(), static_cast<int64_t>(size)));
  }

  // Where vertices run and for how long is not asked here.
  void setTileMapping(const VertexRef&, unsigned) {}
  void setPerfEstimate(const VertexRef&, std::uint64_t, std::uint64_t = 0) {}
  void setCycleEstimate(const VertexRef&, std::uint64_t) {}

 protected:
  explicit GraphVertices(tessera_recorder* r) : recorder_(r) {}

 private:
  tessera_vertices* vertices() {
    if (!vertices_)
      vertices_ = std::shared_ptr<tessera_vertices>(tessera_vertices_new(recorder_),
                                                    tessera_vertices_delete);
    return vertices_.get();
  }
  void join(const FieldRef& field, const tessera_view* const* views, int64_t count) {
    detail::checked_vertices(tessera_connect(vertices(), field.vertex(), field.name().c_str(),
                                             field.element(), views, count));
  }
  void set(const FieldRef& field, const detail::Numbers& n) {
    detail::checked_vertices(tessera_set_field(vertices(), field.vertex(), field.name().c_str(),
                                               field.element(), n.reals.data(), n.integers.data(),
                                               static_cast<int64_t>(n.reals.size())));
  }

  tessera_recorder* recorder_;
  std::shared_ptr<tessera_vertices> vertices_;
};

}  // namespace poplar
