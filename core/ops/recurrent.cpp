// SPDX-License-Identifier: Apache-2.0
// One direction of one layer of an LSTM, a GRU or a plain RNN, all time steps in one program step;
// ops.def has the calls. The input is projected before, by one product for all steps, and weight
// gradients are one product afterwards, so that only what depends on the last state is done here.
#include "ops/recurrent_impl.h"
#include "ops/registry.h"
#include "ops/sizes.h"
#include "ops/widened.h"

namespace tessera {

RecurrentArgs recurrent_args(Op op) {
  switch (op) {
    case Op::LstmLayer:
      return {0, 3, 4, 5};
    case Op::LstmLayerGrad:
      return {7, 4, 5, 8};
    case Op::GruLayer:
      return {0, 2, 0, 4};
    case Op::GruLayerGrad:
      return {2, 4, 0, 6};
    case Op::RnnLayer:
      return {0, 2, 0, 4};
    default:
      return {2, 3, 0, 5};
  }
}

Layer layer_of(Op op, const Args& args, const std::function<Dims(size_t)>& shape_of) {
  const RecurrentArgs at = recurrent_args(op);
  Layer l;
  l.cell = op == Op::LstmLayer || op == Op::LstmLayerGrad ? kernels::Cell::kLstm
           : op == Op::GruLayer || op == Op::GruLayerGrad ? kernels::Cell::kGru
           : args.boolean(at.w_hh + 1)                    ? kernels::Cell::kRelu
                                                          : kernels::Cell::kTanh;
  const Dims w = shape_of(at.w_hh), rows = shape_of(at.rows);
  user_check(w.size() == 2 && w[0] % l.gates() == 0,
             "[{}] the state's weight does not fit {} gates", op_text(op), l.gates());
  l.hidden = w[0] / l.gates(), l.width = w[1];
  const Dims projection = at.w_hr != 0 ? shape_of(at.w_hr) : Dims{};
  l.projected = !projection.empty();
  user_check(l.projected ? projection == Dims({l.width, l.hidden}) : l.width == l.hidden,
             "[{}] {} hidden units and a state of {} do not fit", op_text(op), l.hidden, l.width);
  l.reverse = args.boolean(at.sizes + 1);
  l.sizes = args.ints(at.sizes);
  user_check(rows.size() == (l.sizes.empty() ? 3u : 2u), "[{}] {} dims for {} batch sizes",
             op_text(op), rows.size(), l.sizes.size());
  const bool packed = !l.sizes.empty();
  user_check(packed || rows[0] > 0, "[{}] needs at least one time step", op_text(op));
  user_check(packed || rows[0] < 1 << 24, "[{}] {} time steps are too many", op_text(op), rows[0]);
  if (!packed) l.sizes.assign(static_cast<size_t>(rows[0]), rows[1]);
  l.batch = packed ? l.sizes[0] : rows[1];
  int64_t last = l.batch, total = 0;
  for (int64_t size : l.sizes) {
    user_check(size >= 0 && size <= last, "[{}] batch sizes must not grow", op_text(op));
    l.first.push_back(total);
    total += size, last = size;
  }
  user_check(!packed || total == rows[0], "[{}] batch sizes add up to {}, not to {}", op_text(op),
             total, rows[0]);
  return l;
}

Layer layer_of(const StepDesc& d) {
  return layer_of(d.op, d.args, [&](size_t arg) {
    const int i = d.args.operand_or_none(arg);
    return i < 0 ? Dims{} : d.inputs[i].shape;
  });
}

namespace {

bool is_grad(Op op) {
  return op == Op::LstmLayerGrad || op == Op::GruLayerGrad || op == Op::RnnLayerGrad;
}

double flops_of_step(const Layer& l) {
  const auto state = static_cast<double>(l.batch * l.hidden * l.width);
  return 2 * state * static_cast<double>(l.gates() + (l.projected ? 1 : 0));
}

}  // namespace

// Rows need no barrier between steps, but every thread then reads all weights: for small layers.
bool split_by_rows(const Layer& l, int threads) {
  constexpr int64_t kCached = 96 * 1024;  // weights, in elements
  return l.batch >= 8 * threads && l.gates() * l.hidden * l.width <= kCached;
}

Part part_of(const Layer& l, const RunCtx& c) {
  if (split_by_rows(l, c.threads)) {
    const auto [begin, end] = thread_range(c, l.batch);
    return {begin, end, 0, l.hidden, 0, l.width};
  }
  const auto units = thread_range(c, l.hidden, PackedWeights::tile());
  const auto outs = thread_range(c, l.width, PackedWeights::tile());
  return {0, l.batch, units.first, units.second, outs.first, outs.second};
}

bool too_small_to_share(const Layer& l) {
  // Below this a step costs less than the barrier after it.
  return flops_of_step(l) < 100e3 || l.hidden <= PackedWeights::tile();
}

std::vector<TensorType> infer_recurrent(const Graph& g, const Node& n) {
  const Layer l = layer_of(n.op, n.args, [&](size_t arg) {
    const ValueId v = n.arg_value_or_none(arg);
    return v == kNoValue ? Dims{} : g.type(v).shape;
  });
  const RecurrentArgs at = recurrent_args(n.op);
  const TensorType& rows = g.type(n.arg_value(at.rows));
  const DType dtype = g.type(n.arg_value(at.w_hh)).dtype;
  user_check(is_float(dtype), "[{}] needs float tensors, got {}", op_text(n.op), name_of(dtype));
  auto per_row = [&](DType type, int64_t last, bool wanted = true) {
    if (!wanted) return TensorType{type, {0}, {}};
    TensorType t{type, rows.shape, {}};
    t.shape.back() = last;
    return t;
  };
  auto check = [&](size_t arg, int64_t last, bool each_row) {
    const ValueId v = n.arg_value_or_none(arg);
    if (v == kNoValue) return;
    const Dims want = each_row ? per_row(dtype, last).shape : Dims{l.batch, last};
    user_check(g.type(v).shape == want, "[{}] argument {} has a shape that does not fit",
               op_text(n.op), arg);
  };
  const TensorType h{dtype, {l.batch, l.width}, {}}, c{dtype, {l.batch, l.hidden}, {}};
  const int64_t wide = l.gates() * l.hidden;
  if (!is_grad(n.op)) {
    const bool save = l.gates() > 1 && n.args.boolean(at.sizes + 2);
    check(0, wide, true);
    check(1, l.width, false);
    if (n.op == Op::RnnLayer) return {per_row(dtype, l.width), h};
    const TensorType gates = per_row(DType::F32, 4 * l.hidden, save);
    if (n.op == Op::GruLayer) return {per_row(dtype, l.width), h, gates};
    check(2, l.hidden, false);
    return {per_row(dtype, l.width), h, c, per_row(DType::F32, l.hidden, save), gates};
  }
  check(0, l.width, true);
  check(1, l.width, false);
  if (n.op == Op::RnnLayerGrad) return {per_row(dtype, wide), h};
  if (n.op == Op::GruLayerGrad) {
    check(3, l.width, false);
    return {per_row(dtype, wide), h, per_row(dtype, wide)};
  }
  check(2, l.hidden, false);
  check(3, l.hidden, false);
  return {per_row(dtype, wide), h, c, per_row(dtype, l.width, l.projected)};
}

Work work_recurrent(const Graph& g, const Node& n) {
  const Layer l = layer_of(n.op, n.args, [&](size_t arg) {
    const ValueId v = n.arg_value_or_none(arg);
    return v == kNoValue ? Dims{} : g.type(v).shape;
  });
  const int64_t rows = l.rows();
  Work w;
  w.kind = WorkKind::kMatMul;
  w.m = l.batch, w.n = l.gates() * l.hidden, w.k = l.width, w.batch = l.steps();
  w.flops = operations({2, rows, l.width, l.hidden, l.gates() + (l.projected ? 1 : 0)});
  w.flops += operations({rows, l.hidden, l.gates(), 12});
  for (ValueId v : n.operands) w.bytes += g.type(v).bytes();
  for (ValueId v : n.results) w.bytes += g.type(v).bytes();
  return w;
}

// Sequences are converted step by step; states and weights are small.
Pieces sequences(const StepDesc& d) {
  Pieces p = Pieces::along(d, Pieces::kWhole);
  auto own = [](const TensorRef& t, int& dim) {
    const bool packed = t.shape.size() == 2;
    if (packed ? t.contiguous() : t.strides[2] == 1) dim = Pieces::kOwn;
  };
  const RecurrentArgs at = recurrent_args(d.op);
  for (size_t arg : {size_t{0}, at.rows}) {
    const int i = d.args.operand_or_none(arg);
    if (i >= 0) own(d.inputs[i], p.inputs[i]);
  }
  own(d.outputs[0], p.outputs[0]);
  if (d.op == Op::GruLayerGrad) own(d.outputs[2], p.outputs[2]);
  if (d.op == Op::LstmLayerGrad && d.outputs[3].count() > 0) own(d.outputs[3], p.outputs[3]);
  return p;
}

KernelPtr make_recurrent(const StepDesc& desc) {
  auto make = [](const StepDesc& d) {
    return is_grad(d.op) ? make_recurrent_backward(d) : make_recurrent_forward(d);
  };
  return make_widened(desc, make, sequences(desc));
}

bool accepts_recurrent(Op, int index, const TensorRef& physical) {
  if (physical.contiguous()) return true;
  // The projected input and the gradient of the output are read row by row.
  if (index == 0 && physical.shape.size() == 3) return physical.strides[2] == 1;
  return is_half(physical);
}

}  // namespace tessera
