// SPDX-License-Identifier: Apache-2.0
#include "kernels/gemm_plain.h"
#include "kernels/plain_tile.h"

namespace tessera::kernels::TESSERA_ISA {
namespace {

// Integers are passed as unsigned: they wrap. T computes, S is stored; processors cannot multiply
// vectors of bytes.
template <typename T, typename S = T>
void product(const PlainGemm& g, const void* a_, const void* b_, void* c_, int64_t begin,
             int64_t end, void* scratch) {
  constexpr int64_t kColumns = 2 * Wide<T>::kWidth, kRows = 4;
  const S *a = static_cast<const S*>(a_), *b = static_cast<const S*>(b_);
  S* c = static_cast<S*>(c_);
  T *tile = static_cast<T*>(scratch), *panel = tile + kRows * kColumns;
  for (int64_t j = 0; j < g.n; j += kColumns) {
    const int64_t columns = g.n - j < kColumns ? g.n - j : kColumns;
    for (int64_t p = 0; p < g.k; ++p) {
      const S* from = b + p * g.b_rs + j * g.b_cs;
      T* to = panel + p * kColumns;
      for (int64_t q = 0; q < columns; ++q) to[q] = from[q * g.b_cs];
      for (int64_t q = columns; q < kColumns; ++q) to[q] = 0;
    }
    for (int64_t i = begin; i < end; i += kRows) {
      const int64_t rows = end - i < kRows ? end - i : kRows;
      plain_product<T, false>(a + i * g.a_rs, g.a_rs, g.a_cs, panel, kColumns, tile, kColumns, rows,
                              kColumns, g.k);
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t q = 0; q < columns; ++q)
          c[(i + r) * g.c_rs + (j + q) * g.c_cs] = static_cast<S>(tile[r * kColumns + q]);
    }
  }
}

PlainGemmFn find(DType dtype) {
  switch (dtype) {
    case DType::F64:
      return product<double>;
    case DType::I64:
      return product<uint64_t>;
    case DType::I32:
      return product<uint32_t>;
    case DType::I16:
      return product<uint16_t>;
    case DType::I8:
    case DType::U8:
      return product<uint16_t, uint8_t>;  // the same bits modulo 2^8
    default:
      return nullptr;
  }
}

}  // namespace

const PlainGemmKernels plain_gemm_table{find};

}  // namespace tessera::kernels::TESSERA_ISA
