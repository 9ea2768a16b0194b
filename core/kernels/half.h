// SPDX-License-Identifier: Apache-2.0
// Rows of f16 and bf16 to f32 and back; results are rounded to nearest even.
#pragma once

#include <cstdint>

#include "kernels/dispatch.h"

namespace tessera::kernels {

struct HalfKernels {
  void (*widen_f16)(const uint16_t* from, float* to, int64_t n);
  void (*widen_bf16)(const uint16_t* from, float* to, int64_t n);
  void (*narrow_f16)(const float* from, uint16_t* to, int64_t n);
  void (*narrow_bf16)(const float* from, uint16_t* to, int64_t n);
};

TESSERA_KERNELS(HalfKernels, half)

}  // namespace tessera::kernels
