// SPDX-License-Identifier: Apache-2.0
// Vertices of detection.cpp.
#include <print.h>

#include <algorithm>
#include <poplar/Vertex.hpp>

using namespace poplar;

// Whether a row of the batch has nothing more to take.
template <typename T>
class Ended : public Vertex {
 public:
  Input<T> best;
  Input<int> count;
  Output<int> ended;
  const float least;
  const int most;

  bool compute() {
    *ended = float(*best) < least || *count >= most ? 1 : 0;
    return true;
  }
};

template class Ended<float>;
template class Ended<half>;

// Writes down the best candidate and its box.
template <typename T>
class Take : public Vertex {
 public:
  Input<Vector<T, VectorLayout::ONE_PTR>> boxes;
  Input<T> best;
  Input<unsigned> where;
  Input<int> ended;
  InOut<Vector<int, VectorLayout::ONE_PTR>> index;
  InOut<Vector<T, VectorLayout::ONE_PTR>> score;
  InOut<Vector<T, VectorLayout::ONE_PTR>> box;
  InOut<Vector<int, VectorLayout::ONE_PTR>> label;
  InOut<int> count;
  Output<Vector<T, VectorLayout::ONE_PTR>> taken;
  const unsigned boxes_of_a_class;

  bool compute() {
    if (ended) return true;
    const unsigned at = where % boxes_of_a_class;
    const int slot = count;
    index[slot] = int(at);
    label[slot] = int(where / boxes_of_a_class);
    score[slot] = best;
    for (unsigned k = 0; k < 4; ++k) taken[k] = box[4 * slot + k] = boxes[4 * at + k];
    *count = slot + 1;
    return true;
  }
};

template class Take<float>;
template class Take<half>;

// Candidates of the taken one's class that overlap it, and itself, lose their score.
template <typename T>
class Drop : public MultiVertex {
 public:
  InOut<Vector<T>> left;
  Input<Vector<T, VectorLayout::ONE_PTR>> boxes;
  Input<unsigned> where;
  Input<Vector<T, VectorLayout::ONE_PTR>> taken;
  Input<int> ended;
  Vector<unsigned> sizes;  // of the workers' shares
  const unsigned first;
  const unsigned boxes_of_a_class;
  const float overlap;

  bool compute(unsigned worker) {
    if (ended) return true;
    for (unsigned share = worker; share < sizes.size(); share += numWorkers()) {
      unsigned begin = 0;
      for (unsigned k = 0; k < share; ++k) begin += sizes[k];
      for (unsigned i = begin; i < begin + sizes[share]; ++i)
        if (goes(first + i)) left[i] = T(-1.0f);
    }
    return true;
  }

 private:
  bool goes(unsigned candidate) const {
    if (candidate == where) return true;
    if (candidate / boxes_of_a_class != where / boxes_of_a_class) return false;
    const T* b = &boxes[4 * (candidate % boxes_of_a_class)];
    const float w = std::min(float(b[2]), float(taken[2])) - std::max(float(b[0]), float(taken[0]));
    const float h = std::min(float(b[3]), float(taken[3])) - std::max(float(b[1]), float(taken[1]));
    const float both = std::max(w, 0.0f) * std::max(h, 0.0f);
    return both > overlap * (area(b) + area(&taken[0]) - both);
  }
  static float area(const T* b) {
    return (float(b[2]) - float(b[0])) * (float(b[3]) - float(b[1]));
  }
};

template class Drop<float>;
template class Drop<half>;
