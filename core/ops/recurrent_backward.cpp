// SPDX-License-Identifier: Apache-2.0
// Backward kernel of recurrent layers. The gradient of the state lives in the result dh0 from the
// last step to the first: it begins as the gradient of the final state, each step replaces the rows
// it has, and what is left at the end belongs to the initial state. dc0 likewise.
#include "ops/recurrent_impl.h"

namespace tessera {
namespace {

class BackwardKernel final : public Kernel {
 public:
  explicit BackwardKernel(const StepDesc& d) : l_(layer_of(d)) {
    const RecurrentArgs at = recurrent_args(d.op);
    auto input = [&](size_t arg) {
      const int i = d.args.operand_or_none(arg);
      return i < 0 ? TensorRef{} : d.inputs[i];
    };
    has_gy_ = d.args.has(0);
    has_ghn_ = d.args.has(1), ghn_ = input(1);
    lstm_ = l_.cell == kernels::Cell::kLstm, gru_ = l_.cell == kernels::Cell::kGru;
    w_hh_ = input(at.w_hh);
    dh_ = d.outputs[1];
    if (lstm_) {
      has_gcn_ = d.args.has(2), gcn_ = input(2);
      has_start_ = d.args.has(3), start_ = input(3);
      if (l_.projected) w_hr_ = input(at.w_hr);
      cells_ = input(6), gates_ = input(7);
      dc_ = d.outputs[2];
    } else if (gru_) {
      gates_ = input(5);
      has_start_ = d.args.has(3), start_ = input(3);
    }
    wide_ = l_.gates() * l_.hidden;
    gates_row_ = l_.gates() > 1 ? 4 * l_.hidden : l_.width;
    state_weights_ = PackedWeights(l_.width, wide_);
    raw_weights_ = PackedWeights(l_.hidden, l_.width);
    ld_ = padded(wide_), raw_ld_ = padded(l_.hidden);
    auto take = [&](int64_t n) {
      const int64_t at_now = floats_;
      floats_ += (n + 15) / 16 * 16;
      return at_now;
    };
    auto rows = [&](const TensorRef& t, int64_t width) { return StepRows::of(t, width, l_, take); };
    gy_ = rows(input(0), l_.width);
    dx_ = rows(d.outputs[0], wide_);
    if (l_.projected) dproj_ = rows(d.outputs[3], l_.width);
    if (gru_) dproduct_ = rows(d.outputs[2], wide_);
    states_ = rows(lstm_ ? cells_ : input(2), lstm_ ? l_.hidden : l_.width);
    if (!lstm_ && !gru_) outputs_ = rows(input(2), l_.width);
    packed_at_ = take(state_weights_.floats());
    copy_at_ = take(2 * l_.batch * ld_);
    if (l_.projected) {
      projection_at_ = take(raw_weights_.floats());
      raw_at_ = take(l_.batch * raw_ld_);
    }
  }

  bool single_thread() const override { return too_small_to_share(l_); }
  int64_t scratch_bytes(int) const override { return floats_ * 4; }

  void run(const RunCtx& c) const override {
    const Part part = part_of(l_, c);
    const bool by_rows = split_by_rows(l_, c.threads);
    pack(c, part, by_rows);
    start(c, part, dh_, has_ghn_ ? &ghn_ : nullptr, part.out0, part.out1);
    if (lstm_) start(c, part, dc_, has_gcn_ ? &gcn_ : nullptr, part.unit0, part.unit1);
    for (int64_t k = l_.steps() - 1; k >= 0; --k) {
      const int64_t goes_on = l_.continuing(k), size = l_.sizes[l_.time(k)];
      if (l_.projected) {
        output_gradient(c, part, k);
        if (!by_rows) c.barrier();
        through_projection(c, part, k);
      }
      cells(c, part, k, 0, goes_on, true);
      cells(c, part, k, goes_on, size, false);
      if (!by_rows) c.barrier();
      const int64_t rows = std::min(part.row1, size) - part.row0;
      state_weights_.product(scratch(c, packed_at_), copy_of(c, k, part.row0), ld_, rows, part.out0,
                             part.out1, c.ptr<float>(dh_) + part.row0 * l_.width + part.out0,
                             l_.width, gru_);
    }
  }

 private:
  float* scratch(const RunCtx& c, int64_t at) const {
    return reinterpret_cast<float*>(c.scratch) + at;
  }
  // Gradients of the gates of step k; the other half may still be read when they are written.
  float* copy_of(const RunCtx& c, int64_t k, int64_t row) const {
    return scratch(c, copy_at_) + ((k & 1) * l_.batch + row) * ld_;
  }
  void pack(const RunCtx& c, const Part& part, bool by_rows) const {
    const int64_t tile = PackedWeights::tile();
    auto outs = by_rows ? thread_range(c, l_.width, tile) : std::pair(part.out0, part.out1);
    state_weights_.pack(c.ptr<float>(w_hh_), 1, l_.width, outs.first, outs.second,
                        scratch(c, packed_at_));
    if (l_.projected) {
      auto units = by_rows ? thread_range(c, l_.hidden, tile) : std::pair(part.unit0, part.unit1);
      raw_weights_.pack(c.ptr<float>(w_hr_), 1, l_.hidden, units.first, units.second,
                        scratch(c, projection_at_));
    }
    if (by_rows) c.barrier();
  }

  void start(const RunCtx& c, const Part& part, const TensorRef& to, const TensorRef* from,
             int64_t begin, int64_t end) const {
    for (int64_t r = part.row0; r < part.row1; ++r) {
      float* row = c.ptr<float>(to) + r * to.strides[0];
      if (from == nullptr)
        std::fill(row + begin, row + end, 0.0f);
      else
        std::copy_n(c.ptr<float>(*from) + r * to.strides[0] + begin, end - begin, row + begin);
    }
  }

  // What flows into the projected output of step k, from outside and from the next step.
  void output_gradient(const RunCtx& c, const Part& part, int64_t k) const {
    const int64_t t = l_.time(k), end = std::min(part.row1, l_.sizes[t]);
    if (has_gy_) gy_.load(c, l_, t, part.row0, end, part.out0, part.out1);
    for (int64_t r = part.row0; r < end; ++r) {
      const float* dh = c.ptr<float>(dh_) + r * l_.width;
      const float* gy = has_gy_ ? gy_.row(c, l_, t, r) : nullptr;
      float* to = dproj_.row(c, l_, t, r);
      for (int64_t i = part.out0; i < part.out1; ++i) to[i] = dh[i] + (gy ? gy[i] : 0.0f);
    }
    dproj_.store(c, l_, t, part.row0, end, part.out0, part.out1);
  }

  void through_projection(const RunCtx& c, const Part& part, int64_t k) const {
    const int64_t t = l_.time(k), rows = std::min(part.row1, l_.sizes[t]) - part.row0;
    raw_weights_.product(scratch(c, projection_at_), dproj_.row(c, l_, t, part.row0), l_.width,
                         rows, part.unit0, part.unit1,
                         scratch(c, raw_at_) + part.row0 * raw_ld_ + part.unit0, raw_ld_, false);
  }

  void cells(const RunCtx& c, const Part& part, int64_t k, int64_t begin, int64_t end,
             bool goes_on) const {
    begin = std::max(begin, part.row0), end = std::min(end, part.row1);
    if (begin >= end) return;
    const int64_t t = l_.time(k), row = l_.first[t] + begin, unit = part.unit0;
    kernels::CellBackward b;
    b.rows = end - begin, b.units = part.unit1 - unit, b.hidden = l_.hidden;
    if (l_.projected) {
      b.dh = scratch(c, raw_at_) + begin * raw_ld_ + unit, b.dh_row = raw_ld_;
    } else {
      b.dh = c.ptr<float>(dh_) + begin * l_.width + unit, b.dh_row = l_.width;
      if (has_gy_) {
        gy_.load(c, l_, t, begin, end, unit, part.unit1);
        b.gy = gy_.row(c, l_, t, begin) + unit, b.gy_row = gy_.step();
      }
    }
    if (lstm_ || gru_) {
      b.gates = c.ptr<float>(gates_) + row * gates_row_ + unit;
    } else {
      outputs_.load(c, l_, t, begin, end, unit, part.unit1);
      b.gates = outputs_.row(c, l_, t, begin) + unit;
    }
    b.gates_row = gates_row_;
    b.state_row = states_.width;
    if (goes_on) {
      const int64_t before = l_.time(k - 1);
      states_.load(c, l_, before, begin, end, unit, part.unit1);
      b.state = states_.row(c, l_, before, begin) + unit;
    } else if (has_start_) {
      b.state = c.ptr<float>(start_) + begin * states_.width + unit;
    }
    if (lstm_) {
      b.c = c.ptr<float>(cells_) + row * l_.hidden + unit;
      b.dc = c.ptr<float>(dc_) + begin * l_.hidden + unit;
      b.c_row = b.dc_row = l_.hidden;
    }
    b.dx = dx_.row(c, l_, t, begin) + unit, b.dx_row = wide_;
    if (gru_) b.dp = dproduct_.row(c, l_, t, begin) + unit, b.dp_row = wide_;
    b.copy = copy_of(c, k, begin) + unit, b.copy_row = ld_;
    kernels::recurrent_kernels().backward[static_cast<int>(l_.cell)](b);
    dx_.store(c, l_, t, begin, end, unit, part.unit1, l_.gates());
    if (gru_) dproduct_.store(c, l_, t, begin, end, unit, part.unit1, l_.gates());
  }

  Layer l_;
  TensorRef ghn_, gcn_, start_, w_hh_, w_hr_, cells_, gates_, dh_, dc_;
  StepRows gy_, states_, outputs_, dx_, dproj_, dproduct_;  // states_: cells, or outputs before
  bool has_gy_ = false, has_ghn_ = false, has_gcn_ = false, has_start_ = false;
  bool lstm_ = false, gru_ = false;
  PackedWeights state_weights_, raw_weights_;
  int64_t wide_ = 0, gates_row_ = 0, ld_ = 0, raw_ld_ = 0, floats_ = 0;
  int64_t packed_at_ = 0, copy_at_ = 0, projection_at_ = 0, raw_at_ = 0;
};

}  // namespace

KernelPtr make_recurrent_backward(const StepDesc& d) {
  return std::make_unique<BackwardKernel>(d);
}

}  // namespace tessera
