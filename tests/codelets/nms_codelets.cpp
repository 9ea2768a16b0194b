// SPDX-License-Identifier: Apache-2.0
// Vertices of nms.cpp: suppression of boxes by workers, and the note of what was kept.
#include <print.h>

#include <algorithm>
#include <poplar/Vertex.hpp>

using namespace poplar;

// Boxes that overlap the best one too much lose their score, as does the best one itself.
class Suppress : public MultiVertex {
 public:
  Input<Vector<float, VectorLayout::ONE_PTR>> boxes;  // 4 of each: x0, y0, x1, y1
  InOut<Vector<float>> scores;
  Input<Vector<float, VectorLayout::ONE_PTR>> best;
  Input<unsigned> index;
  const unsigned offset;  // of the first box
  const float threshold;

  bool compute(unsigned worker) {
    const float area = (best[2] - best[0]) * (best[3] - best[1]);
    for (unsigned i = worker; i < scores.size(); i += numWorkers()) {
      const float* b = &boxes[4 * i];
      const float w = std::min(b[2], best[2]) - std::max(b[0], best[0]);
      const float h = std::min(b[3], best[3]) - std::max(b[1], best[1]);
      const float both = std::max(w, 0.0f) * std::max(h, 0.0f);
      const float all = (b[2] - b[0]) * (b[3] - b[1]) + area - both;
      if (offset + i == index || both > threshold * all) scores[i] = -1.0f;
    }
    return true;
  }
};

// Takes the best box out of the table, and writes down which it was.
class Keep : public Vertex {
 public:
  Input<Vector<float, VectorLayout::ONE_PTR>> boxes;
  Input<float> score;
  Input<unsigned> index;
  Output<Vector<float, VectorLayout::ONE_PTR>> best;
  InOut<Vector<int, VectorLayout::ONE_PTR>> kept;
  InOut<int> count;

  bool compute() {
    for (unsigned k = 0; k < 4; ++k) best[k] = boxes[4 * index + k];
    if (score >= 0.0f) {
      kept[*count] = int(*index);
      count += 1;
    }
    return true;
  }
};
