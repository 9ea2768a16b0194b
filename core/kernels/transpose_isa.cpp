// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "kernels/simd.h"
#include "kernels/transpose.h"

namespace tessera::kernels::TESSERA_ISA {
namespace {

// Two-vector shuffles that the processor has as single instructions for 4-byte lanes: unpacking
// within 128-bit quarters by one and by two lanes, then exchanging quarters.
#define TESSERA_LOW1 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29
#define TESSERA_HIGH1 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31
#define TESSERA_LOW2 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29
#define TESSERA_HIGH2 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31
#define TESSERA_QUARTERS01 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23
#define TESSERA_QUARTERS23 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31
#define TESSERA_QUARTERS02 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27
#define TESSERA_QUARTERS13 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31

template <typename V>
TESSERA_INLINE void put(int line, const V& x, std::byte* to) {
  std::memcpy(to + line * static_cast<int64_t>(sizeof(V)), &x, sizeof(V));
}

// All sixteen rows are there.
template <typename V>
TESSERA_INLINE void whole_tile(const std::byte* from, int64_t stride, int64_t columns,
                               std::byte* to) {
  V v[16], t[16];
#pragma GCC unroll 16
  for (int c = 0; c < 16; ++c) {
    std::memcpy(&v[c], from, sizeof(V));
    from +=
        c + 1 < columns ? stride : 0;  // columns past the end repeat the last one: a valid address
  }
#pragma GCC unroll 16
  for (int k = 0; k < 16; k += 2) {
    t[k] = __builtin_shufflevector(v[k], v[k + 1], TESSERA_LOW1);
    t[k + 1] = __builtin_shufflevector(v[k], v[k + 1], TESSERA_HIGH1);
  }
#pragma GCC unroll 16
  for (int k = 0; k < 16; k += 4)
#pragma GCC unroll 2
    for (int pair = 0; pair < 2; ++pair) {
      v[k + 2 * pair] = __builtin_shufflevector(t[k + pair], t[k + 2 + pair], TESSERA_LOW2);
      v[k + 2 * pair + 1] = __builtin_shufflevector(t[k + pair], t[k + 2 + pair], TESSERA_HIGH2);
    }
    // v[4 g + c] holds, in quarter q, element 4 q + c of the lines 4 g .. 4 g + 3.
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    V low0 = __builtin_shufflevector(v[c], v[4 + c], TESSERA_QUARTERS01);
    V low1 = __builtin_shufflevector(v[8 + c], v[12 + c], TESSERA_QUARTERS01);
    V high0 = __builtin_shufflevector(v[c], v[4 + c], TESSERA_QUARTERS23);
    V high1 = __builtin_shufflevector(v[8 + c], v[12 + c], TESSERA_QUARTERS23);
    put(c, __builtin_shufflevector(low0, low1, TESSERA_QUARTERS02), to);
    put(4 + c, __builtin_shufflevector(low0, low1, TESSERA_QUARTERS13), to);
    put(8 + c, __builtin_shufflevector(high0, high1, TESSERA_QUARTERS02), to);
    put(12 + c, __builtin_shufflevector(high0, high1, TESSERA_QUARTERS13), to);
  }
}

// Fewer rows are first copied to where sixteen can be read.
template <typename T, typename V>
TESSERA_INLINE void tile(const std::byte* from, int64_t stride, int64_t columns, int64_t rows,
                         std::byte* to) {
  if (rows == 16) return whole_tile<V>(from, stride, columns, to);
  alignas(64) std::byte lines[16 * sizeof(V)] = {};
  for (int64_t c = 0; c < columns; ++c)
    std::memcpy(lines + c * static_cast<int64_t>(sizeof(V)), from + c * stride,
                static_cast<size_t>(rows) * sizeof(T));
  whole_tile<V>(lines, sizeof(V), columns, to);
}

// Element by element; the compiler does better with this than with vectors of two registers.
template <typename T>
TESSERA_INLINE void plain_tile(const std::byte* from, int64_t stride, int64_t columns, int64_t rows,
                               std::byte* to) {
  T* out = reinterpret_cast<T*>(to);
  for (int64_t c = 0; c < columns; ++c) {
    const T* line = reinterpret_cast<const T*>(from + c * stride);
    for (int64_t r = 0; r < rows; ++r) out[r * 16 + c] = line[r];
  }
}

typedef uint16_t u16x16 __attribute__((vector_size(32)));

void transpose1(const std::byte* from, int64_t stride, int64_t columns, int64_t rows,
                std::byte* to) {
  plain_tile<uint8_t>(from, stride, columns, rows, to);
}
void transpose2(const std::byte* from, int64_t stride, int64_t columns, int64_t rows,
                std::byte* to) {
  tile<uint16_t, u16x16>(from, stride, columns, rows, to);
}
void transpose4(const std::byte* from, int64_t stride, int64_t columns, int64_t rows,
                std::byte* to) {
  // Few columns (the channels of an image) are not worth sixteen loads and sixty-four shuffles.
  if (columns <= 4)
    plain_tile<uint32_t>(from, stride, columns, rows, to);
  else
    tile<uint32_t, u32x16>(from, stride, columns, rows, to);
}

#ifdef __AVX512F__
typedef uint64_t u64x8 __attribute__((vector_size(64)));

// Eight lines of eight elements: pairs of neighbours, then pairs of pairs by halves and quarters.
TESSERA_INLINE void eight_by_eight(const std::byte* from, int64_t stride, std::byte* to) {
  u64x8 v[8], t[8];
#pragma GCC unroll 8
  for (int c = 0; c < 8; ++c) std::memcpy(&v[c], from + c * stride, sizeof(u64x8));
#pragma GCC unroll 4
  for (int k = 0; k < 4; ++k) {
    t[k] = __builtin_shufflevector(v[2 * k], v[2 * k + 1], 0, 8, 2, 10, 4, 12, 6, 14);
    t[4 + k] = __builtin_shufflevector(v[2 * k], v[2 * k + 1], 1, 9, 3, 11, 5, 13, 7, 15);
  }
#pragma GCC unroll 2
  for (int odd = 0; odd < 2; ++odd) {
    const u64x8* u = t + 4 * odd;  // in pair q of u[k]: element 2 q + odd of lines 2 k, 2 k + 1
    u64x8 low0 = __builtin_shufflevector(u[0], u[1], 0, 1, 2, 3, 8, 9, 10, 11);
    u64x8 low1 = __builtin_shufflevector(u[2], u[3], 0, 1, 2, 3, 8, 9, 10, 11);
    u64x8 high0 = __builtin_shufflevector(u[0], u[1], 4, 5, 6, 7, 12, 13, 14, 15);
    u64x8 high1 = __builtin_shufflevector(u[2], u[3], 4, 5, 6, 7, 12, 13, 14, 15);
    put(2 * odd, __builtin_shufflevector(low0, low1, 0, 1, 4, 5, 8, 9, 12, 13), to);
    put(4 + 2 * odd, __builtin_shufflevector(low0, low1, 2, 3, 6, 7, 10, 11, 14, 15), to);
    put(8 + 2 * odd, __builtin_shufflevector(high0, high1, 0, 1, 4, 5, 8, 9, 12, 13), to);
    put(12 + 2 * odd, __builtin_shufflevector(high0, high1, 2, 3, 6, 7, 10, 11, 14, 15), to);
  }
}
#endif

void transpose8(const std::byte* from, int64_t stride, int64_t columns, int64_t rows,
                std::byte* to) {
#ifdef __AVX512F__
  if (columns == 16 && rows == 16) {
    for (int64_t r = 0; r < 16; r += 8)
      for (int64_t c = 0; c < 16; c += 8)
        eight_by_eight(from + c * stride + r * 8, stride, to + (r * 16 + c) * 8);
    return;
  }
#endif
  plain_tile<uint64_t>(from, stride, columns, rows, to);
}

}  // namespace

const TransposeKernels transpose_table{transpose1, transpose2, transpose4, transpose8};

}  // namespace tessera::kernels::TESSERA_ISA
