// SPDX-License-Identifier: Apache-2.0
// Matrix product C[m,n] = A[m,k] * B[k,n] in f32, of operands in f32, f16 or bf16. A plan is made
// once from the shape and the strides; any number of threads then runs it together without
// synchronising, each computing its own rectangle of C. Every element of C is one fixed chain of
// fused multiply-adds, so results do not depend on the number of threads.
//
// Inside, one operand is read as vectors along the columns, and the other element by element,
// broadcast. If the plan is `swapped`, rows and columns are those of the transpose of C: a product
// with few rows (a batch of 16) and a weight stored [out, in] then reads the weight in place,
// without packing. Operands in half precision are always packed, and converted by it.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "kernels/dispatch.h"

namespace tessera::kernels {

// Strides in elements. Each of A and B has one unit stride (or a dimension of size one); C
// likewise.
struct GemmShape {
  int64_t m = 0, n = 0, k = 0;
  int64_t a_rs = 0, a_cs = 1;
  int64_t b_rs = 0, b_cs = 1;
  int64_t c_rs = 0, c_cs = 1;
  DType dtype = DType::F32;  // of A and B: F32, F16 or BF16
};

// How operands lie in their packed panels: f32 from any type, or two steps of bf16 per element.
enum class GemmFormat : uint8_t { kF32, kF16, kBF16, kPairs };

// What to do with a finished block of the product instead of storing it in C. The product of (row
// i, column j) lies at tile[i * ld + j], where tile is already shifted for absolute indices and ld
// is GemmPlan::tile_ld.
struct GemmSink {
  void (*run)(void* arg, float* tile, int64_t row0, int64_t row1, int64_t col0,
              int64_t col1) = nullptr;
  void* arg = nullptr;
};

struct GemmPlan {
  GemmShape shape;
  bool sink = false;     // results go to a GemmSink
  bool swapped = false;  // the transpose of C is computed
  GemmFormat format = GemmFormat::kF32;
  // In terms of the chosen orientation:
  int64_t rows = 0, cols = 0, k = 0;
  int64_t r_stride = 0, rk_stride = 0;  // broadcast operand: per row, per k
  int64_t v_stride = 0, vk_stride = 0;  // vector operand: per column, per k
  int64_t out_rs = 0, out_cs = 0;       // C: per row, per column
  bool pack_rows = false, pack_cols = false;
  bool through_tile =
      false;          // blocks are computed in scratch, then transposed into C or given to the sink
  bool dots = false;  // too few columns to fill a vector: vectors run along k instead
  int tile_rows = 0;  // height of a register tile
  int64_t k_block = 0;  // reduction steps between two visits of a C tile
  int64_t k_super = 0;  // reduction steps for which the vector operand is packed at a time
  int64_t row_block = 0, col_block = 0;  // size of a block of C
  int64_t tile_ld = 0;                   // leading dimension of what the sink sees
};

// Strides of C are ignored with a sink.
GemmPlan make_gemm_plan(const GemmShape& shape, bool sink = false);

// The same with the orientation given, for tests and measurements.
GemmPlan make_gemm_plan(const GemmShape& shape, bool sink, bool swapped);

// Scratch of one thread in a team of `threads`, in bytes (a multiple of 64).
int64_t gemm_scratch_bytes(const GemmPlan& plan, int threads);

// The part of thread `thread` of `threads`; `scratch` is that thread's own, 64-byte aligned.
void run_gemm(const GemmPlan& plan, const void* a, const void* b, float* c, int thread, int threads,
              void* scratch, const GemmSink* sink = nullptr);

// One block of register tiles; vector operand [k][cols] and C with unit stride along the columns.
struct GemmBlock {
  const float* r = nullptr;  // broadcast operand
  int64_t r_stride = 0;  // per row; if 1, rk_stride is used per k, otherwise the k stride must be 1
  int64_t rk_stride = 0;
  int64_t r_panel = 0;  // if not 0: packed panels of `tile_rows` rows, this many elements apart
  const float* v = nullptr;  // vector operand, row k at v + k * vk_stride
  int64_t vk_stride = 0;
  int64_t v_panel =
      0;  // if not 0: packed panels of one tile width, this many elements apart, zero-padded
  float* c = nullptr;
  int64_t ldc = 0;
  int64_t rows = 0, cols = 0, k = 0;  // k in packed elements
  int tile_rows = 0;
  bool accumulate = false;
  bool pairs = false;  // both operands are packed pairs of bf16
};

struct GemmKernels {
  int vector;     // floats per register
  int tile_cols;  // columns of a full register tile (two vectors)
  int tile_rows;  // rows of a full register tile
  int tall_rows;  // rows of a tile one vector wide
  void (*block)(const GemmBlock&);
  // c[i * c_rs + j * c_cs] = sum_k r[i * r_stride + k] * v[j * v_stride + k]
  void (*dots)(const float* r, int64_t r_stride, const float* v, int64_t v_stride, int64_t rows,
               int64_t cols, int64_t k, float* c, int64_t c_rs, int64_t c_cs);
};

struct GemmPack {
  // dst[k][tile_cols] panels, zero-padded, from src(col, k) = src[col * v_stride + k *
  // k_stride].
  void (*cols)(const void* src, int64_t v_stride, int64_t k_stride, int64_t cols, int64_t k,
               float* dst, int64_t panel);
  // dst[k][tile_rows] panels of `rows` rows cut evenly as block() cuts them.
  void (*rows)(const void* src, int64_t r_stride, int64_t k_stride, int64_t rows, int64_t k,
               int tile_rows, float* dst, int64_t panel);
};

struct PackKernels {
  GemmPack from[4];  // by GemmFormat
  // dst[j * dst_ld + i] = src[i * src_ld + j] for i < rows, j < cols.
  void (*transpose)(const float* src, int64_t src_ld, float* dst, int64_t dst_ld, int64_t rows,
                    int64_t cols);
};
TESSERA_KERNELS(GemmKernels, gemm)
TESSERA_KERNELS(PackKernels, pack)

}  // namespace tessera::kernels
