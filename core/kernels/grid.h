// SPDX-License-Identifier: Apache-2.0
// Sampling of row-major images at positions given as data, in two or three dims. Sixteen points at
// a time: their taps (input offsets and weights) are worked out once and used for all channels.
#pragma once

#include <cstdint>

#include "kernels/dispatch.h"

namespace tessera::kernels {

enum class GridMode : uint8_t { kLinear, kNearest, kCubic };  // as ATen numbers them
enum class GridPadding : uint8_t { kZeros, kBorder, kReflect };

struct GridShape {
  int axes = 2;
  int64_t in[3] = {1, 1, 1};  // depth, height, width
  int64_t points = 0;         // per image
  GridMode mode = GridMode::kLinear;
  GridPadding padding = GridPadding::kZeros;
  bool align_corners = false;

  int64_t area() const { return in[0] * in[1] * in[2]; }
};

// Pointers are to one image: x, gx [channels][area], y, gy [channels][points], grid, ggrid
// [points][axes] with the width first. Only points [begin, end) are read.
struct GridKernels {
  void (*forward)(const GridShape& s, const float* x, const float* grid, int64_t channels,
                  int64_t begin, int64_t end, float* y);
  void (*grid_grad)(const GridShape& s, const float* gy, const float* x, const float* grid,
                    int64_t channels, int64_t begin, int64_t end, float* ggrid);
  // Adds to gx.
  void (*input_grad)(const GridShape& s, const float* gy, const float* grid, int64_t channels,
                     int64_t begin, int64_t end, float* gx);
};
TESSERA_KERNELS(GridKernels, grid)

}  // namespace tessera::kernels
