// SPDX-License-Identifier: Apache-2.0
// Separable linear maps of images: each spatial axis has a sparse matrix of taps. Upsampling in all
// modes, reflecting and repeating pads, and their gradients (the transposed matrices) are such
// maps. Rows are first added up over the outer axes, then spread along the last one.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "kernels/dispatch.h"

namespace tessera::kernels {

// Output o is the sum of weight[t] * input[index[t]] over t in [begin[o], begin[o + 1]).
struct AxisMap {
  int64_t in = 0, out = 0;
  std::vector<int32_t> begin{0};
  std::vector<int32_t> index;
  std::vector<float> weight;

  void add(int64_t from, float w);  // a tap of the current output; equal inputs are merged
  void next() { begin.push_back(static_cast<int32_t>(index.size())); }
  bool picks() const;  // one tap of weight one per output
};

AxisMap transposed(const AxisMap& a);

enum class MapMode : uint8_t {
  kNearest,
  kNearestExact,
  kLinear,
  kCubic,
  kSmoothLinear,  // antialiased
  kSmoothCubic,
  kReflect,
  kReplicate,
  kCircular,
};
// `text` is nearest, nearest-exact, linear, cubic, linear-aa, cubic-aa, reflect, replicate or
// circular; throws for others.
MapMode map_mode(std::string_view text);
// `number` is the factor the user gave (0: none), for paddings the inputs added below. `gradient`
// asks for the map whose transpose is ATen's gradient.
AxisMap axis_map(MapMode mode, int64_t in, int64_t out, bool align_corners, double number,
                 bool gradient);

// The last axis prepared for vectors: runs that are copied, and blocks of up to 16 outputs whose
// taps are gathered.
struct RowTap {
  int32_t base = 0;        // first input
  int32_t reach = 0;       // inputs from base on that some lane reads
  uint16_t lanes = 0;      // which outputs have this tap
  bool ones = false;       // all weights are one
  bool whole = false;      // 16 inputs from base on are there to be read
  int32_t index[16] = {};  // from base
  float weight[16] = {};
};
struct RowPiece {
  int32_t first = 0, count = 0;  // outputs
  int32_t from = 0;              // copies: first input
  int32_t tap = 0, taps = 0;     // of the blocks; none: a copy
};
struct RowPlan {
  int64_t in = 0, out = 0;
  std::vector<RowPiece> pieces;
  std::vector<RowTap> taps;
};
RowPlan row_plan(const AxisMap& a);

struct ResampleKernels {
  // to[i] = sum of weight[t] * x[offset[t] + i], i < n; x of type f32, f16 or bf16.
  void (*add_rows)(DType type, const void* x, const int64_t* offset, const float* weight, int taps,
                   int64_t n, float* to);
  // Rows along the contiguous last axis: row r is read from rows + offset[r] and written
  // `plan.out` elements after the row before.
  void (*spread)(DType type, const RowPlan& plan, const float* rows, const int64_t* offset,
                 int64_t count, void* to);
  // One row whose pixels are `inner` contiguous elements.
  void (*spread_inner)(DType type, const AxisMap& map, const float* row, int64_t inner, void* to);
};
TESSERA_KERNELS(ResampleKernels, resample)

}  // namespace tessera::kernels
