// SPDX-License-Identifier: Apache-2.0
// Running results along one dim: sum, product, log of a sum of exponentials, maximum and minimum
// with their places. A piece of a dim continues from a carry, so that long dims can be cut.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace tessera::kernels {

enum class ScanKind : uint8_t { kSum, kProd, kLogSumExp, kMax, kMin };

constexpr int64_t kScanLanes = 128;  // neighbours scanned side by side

// All before a piece, per lane: a running value, and what else the kind needs (place of an extreme,
// scale of a sum of exponentials). Sums of floats are f64, of integers u64,
// which wraps.
struct ScanCarry {
  alignas(64) int64_t value[kScanLanes];
  alignas(64) int64_t other[kScanLanes];
};

// `len` elements along the dim, steps in elements; `first` is the place of the first in the dim.
// Lanes are neighbours in all tensors. Without y only the carry is computed.
struct ScanPiece {
  const void* x = nullptr;
  void* y = nullptr;
  int64_t* index = nullptr;  // extremes only
  int64_t x_step = 1, y_step = 1, index_step = 1;
  int64_t first = 0, len = 0, lanes = 1;
  int64_t rows = 1, x_row = 0, y_row = 0, index_row = 0;  // `rows` only: steps from row to row
};

struct ScanFns {
  void (*init)(ScanCarry* carry, int64_t lanes);
  void (*row)(const ScanPiece& p, ScanCarry* carry);    // one lane
  void (*rows)(ScanPiece p, ScanCarry* carry);          // whole rows, each from the start
  void (*lanes)(const ScanPiece& p, ScanCarry* carry);  // up to kScanLanes
  // carry = before, followed by what carry stands for. Null if pieces cannot be joined exactly.
  void (*join)(ScanCarry* carry, const ScanCarry* before, int64_t lanes);
};

// Null for a type without kernels: f32, f64, bool and the integers have them; exponentials only
// floats.
const ScanFns* scan_fns(ScanKind kind, DType dtype);

struct ScanTable {
  const ScanFns* (*find)(ScanKind, DType);
};

}  // namespace tessera::kernels
