// SPDX-License-Identifier: Apache-2.0
// What a codelet is written with: Vertex, MultiVertex and the fields Input, Output, InOut, Vector.
// Every field is a pointer, with a size where it is a vector; custom/codelets fills them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <poplar/VectorLayout.hpp>
#include <poplar/VectorTypes.hpp>
#include <type_traits>

namespace poplar {

class VertexBase {};

// Run once per execution of its compute set.
class Vertex : public VertexBase {};

// compute(worker) is called for every worker, here one after another.
class MultiVertex : public VertexBase {
 public:
  static constexpr unsigned numWorkers() { return 6; }
};

// As a Vertex: there is no supervisor thread to write code for.
class SupervisorVertex : public VertexBase {};

namespace detail {

// Elements that lie one after another.
template <typename T>
class Elements {
 public:
  using value_type = std::remove_cv_t<T>;
  T& operator[](std::size_t i) const { return data_[i]; }
  T* data() const { return data_; }
  T* begin() const { return data_; }
  T* end() const { return data_ + size_; }
  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  T& front() const { return data_[0]; }
  T& back() const { return data_[size_ - 1]; }
  T& operator*() const { return *data_; }

 private:
  T* data_;
  std::size_t size_;
};

// One element somewhere else.
template <typename T>
class Element {
 public:
  operator T&() const { return *at_; }
  T& operator*() const { return *at_; }
  T* operator->() const { return at_; }

 protected:
  T* at_;
};

template <typename T>
class WritableElement : public Element<T> {
 public:
  const WritableElement& operator=(const T& value) const {
    *this->at_ = value;
    return *this;
  }
  WritableElement& operator=(const WritableElement& other) {
    *this->at_ = *other.at_;
    return *this;
  }
};

}  // namespace detail

// State of the vertex, or with Input and the like inside a field of several tensors.
template <typename T, VectorLayout L = VectorLayout::SPAN, unsigned Align = alignof(T),
          bool Interleaved = false>
class Vector : public detail::Elements<T> {};

template <typename T, VectorListLayout L = VectorListLayout::DELTAN, unsigned Align = alignof(T),
          bool Interleaved = false>
class VectorList;

template <typename T>
class Input : public detail::Element<const T> {};

template <typename T>
class Output : public detail::WritableElement<T> {
 public:
  using detail::WritableElement<T>::operator=;
};

template <typename T>
class InOut : public detail::WritableElement<T> {
 public:
  using detail::WritableElement<T>::operator=;
};

template <typename T, VectorLayout L, unsigned A, bool I>
class Input<Vector<T, L, A, I>> : public detail::Elements<const T> {};
template <typename T, VectorLayout L, unsigned A, bool I>
class Output<Vector<T, L, A, I>> : public detail::Elements<T> {};
template <typename T, VectorLayout L, unsigned A, bool I>
class InOut<Vector<T, L, A, I>> : public detail::Elements<T> {};

template <typename T, VectorListLayout L, unsigned A, bool I>
class Input<VectorList<T, L, A, I>>
    : public detail::Elements<Input<Vector<T, VectorLayout::SPAN, A, I>>> {};
template <typename T, VectorListLayout L, unsigned A, bool I>
class Output<VectorList<T, L, A, I>>
    : public detail::Elements<Output<Vector<T, VectorLayout::SPAN, A, I>>> {};
template <typename T, VectorListLayout L, unsigned A, bool I>
class InOut<VectorList<T, L, A, I>>
    : public detail::Elements<InOut<Vector<T, VectorLayout::SPAN, A, I>>> {};

}  // namespace poplar
