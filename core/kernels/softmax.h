// SPDX-License-Identifier: Apache-2.0
// Softmax and its gradient over contiguous rows, and over a strided dim with many neighbours in the
// lanes.
#pragma once

#include <cstdint>

#include "kernels/dispatch.h"

namespace tessera::kernels {

struct SoftmaxKernels {
  // `rows` rows of `len` contiguous elements, rows `x_step` and `y_step` apart. x == y is allowed.
  void (*rows)(const float* x, float* y, int64_t rows, int64_t x_step, int64_t y_step, int64_t len,
               bool log);
  void (*rows_grad)(const float* g, const float* y, float* dx, int64_t rows, int64_t g_step,
                    int64_t y_step, int64_t dx_step, int64_t len, bool log);
  // `width` contiguous neighbours, each a softmax over `len` elements `x_step` (`y_step`) apart.
  void (*columns)(const float* x, float* y, int64_t len, int64_t x_step, int64_t y_step,
                  int64_t width, bool log);
  void (*columns_grad)(const float* g, const float* y, float* dx, int64_t len, int64_t g_step,
                       int64_t y_step, int64_t dx_step, int64_t width, bool log);
};

TESSERA_KERNELS(SoftmaxKernels, softmax)

}  // namespace tessera::kernels
