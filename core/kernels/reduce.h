// SPDX-License-Identifier: Apache-2.0
// Reductions of contiguous or strided rows into one partial result, and of many rows into a row of
// partial results. Partial results are wide (double for float sums, i64 for integers), so that
// pieces can be merged in any number.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "kernels/dispatch.h"

namespace tessera::kernels {

enum class ReduceKind : uint8_t { kSum, kProd, kMax, kMin, kAny, kAll, kCount };

// Type of partial results.
enum class PartType : uint8_t { kF64, kF32, kI64, kI32, kU8 };
constexpr int64_t part_size(PartType t) {
  return t == PartType::kF64 || t == PartType::kI64 ? 8 : t == PartType::kU8 ? 1 : 4;
}

struct ReduceFns {
  PartType part;
  void (*init)(void* part, int64_t n);
  // part[k] = part[k] combined with `len` elements `step` apart from x + k * x_step, for n values
  // of k.
  void (*rows)(const void* x, int64_t n, int64_t x_step, int64_t len, int64_t step, void* part);
  // part[w] combined with x[r * row_step + w] over all rows, w < width.
  void (*cols)(const void* x, int64_t rows, int64_t row_step, int64_t width, void* part);
  void (*merge)(void* part, const void* other, int64_t n);
};

struct ArgFns {
  // Index of the first largest (smallest) of `len` elements `step` apart; NaN counts as beyond
  // everything.
  int64_t (*row)(const void* x, int64_t len, int64_t step, bool largest);
  // The same for `width` (at most kArgWidth) neighbours at once over rows `row_step` apart.
  void (*cols)(const void* x, int64_t rows, int64_t row_step, int64_t width, bool largest,
               int64_t* index);
  // Whether element a is beyond element b.
  bool (*beyond)(const void* a, const void* b, bool largest);
};
constexpr int64_t kArgWidth = 256;

// Null for an element type without kernels: f32, f64, bool and the integers have them.
struct ReduceKernels {
  const ReduceFns* (*find)(ReduceKind, DType);
  const ArgFns* (*find_arg)(DType);
};
TESSERA_KERNELS(ReduceKernels, reduce)

}  // namespace tessera::kernels
