// SPDX-License-Identifier: Apache-2.0
// Moving elements of any size: strided copies and fills, rows added to rows, and zeroing memory too
// large for the cache.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"

namespace tessera::kernels {

// dst[i * dst_step] = src[i * src_step] for i < n; steps in elements of `size` bytes (1, 2, 4, 8 or
// 16).
void copy_strided(const std::byte* src, int64_t src_step, std::byte* dst, int64_t dst_step,
                  int64_t n, int64_t size);

// dst[i * step] = the element at `value`.
void fill_strided(const std::byte* value, std::byte* dst, int64_t step, int64_t n, int64_t size);

// How a new element meets the one that is there. Products and sums of integers wrap; a NaN stays.
enum class Combine : uint8_t { kSet, kSum, kProd, kMax, kMin };

// dst[i * dst_step] = combine(dst[i * dst_step], src[i * src_step]) in the arithmetic of `dtype`.
void combine_strided(const std::byte* src, int64_t src_step, std::byte* dst, int64_t dst_step,
                     int64_t n, DType dtype, Combine how);
// Whether elements of `dtype` can be combined by more than kSet.
bool has_arithmetic(DType dtype);

// dst[i] += src[i] * scale
void add_scaled(const float* src, float* dst, int64_t n, float scale);

// Rows of a table, `row_step` elements apart: out[j] = sum of table[rows[k]][j] * weights[k] over
// k < n, for j < width; all weights are 1 if there are none.
void sum_rows(const float* table, int64_t row_step, const int64_t* rows, const float* weights,
              int64_t n, float* out, int64_t width);

// A walk along an index tensor: entry k (k < n) names element index[k * index_step] of a dim of
// size `extent` in the target, whose first element for entry k is k * target_step and whose
// elements are `dim_step` apart.
struct IndexWalk {
  const std::byte* index;
  DType index_dtype;
  int64_t index_step, n, extent, target_step, dim_step;
};
// Each returns n, or the first entry whose index is out of range (everything before it is done).
// other[k * other_step] = target[...], elements of `size` bytes
int64_t gather_walk(const IndexWalk& w, const std::byte* target, std::byte* other,
                    int64_t other_step, int64_t size);
// target[...] = combine(target[...], other[k * other_step])
int64_t scatter_walk(const IndexWalk& w, std::byte* target, const std::byte* other,
                     int64_t other_step, DType dtype, Combine how);

// Whether all entries are in range, where a negative index counts from the end if `wraps`.
bool indices_in_range(const IndexWalk& w, bool wraps);
// offsets[k] += index[k * index_step] * dim_step. Returns like a walk.
int64_t add_offsets(const IndexWalk& w, bool wraps, int64_t* offsets);
// Offsets of runs of neighbouring elements in a target; those outside [low, high) are passed over.
// Without bounds nothing is checked.
struct Offsets {
  const int64_t* at;
  int64_t n;
  bool bounded = false;
  int64_t low = 0, high = 0;
};
// For j < run: other[k * other_step + j] = target[offset k + j]
void gather_runs(const Offsets& offsets, int64_t run, const std::byte* target, std::byte* other,
                 int64_t other_step, int64_t size);
// For j < run: target[offset k + j] = combine(target[offset k + j], other[k * other_step + j])
void scatter_runs(const Offsets& offsets, int64_t run, std::byte* target, const std::byte* other,
                  int64_t other_step, DType dtype, Combine how);

// `rows` rows of n elements; steps of rows and of elements within rows.
void copy_rows(const std::byte* src, int64_t src_row, int64_t src_step, std::byte* dst,
               int64_t dst_row, int64_t dst_step, int64_t rows, int64_t n, int64_t size);

// Zeroes without reading the memory first when it is large.
void zero_bytes(std::byte* dst, int64_t bytes);

// Element i of an index tensor (i64, i32, i16, i8, u8).
inline int64_t read_index(const std::byte* p, int64_t i, DType dtype) {
  switch (dtype) {
    case DType::I64:
      return reinterpret_cast<const int64_t*>(p)[i];
    case DType::I32:
      return reinterpret_cast<const int32_t*>(p)[i];
    case DType::I16:
      return reinterpret_cast<const int16_t*>(p)[i];
    case DType::I8:
      return reinterpret_cast<const int8_t*>(p)[i];
    default:
      return reinterpret_cast<const uint8_t*>(p)[i];
  }
}

}  // namespace tessera::kernels
