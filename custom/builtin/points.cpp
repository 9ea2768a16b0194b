// SPDX-License-Identifier: Apache-2.0
// Ops on sets of points, one per row, that PopTorch ships: poptorch.fps and poptorch.nearest.
#include <limits>

#include "tessera/custom_op.h"

namespace {

using namespace tessera::custom;

float distance(const float* a, const float* b, int64_t width) {
  float sum = 0;
  for (int64_t k = 0; k < width; ++k) sum += (a[k] - b[k]) * (a[k] - b[k]);
  return sum;
}

void check(bool good, const char* text) {
  if (!good) throw std::invalid_argument(text);
}

// Inputs: the points, and of each segment the point to begin with. Of the rows between two `bounds`
// as many as `counts` says, always the one that is farthest from those taken before.
class Fps {
 public:
  static void setup(Setup& s) {
    const auto bounds = s.attribute("bounds", std::vector<int64_t>{}),
               counts = s.attribute("counts", std::vector<int64_t>{});
    check(s.inputs() == 2 && s.input(0).rank() == 2, "wants points as rows");
    check(bounds.size() == counts.size() + 1 && bounds.front() >= 0 &&
              bounds.back() <= s.input(0).shape[0] &&
              s.input(1).count() == static_cast<int64_t>(counts.size()),
          "wants bounds of segments of the points");
    int64_t total = 0;
    for (size_t i = 0; i < counts.size(); ++i) {
      check(counts[i] >= 0 && counts[i] <= bounds[i + 1] - bounds[i],
            "can't take more points than there are");
      total += counts[i];
    }
    s.output(0, DType::Int32, {total});
  }
  static void work(WorkEstimate& w) {
    const int64_t taken = w.output(0).count(), points = w.input(0).count();
    w.set(3 * taken * points, 4 * (points + taken));
  }

  explicit Fps(Prepare& p)
      : bounds_(p.attribute("bounds", std::vector<int64_t>{})),
        counts_(p.attribute("counts", std::vector<int64_t>{})),
        width_(p.input(0).shape[1]) {
    int64_t longest = 0;
    for (size_t s = 0; s < counts_.size(); ++s)
      longest = std::max(longest, bounds_[s + 1] - bounds_[s]);
    p.scratch(longest * static_cast<int64_t>(sizeof(float)));
  }

  void compute(const Run& run) const {
    int64_t at = 0;
    for (size_t s = 0; s < counts_.size(); at += counts_[s], ++s)
      if (static_cast<int>(s % static_cast<size_t>(run.threads())) == run.thread())
        take(run, s, run.output<int32_t>(0).data() + at);
  }

 private:
  void take(const Run& run, size_t s, int32_t* out) const {
    const int64_t begin = bounds_[s], rows = bounds_[s + 1] - begin;
    const float* points = run.input<float>(0).data() + begin * width_;
    auto* away = static_cast<float*>(run.scratch());  // how far each is from those taken
    std::fill_n(away, rows, std::numeric_limits<float>::infinity());
    int64_t row = run.input<int32_t>(1)[static_cast<int64_t>(s)];
    if (counts_[s] > 0 && (row < 0 || row >= rows)) return run.fail("no such point to begin with");
    for (int64_t i = 0; i < counts_[s]; ++i) {
      out[i] = static_cast<int32_t>(begin + row);
      const float* taken = points + row * width_;
      float most = -1;
      for (int64_t p = 0; p < rows; ++p) {
        away[p] = std::min(away[p], distance(points + p * width_, taken, width_));
        if (away[p] <= most) continue;
        most = away[p];
        row = p;
      }
    }
  }

  std::vector<int64_t> bounds_, counts_;
  int64_t width_;
};

// Inputs: the points x and y and, if they are compared by batches only, the sorted batch ids of
// both. For each row of x the nearest row of y.
struct Nearest {
  static void setup(Setup& s) {
    check(s.inputs() == 2 || s.inputs() == 4, "wants two sets of points, and ids of both or none");
    const Type x = s.input(0), y = s.input(1);
    check(x.rank() == 2 && y.rank() == 2 && x.shape[1] == y.shape[1],
          "wants points as rows, with as many features");
    check(y.shape[0] > 0 || x.shape[0] == 0, "wants points to choose from");
    check(s.inputs() == 2 || (s.input(2).count() == x.shape[0] && s.input(3).count() == y.shape[0]),
          "wants one id for each point");
    s.output(0, DType::Int32, {x.shape[0]});
  }
  static void work(WorkEstimate& w) {
    const Type x = w.input(0), y = w.input(1);
    w.set(3 * x.count() * y.shape[0], 4 * (x.count() + y.count() + x.shape[0]));
  }

  static void compute(const Run& run) {
    const tessera_type &x = run.input_type(0), &y = run.input_type(1);
    const int64_t width = x.shape[1], rows = y.shape[0];
    const bool batched = run.inputs() == 4;
    const float *xs = run.input<float>(0).data(), *ys = run.input<float>(1).data();
    const int32_t* ids_x = batched ? run.input<int32_t>(2).data() : nullptr;
    const int32_t* ids_y = batched ? run.input<int32_t>(3).data() : nullptr;
    if (batched && !std::is_sorted(ids_x, ids_x + x.shape[0]))
      return run.fail("'batch_x' is not sorted");
    if (batched && !std::is_sorted(ids_y, ids_y + rows)) return run.fail("'batch_y' is not sorted");
    const Range mine = run.share(x.shape[0]);
    for (int64_t i = mine.begin; i < mine.end; ++i) {
      int64_t low = 0, high = rows;
      if (batched) {
        low = std::lower_bound(ids_y, ids_y + rows, ids_x[i]) - ids_y;
        high = std::upper_bound(ids_y + low, ids_y + rows, ids_x[i]) - ids_y;
        if (low == high)
          return run.fail("Some batch indices occur in 'batch_x' that do not occur in 'batch_y': " +
                          std::to_string(ids_x[i]));
      }
      int64_t best = low;
      float least = std::numeric_limits<float>::infinity();
      for (int64_t j = low; j < high; ++j) {
        const float d = distance(xs + i * width, ys + j * width, width);
        if (d >= least) continue;
        least = d;
        best = j;
      }
      run.output<int32_t>(0)[i] = static_cast<int32_t>(best);
    }
  }
};

TESSERA_REGISTER_OP(Fps, "tessera", "Fps", 1);
TESSERA_REGISTER_OP(Nearest, "tessera", "Nearest", 1);

}  // namespace
