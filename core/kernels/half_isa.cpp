// SPDX-License-Identifier: Apache-2.0
// Conversions between half precision and f32, sixteen elements at a time.
#include "kernels/half.h"
#include "kernels/simd.h"

namespace tessera::kernels::TESSERA_ISA {
namespace {

void widen_f16(const uint16_t* from, float* to, int64_t n) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) store(to + i, load_f16(from + i));
  for (; i < n; ++i) to[i] = f16_to_f32(from[i]);
}
void widen_bf16(const uint16_t* from, float* to, int64_t n) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) store(to + i, load_bf16(from + i));
  for (; i < n; ++i) to[i] = bf16_to_f32(from[i]);
}
void narrow_f16(const float* from, uint16_t* to, int64_t n) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) store_f16(to + i, load(from + i));
  for (; i < n; ++i) to[i] = f32_to_f16(from[i]);
}
void narrow_bf16(const float* from, uint16_t* to, int64_t n) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) store_bf16(to + i, load(from + i));
  for (; i < n; ++i) to[i] = f32_to_bf16(from[i]);
}

}  // namespace

const HalfKernels half_table{widen_f16, widen_bf16, narrow_f16, narrow_bf16};

}  // namespace tessera::kernels::TESSERA_ISA
