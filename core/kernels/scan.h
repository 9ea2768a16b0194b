// SPDX-License-Identifier: Apache-2.0
// Running results along one dim: sum, product, log of a sum of exponentials, maximum and minimum
// with their indices. A piece of a dim continues from a carry, so that long dims can be cut.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "kernels/dispatch.h"

namespace tessera::kernels {

enum class ScanKind : uint8_t { kSum, kProd, kLogSumExp, kMax, kMin };

constexpr int64_t kScanColumns = 128;  // neighbours scanned side by side

// All before a piece, per column: a running value, and what else the kind needs (index of an
// extreme, scale of a sum of exponentials). Sums of floats are f64, of integers u64, which wraps.
struct ScanCarry {
  alignas(64) int64_t value[kScanColumns];
  alignas(64) int64_t other[kScanColumns];
};

// `len` elements along the dim, steps in elements; `first` is the index of the first in the dim.
// Columns are neighbours in all tensors. Without y only the carry is computed.
struct ScanPiece {
  const void* x = nullptr;
  void* y = nullptr;
  int64_t* index = nullptr;  // extremes only
  int64_t x_step = 1, y_step = 1, index_step = 1;
  int64_t first = 0, len = 0, columns = 1;
  int64_t rows = 1, x_row = 0, y_row = 0, index_row = 0;  // `rows` only: steps from row to row
};

struct ScanFns {
  void (*init)(ScanCarry* carry, int64_t columns);
  void (*row)(const ScanPiece& p, ScanCarry* carry);      // along one row
  void (*rows)(ScanPiece p, ScanCarry* carry);            // whole rows, each from the start
  void (*columns)(const ScanPiece& p, ScanCarry* carry);  // up to kScanColumns
  // carry = before, followed by what carry stands for. Null if pieces cannot be joined exactly.
  void (*join)(ScanCarry* carry, const ScanCarry* before, int64_t columns);
};

// Null for a type without kernels: f32, f64, bool and the integers have them; exponentials only
// floats.
struct ScanKernels {
  const ScanFns* (*find)(ScanKind, DType);
};
TESSERA_KERNELS(ScanKernels, scan)

}  // namespace tessera::kernels
