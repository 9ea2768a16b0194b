// SPDX-License-Identifier: Apache-2.0
// Vertices of distance.cpp: one per element of the result, or per row of a gradient.
#include <cmath>
#include <poplar/HalfFloat.hpp>
#include <poplar/Vertex.hpp>

using poplar::Input;
using poplar::Output;
using poplar::Vector;
using poplar::VectorLayout;

template <typename T>
class L1Element : public poplar::Vertex {
 public:
  L1Element();
  Input<Vector<T, VectorLayout::SPAN, 8>> a;
  Input<Vector<T, VectorLayout::ONE_PTR, 8>> b;
  Output<T> out;

  bool compute() {
    float sum = 0;
    for (unsigned i = 0; i < a.size(); ++i) sum += std::abs(float(a[i]) - float(b[i]));
    *out = T(sum);
    return true;
  }
};

template <typename T>
class L2Element : public poplar::Vertex {
 public:
  L2Element();
  Input<Vector<T, VectorLayout::SPAN, 8>> a;
  Input<Vector<T, VectorLayout::ONE_PTR, 8>> b;
  Output<T> out;

  bool compute() {
    float sum = 0;
    for (unsigned i = 0; i < a.size(); ++i) {
      const float d = float(a[i]) - float(b[i]);
      sum += d * d;
    }
    *out = T(std::sqrt(sum));
    return true;
  }
};

// Element k of the gradient of one row, from the column k of all others.
template <typename T>
class L1Gradient : public poplar::Vertex {
 public:
  L1Gradient();
  Input<T> x;
  Input<Vector<T>> others;
  Input<Vector<T, VectorLayout::ONE_PTR>> grad;
  Output<float> out;

  bool compute() {
    float sum = 0;
    for (unsigned j = 0; j < others.size(); ++j) {
      if (x > others[j]) sum += float(grad[j]);
      if (x < others[j]) sum -= float(grad[j]);
    }
    *out = sum;
    return true;
  }
};

// The same, with the distances that the forward op gave.
template <typename T>
class L2Gradient : public poplar::Vertex {
 public:
  L2Gradient();
  Input<T> x;
  Input<Vector<T>> others;
  Input<Vector<T, VectorLayout::ONE_PTR>> grad;
  Input<Vector<T, VectorLayout::ONE_PTR>> distance;
  Output<float> out;

  bool compute() {
    float sum = 0;
    for (unsigned j = 0; j < others.size(); ++j)
      if (distance[j] > T(0))
        sum += float(grad[j]) * (float(*x) - float(others[j])) / float(distance[j]);
    *out = sum;
    return true;
  }
};

#define INSTANTIATE(T)          \
  template class L1Element<T>;  \
  template class L2Element<T>;  \
  template class L1Gradient<T>; \
  template class L2Gradient<T>
INSTANTIATE(float);
INSTANTIATE(half);
