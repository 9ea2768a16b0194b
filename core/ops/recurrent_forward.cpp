// SPDX-License-Identifier: Apache-2.0
// Forward kernel of recurrent layers: per step a product with the last state, then the gates.
#include "ops/recurrent_impl.h"

namespace tessera {
namespace {

class ForwardKernel final : public Kernel {
 public:
  explicit ForwardKernel(const StepDesc& d) : l_(layer_of(d)) {
    const RecurrentArgs at = recurrent_args(d.op);
    auto input = [&](size_t arg) {
      const int i = d.args.operand_or_none(arg);
      return i < 0 ? nullptr : &d.inputs[i];
    };
    auto keep = [](TensorRef& to, const TensorRef* from) {
      if (from != nullptr) to = *from;
      return from != nullptr;
    };
    has_h0_ = keep(h0_, input(1));
    lstm_ = l_.cell == kernels::Cell::kLstm;
    if (lstm_) has_c0_ = keep(c0_, input(2));
    w_hh_ = *input(at.w_hh);
    if (l_.projected) w_hr_ = *input(at.w_hr);
    if (l_.cell == kernels::Cell::kGru) has_bias_ = keep(bias_, input(at.w_hh + 1));
    hn_ = d.outputs[1];
    save_ = l_.gates() > 1 && d.args.boolean(at.sizes + 2);
    if (lstm_) cn_ = d.outputs[2], cells_ = d.outputs[3];
    if (l_.gates() > 1) gates_ = d.outputs.back();
    hidden_weights_ = PackedWeights(l_.hidden, l_.width);
    out_weights_ = PackedWeights(l_.width, l_.hidden);
    gates_row_ = l_.gates() > 1 ? 4 * l_.hidden : l_.width;
    ld_ = padded(l_.width), raw_ld_ = padded(l_.hidden);
    auto take = [&](int64_t n) {
      const int64_t at_now = floats_;
      floats_ += (n + 15) / 16 * 16;
      return at_now;
    };
    auto rows = [&](const TensorRef& t, int64_t width) { return StepRows::of(t, width, l_, take); };
    x_ = rows(d.inputs[d.args.operand(0)], l_.gates() * l_.hidden);
    y_ = rows(d.outputs[0], l_.width);
    packed_at_ = take(l_.gates() * hidden_weights_.floats());
    copy_at_ = take(2 * l_.batch * ld_);
    if (l_.projected) {
      projection_at_ = take(out_weights_.floats());
      raw_at_ = take(l_.batch * raw_ld_);
    }
    if (l_.gates() > 1 && !save_) scratch_gates_at_ = take(l_.batch * gates_row_);
  }

  bool single_thread() const override { return too_small_to_share(l_); }
  int64_t scratch_bytes(int) const override { return floats_ * 4; }

  void run(const RunCtx& c) const override {
    const Part part = part_of(l_, c);
    const bool by_rows = split_by_rows(l_, c.threads);
    pack(c, part, by_rows);
    for (int64_t k = 0; k < l_.steps(); ++k) {
      const int64_t goes_on = l_.continuing(k), size = l_.sizes[l_.time(k)];
      cells(c, part, k, 0, goes_on, true);
      cells(c, part, k, goes_on, size, false);
      if (l_.projected) {
        if (!by_rows) c.barrier();
        project(c, part, k);
      }
      if (!by_rows) c.barrier();
      finish(c, part, k);
    }
  }

 private:
  float* scratch(const RunCtx& c, int64_t at) const {
    return reinterpret_cast<float*>(c.scratch) + at;
  }

  void pack(const RunCtx& c, const Part& part, bool by_rows) const {
    // Whoever works on units packs their weights and needs nobody else's.
    auto units = by_rows ? thread_range(c, l_.hidden, PackedWeights::tile())
                         : std::pair(part.unit0, part.unit1);
    auto outs = by_rows ? thread_range(c, l_.width, PackedWeights::tile())
                        : std::pair(part.out0, part.out1);
    const float* w = c.ptr<float>(w_hh_);
    for (int64_t g = 0; g < l_.gates(); ++g)
      hidden_weights_.pack(w + g * l_.hidden * l_.width, l_.width, 1, units.first, units.second,
                           scratch(c, packed_at_) + g * hidden_weights_.floats());
    if (l_.projected)
      out_weights_.pack(c.ptr<float>(w_hr_), l_.hidden, 1, outs.first, outs.second,
                        scratch(c, projection_at_));
    if (by_rows) c.barrier();
  }

  // Rows [begin, end) of step k, of which all or none go on from the step before.
  void cells(const RunCtx& c, const Part& part, int64_t k, int64_t begin, int64_t end,
             bool goes_on) const {
    begin = std::max(begin, part.row0), end = std::min(end, part.row1);
    if (begin >= end) return;
    const int64_t t = l_.time(k), row = l_.first[t] + begin, unit = part.unit0, h = l_.hidden;
    kernels::CellForward f;
    f.rows = end - begin, f.units = part.unit1 - unit, f.hidden = h;
    x_.load(c, l_, t, begin, end, unit, part.unit1, l_.gates());
    f.x = x_.row(c, l_, t, begin) + unit, f.x_row = x_.step();
    f.h = y_.row(c, l_, t, begin) + unit, f.h_row = l_.width;
    f.copy = scratch(c, copy_at_) + ((k & 1) * l_.batch + begin) * ld_ + unit, f.copy_row = ld_;
    if (l_.projected) {
      f.h = scratch(c, raw_at_) + begin * raw_ld_ + unit, f.h_row = raw_ld_;
      f.copy = nullptr;
    }
    f.gates_row = gates_row_;
    f.gates = l_.gates() == 1 ? f.h
              : save_         ? c.ptr<float>(gates_) + row * gates_row_ + unit
                              : scratch(c, scratch_gates_at_) + begin * gates_row_ + unit;
    const float* state = nullptr;
    int64_t state_row = l_.width;
    if (goes_on) {
      state = scratch(c, copy_at_) + ((~k & 1) * l_.batch + begin) * ld_, state_row = ld_;
    } else if (has_h0_) {
      state = c.ptr<float>(h0_) + begin * l_.width;
    }
    f.product = state != nullptr;
    if (f.product)
      for (int64_t g = 0; g < l_.gates(); ++g) {
        // The state's part of a GRU's third gate is kept apart.
        const int64_t slot = l_.gates() == 3 && g == 2 ? 3 : g;
        hidden_weights_.product(scratch(c, packed_at_) + g * hidden_weights_.floats(), state,
                                state_row, f.rows, unit, part.unit1, f.gates + slot * h, gates_row_,
                                false);
      }
    if (lstm_) {
      f.c = save_ ? c.ptr<float>(cells_) + row * h + unit : c.ptr<float>(cn_) + begin * h + unit;
      f.c_row = f.state_row = h;
      if (goes_on)
        f.state =
            save_ ? c.ptr<float>(cells_) + (l_.first[l_.time(k - 1)] + begin) * h + unit : f.c;
      else if (has_c0_)
        f.state = c.ptr<float>(c0_) + begin * h + unit;
    } else if (state != nullptr) {
      f.state = state + unit, f.state_row = state_row;
    }
    if (has_bias_) f.bias = c.ptr<float>(bias_) + unit;
    kernels::recurrent_kernels().forward[static_cast<int>(l_.cell)](f);
    if (!l_.projected) y_.store(c, l_, t, begin, end, unit, part.unit1);
  }

  void project(const RunCtx& c, const Part& part, int64_t k) const {
    const int64_t t = l_.time(k), begin = part.row0, end = std::min(part.row1, l_.sizes[t]);
    float* y = y_.row(c, l_, t, begin) + part.out0;
    out_weights_.product(scratch(c, projection_at_), scratch(c, raw_at_) + begin * raw_ld_, raw_ld_,
                         end - begin, part.out0, part.out1, y, l_.width, false);
    float* copy = scratch(c, copy_at_) + ((k & 1) * l_.batch + begin) * ld_ + part.out0;
    for (int64_t r = begin; r < end; ++r, y += l_.width, copy += ld_)
      std::copy(y, y + part.out1 - part.out0, copy);
    y_.store(c, l_, t, begin, end, part.out0, part.out1);
  }

  // Rows that end with step k leave their state.
  void finish(const RunCtx& c, const Part& part, int64_t k) const {
    const int64_t t = l_.time(k);
    const int64_t begin = std::max(part.row0, k + 1 < l_.steps() ? l_.continuing(k + 1) : 0);
    const int64_t end = std::min(part.row1, l_.sizes[t]);
    for (int64_t r = begin; r < end; ++r) {
      const float* y = y_.row(c, l_, t, r);
      std::copy(y + part.out0, y + part.out1, c.ptr<float>(hn_) + r * l_.width + part.out0);
      if (!lstm_ || !save_) continue;
      const float* cell = c.ptr<float>(cells_) + (l_.first[t] + r) * l_.hidden;
      std::copy(cell + part.unit0, cell + part.unit1,
                c.ptr<float>(cn_) + r * l_.hidden + part.unit0);
    }
  }

  Layer l_;
  StepRows x_, y_;
  TensorRef h0_, c0_, w_hh_, w_hr_, bias_, hn_, cn_, cells_, gates_;
  bool has_h0_ = false, has_c0_ = false, has_bias_ = false, lstm_ = false, save_ = false;
  PackedWeights hidden_weights_, out_weights_;
  int64_t gates_row_ = 0, ld_ = 0, raw_ld_ = 0, floats_ = 0;
  int64_t packed_at_ = 0, copy_at_ = 0, projection_at_ = 0, raw_at_ = 0, scratch_gates_at_ = 0;
};

}  // namespace

KernelPtr make_recurrent_forward(const StepDesc& d) {
  return std::make_unique<ForwardKernel>(d);
}

}  // namespace tessera
