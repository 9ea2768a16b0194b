// SPDX-License-Identifier: Apache-2.0
// Building blocks of the normalisations: whole rows for layer norm; and for group and batch norm
// moments, affine maps and gradient sums over contiguous rows or over strided positions with up to
// sixteen neighbours in the lanes. Variances are taken in two passes around the mean.
#pragma once

#include <cstdint>

#include "kernels/dispatch.h"

namespace tessera::kernels {

// Positions of a strided walk: `outer` times `inner`; each tensor has its own steps.
struct Walk {
  int64_t outer = 1, inner = 1;
};
struct WalkStep {
  int64_t outer = 0, inner = 0;
};

struct LayerNormKernels {
  // `rows` contiguous rows of `len`; w and b may be null.
  void (*forward)(const float* x, const float* w, const float* b, float* y, float* mean,
                  float* rstd, int64_t rows, int64_t len, float eps);
  // Adds the rows' share to dw and db (both may be null, as may dx and w).
  void (*backward)(const float* g, const float* x, const float* mean, const float* rstd,
                   const float* w, float* dx, float* dw, float* db, int64_t rows, int64_t len);
};
TESSERA_KERNELS(LayerNormKernels, layer_norm)

// Of group and batch norm.
struct NormKernels {
  // Rows of `len` contiguous elements, `step` apart.
  void (*row_moments)(const float* x, int64_t rows, int64_t step, int64_t len, float* mean,
                      float* var);
  // y = (x - mean) * scale + shift: with the mean inside the shift, equal values would not be zero
  void (*row_affine)(const float* x, int64_t x_step, float* y, int64_t y_step, int64_t rows,
                     int64_t len, float mean, float scale, float shift);
  // sum of g, and of g * (x - mean)
  void (*row_grad_sums)(const float* g, int64_t g_step, const float* x, int64_t x_step,
                        int64_t rows, int64_t len, float mean, float* sum_g, float* sum_gx);
  // dx = p * g + q * (x - mean) + r
  void (*row_grad)(const float* g, int64_t g_step, const float* x, int64_t x_step, float* dx,
                   int64_t dx_step, int64_t rows, int64_t len, float p, float q, float mean,
                   float r);

  // The same with `lanes` (1..16) contiguous neighbours at each position; results and factors are
  // arrays of 16.
  void (*lane_moments)(const float* x, Walk walk, WalkStep xs, int lanes, float* mean, float* var);
  void (*lane_affine)(const float* x, WalkStep xs, float* y, WalkStep ys, Walk walk, int lanes,
                      const float* mean, const float* scale, const float* shift);
  void (*lane_grad_sums)(const float* g, WalkStep gs, const float* x, WalkStep xs, Walk walk,
                         int lanes, const float* mean, float* sum_g, float* sum_gx);
  void (*lane_grad)(const float* g, WalkStep gs, const float* x, WalkStep xs, float* dx,
                    WalkStep ds, Walk walk, int lanes, const float* p, const float* q,
                    const float* mean, const float* r);
};
TESSERA_KERNELS(NormKernels, norm)

}  // namespace tessera::kernels
