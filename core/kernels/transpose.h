// SPDX-License-Identifier: Apache-2.0
// Transposes a tile of at most 16 x 16 elements; the building block of copies between memory
// orders.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/dispatch.h"

namespace tessera::kernels {

// to[r * 16 + c] = element r of the line at from + c * stride (bytes), for r < rows and c <
// columns, both 1 to 16. What lies in `to` beyond them is undefined; memory past `rows` elements of
// a line is not read.
using TransposeTile = void (*)(const std::byte* from, int64_t stride, int64_t columns, int64_t rows,
                               std::byte* to);

struct TransposeKernels {
  TransposeTile bytes1, bytes2, bytes4, bytes8;
};
TESSERA_KERNELS(TransposeKernels, transpose)

inline TransposeTile transpose_tile(int64_t element_bytes) {
  const TransposeKernels& k = transpose_kernels();
  return element_bytes == 1   ? k.bytes1
         : element_bytes == 2 ? k.bytes2
         : element_bytes == 4 ? k.bytes4
                              : k.bytes8;
}

}  // namespace tessera::kernels
