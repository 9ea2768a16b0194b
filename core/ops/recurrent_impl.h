// SPDX-License-Identifier: Apache-2.0
// What the forward and the backward kernels of recurrent layers share: sizes, which rows a time
// step has, how a team divides a layer, and products with packed weights.
#pragma once

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "kernels/gemm.h"
#include "kernels/recurrent.h"
#include "ops/kernel.h"
#include "ops/widened.h"

namespace tessera {

// One layer in one direction. A batch is a tensor [steps, batch, ...] or, if packed, [rows, ...]
// with the sizes of the steps, which never grow.
struct Layer {
  kernels::Cell cell = kernels::Cell::kLstm;
  int64_t batch = 0, hidden = 0, width = 0;  // width: of the hidden state, less with projection
  bool reverse = false, projected = false;
  std::vector<int64_t> sizes, first;  // rows of each step, and the number of rows before them

  int64_t steps() const { return static_cast<int64_t>(sizes.size()); }
  int64_t rows() const { return first.back() + sizes.back(); }
  int64_t gates() const {
    return cell == kernels::Cell::kLstm ? 4 : cell == kernels::Cell::kGru ? 3 : 1;
  }
  // A step in the order of computation.
  int64_t time(int64_t k) const { return reverse ? steps() - 1 - k : k; }
  // Rows of step k that go on from the step before; the others begin with the initial state.
  int64_t continuing(int64_t k) const {
    return k == 0 ? 0 : std::min(sizes[time(k)], sizes[time(k - 1)]);
  }
};

// Argument positions of an op of the family.
struct RecurrentArgs {
  size_t rows, w_hh, w_hr, sizes;  // `rows` is a tensor with one entry per row; w_hr 0: none
};
RecurrentArgs recurrent_args(Op op);
// `shape_of(arg)` gives the shape of an operand, empty if it is absent.
Layer layer_of(Op op, const Args& args, const std::function<Dims(size_t)>& shape_of);
Layer layer_of(const StepDesc& d);

KernelPtr make_recurrent_forward(const StepDesc& d);
KernelPtr make_recurrent_backward(const StepDesc& d);

// A thread's part of every step: all rows and some units, with a barrier between steps, or some
// rows and all units without one.
struct Part {
  int64_t row0, row1, unit0, unit1, out0, out1;  // `out`: range of the hidden state
};
bool split_by_rows(const Layer& l, int threads);
Part part_of(const Layer& l, const RunCtx& c);
bool too_small_to_share(const Layer& l);

// Rows of a sequence in f32: in place, or, if it is in half precision, the current step's in
// scratch.
struct StepRows {
  TensorRef ref;
  int64_t at = -1;  // in scratch, in floats; [batch][width]
  int64_t width = 0;

  // `take(n)` gives the address of `n` floats in scratch.
  template <typename F>
  static StepRows of(const TensorRef& t, int64_t width, const Layer& l, F& take) {
    StepRows r{t, -1, width};
    if (r.half()) r.at = take(l.batch * width);
    return r;
  }

  bool half() const { return is_half(ref); }
  std::byte* bytes(const RunCtx& c, int64_t element) const {
    return c.ptr<std::byte>(ref) + element * size_of(ref.dtype);
  }
  float* buffer(const RunCtx& c, int64_t row) const {
    return reinterpret_cast<float*>(c.scratch) + at + row * width;
  }
  // Row `row` of the step that begins at row `first` of the sequence.
  int64_t element(const Layer& l, int64_t t, int64_t row) const {
    if (ref.shape.size() == 2) return (l.first[t] + row) * ref.strides[0];
    return t * ref.strides[0] + row * ref.strides[1];
  }
  int64_t step() const { return half() ? width : ref.strides[ref.strides.size() - 2]; }
  float* row(const RunCtx& c, const Layer& l, int64_t t, int64_t r) const {
    return half() ? buffer(c, r) : c.ptr<float>(ref) + element(l, t, r);
  }
  // Brings rows [begin, end) into scratch, or back: columns [from, to) of each of `parts` parts.
  void load(const RunCtx& c, const Layer& l, int64_t t, int64_t begin, int64_t end, int64_t from,
            int64_t to, int64_t parts = 1) const {
    for (int64_t r = begin; half() && r < end; ++r)
      for (int64_t k = from, g = 0; g < parts; ++g, k += width / parts)
        widen_row(bytes(c, element(l, t, r) + k), ref.dtype, 1, buffer(c, r) + k, to - from);
  }
  void store(const RunCtx& c, const Layer& l, int64_t t, int64_t begin, int64_t end, int64_t from,
             int64_t to, int64_t parts = 1) const {
    for (int64_t r = begin; half() && r < end; ++r)
      for (int64_t k = from, g = 0; g < parts; ++g, k += width / parts)
        narrow_row(buffer(c, r) + k, bytes(c, element(l, t, r) + k), ref.dtype, 1, to - from);
  }
};

// Leading dimension that neither wastes much nor maps the rows of a tile to the same cache lines.
inline int64_t padded(int64_t n) {
  return (n + 15) / 16 * 16 + 16;
}

// Weights [k][cols] in panels of one register tile; element (col, k) is at col * col_stride + k *
// k_stride.
class PackedWeights {
 public:
  PackedWeights() = default;
  PackedWeights(int64_t cols, int64_t k) : cols_(cols), k_(k) {}
  int64_t floats() const { return (cols_ + tile() - 1) / tile() * tile() * k_; }
  // Columns [begin, end), begin a multiple of the tile.
  void pack(const float* w, int64_t col_stride, int64_t k_stride, int64_t begin, int64_t end,
            float* to) const {
    if (begin < end)
      kernels::pack_kernels().from[0].cols(w + begin * col_stride, col_stride, k_stride,
                                           end - begin, k_, to + begin * k_, k_ * tile());
  }
  // c[i][col - begin] (+)= sum_k x[i][k] * w[col][k]
  void product(const float* packed, const float* x, int64_t x_row, int64_t rows, int64_t begin,
               int64_t end, float* c, int64_t c_row, bool accumulate) const {
    if (rows <= 0 || begin >= end) return;
    const kernels::GemmKernels& g = kernels::gemm_kernels();
    kernels::GemmBlock b;
    b.r = x, b.r_stride = x_row, b.rk_stride = 1;
    b.v = packed + begin * k_, b.v_panel = k_ * tile();
    b.c = c, b.ldc = c_row;
    b.rows = rows, b.cols = end - begin, b.k = k_;
    b.tile_rows = b.cols <= g.vector ? g.tall_rows : g.tile_rows;
    b.accumulate = accumulate;
    g.block(b);
  }
  static int64_t tile() { return kernels::gemm_kernels().tile_cols; }

 private:
  int64_t cols_ = 0, k_ = 0;
};

}  // namespace tessera
