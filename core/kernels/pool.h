// SPDX-License-Identifier: Apache-2.0
// Pooling of f32 images, one row of one plane at a time. A plane is the set of pixels that share
// all but one of the other dims; that one (batch or channels, whichever is contiguous) is the
// `inner` run that vectors go along. Row-major images have no such dim and take the `flat` forms,
// which run vectors along the row. Of more than two spatial dims all but the last count as rows.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/dispatch.h"

namespace tessera::kernels {

// What one output position of one axis reads: `count` inputs from `begin`, `step` apart. `size` is
// its share of an average's divisor and `inverse` one over it.
struct PoolWindow {
  int32_t begin = 0, count = 0, step = 1, size = 1;
  float inverse = 1.0f;
};

// Neighbouring outputs [first, last) that have a tap `tap`; their inputs lie `step` apart from
// `begin` on. What row-major images are pooled by.
struct PoolRun {
  int32_t first = 0, last = 0, begin = 0, step = 1;
};

// Outputs of a row-major row that are pooled together, so that their state stays in registers or
// the first-level cache.
constexpr int64_t kPoolColumns = 128;
// And inputs that lie under them, if they are to be pooled by columns.
constexpr int64_t kPoolSpan = 512;

// Which outputs [first, last) can have read one input.
struct PoolCover {
  int32_t first = 0, last = 0;
};

struct PoolAxis {
  int64_t in = 0, out = 0;
  std::vector<PoolWindow> windows;  // per output
  std::vector<PoolCover> covers;    // per input
  // Outputs [whole_first, whole_last) see all `kernel` taps, `stride` inputs apart; the fast path.
  int64_t kernel = 0, stride = 0, whole_first = 0, whole_last = 0;
  // Per block of kPoolColumns outputs: its runs, earlier taps first.
  std::vector<std::vector<PoolRun>> runs;
};

// Windows of a sliding kernel. With `include_pad` the divisor counts padding (but not what ceil
// mode adds beyond it).
PoolAxis sliding_axis(int64_t in, int64_t out, int64_t kernel, int64_t stride, int64_t pad,
                      int64_t dilation, bool include_pad);
// Windows that divide the input into `out` nearly equal, possibly overlapping parts.
PoolAxis adaptive_axis(int64_t in, int64_t out);

// The rows of a plane, over all spatial dims but the last: which input rows each output row reads,
// in order, and which output rows read an input row.
struct PoolRows {
  struct Window {
    int32_t first = 0, count = 0;  // in `taps`
    int64_t size = 1;              // as PoolWindow
    float inverse = 1.0f;
    bool adjacent = false;  // the input rows are consecutive
  };
  int64_t in = 1, out = 1;
  std::vector<Window> windows;
  std::vector<int32_t> taps;
  std::vector<int32_t> cover_begin;  // per input row, and one more: its part of `covers`
  std::vector<int32_t> covers;
  std::vector<uint8_t> as_before;  // per input row: read by the same rows as the one before it

  std::span<const int32_t> rows_of(const Window& w) const {
    return {taps.data() + w.first, static_cast<size_t>(w.count)};
  }
  std::span<const int32_t> readers_of(int64_t row) const {
    return {covers.data() + cover_begin[row],
            static_cast<size_t>(cover_begin[row + 1] - cover_begin[row])};
  }
};
PoolRows pool_rows(std::span<const PoolAxis> outer);

// A plane of a tensor: address of its pixel (0, 0) and steps in elements.
template <typename T>
struct PoolPlane {
  T* at = nullptr;
  int64_t row = 0, col = 0;
};

struct PoolKernels {
  // Row `oh` of the result; indices are flat in the input plane and may be null.
  void (*max_row)(const PoolRows& h, const PoolAxis& w, int64_t oh, PoolPlane<const float> x,
                  PoolPlane<float> y, PoolPlane<int64_t> index, int64_t inner);
  void (*max_row_flat)(const PoolRows& h, const PoolAxis& w, int64_t oh, PoolPlane<const float> x,
                       PoolPlane<float> y, PoolPlane<int64_t> index);
  // Row `ih` of the input gradient, gathered from the outputs that may have chosen it.
  void (*max_grad_row)(const PoolRows& h, const PoolAxis& w, int64_t ih, PoolPlane<const float> gy,
                       PoolPlane<const int64_t> index, PoolPlane<float> gx, int64_t inner);
  // Input rows under output row `oh` where windows tile the image from its corner without overlap.
  void (*max_grad_tiles)(const PoolRows& h, const PoolAxis& w, int64_t oh,
                         PoolPlane<const float> gy, PoolPlane<const int64_t> index,
                         PoolPlane<float> gx, int64_t inner);
  // A whole row-major plane.
  void (*max_grad_flat)(const PoolRows& h, const PoolAxis& w, PoolPlane<const float> gy,
                        PoolPlane<const int64_t> index, PoolPlane<float> gx);
  // Averages; `divisor` 0 means the size of the window.
  void (*avg_row)(const PoolRows& h, const PoolAxis& w, int64_t oh, int64_t divisor,
                  PoolPlane<const float> x, PoolPlane<float> y, int64_t inner);
  void (*avg_row_flat)(const PoolRows& h, const PoolAxis& w, int64_t oh, int64_t divisor,
                       PoolPlane<const float> x, PoolPlane<float> y);
  void (*avg_grad_row)(const PoolRows& h, const PoolAxis& w, int64_t ih, int64_t divisor,
                       PoolPlane<const float> gy, PoolPlane<float> gx, int64_t inner);
  void (*avg_grad_row_flat)(const PoolRows& h, const PoolAxis& w, int64_t ih, int64_t divisor,
                            PoolPlane<const float> gy, PoolPlane<float> gx);
};
TESSERA_KERNELS(PoolKernels, pool)

}  // namespace tessera::kernels
