// SPDX-License-Identifier: Apache-2.0
// The gather family: types and costs, and what its files share. Ops along one dim are in
// gather_dim.cpp, whole blocks in gather_index.cpp, bags in gather_bag.cpp, masks in
// gather_mask.cpp.
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "base/promote.h"
#include "ops/gather_impl.h"
#include "ops/registry.h"
#include "ops/run_error.h"
#include "ops/view.h"
#include "ops/widened.h"

namespace tessera {
namespace {

using Infer = std::vector<TensorType> (*)(const Graph&, const Node&);
using Make = KernelPtr (*)(const StepDesc&);

struct Part {
  Infer infer;
  Make make;
};

Part part_of(Op op) {
  switch (op) {
    case Op::Gather:
    case Op::ScatterSrc:
    case Op::ScatterValue:
    case Op::ScatterAdd:
    case Op::ScatterReduce:
      return {infer_gather_dim, make_gather_dim};
    case Op::EmbeddingGrad:
      return {infer_indexed, make_embedding_grad};
    case Op::EmbeddingBag:
    case Op::EmbeddingBagGrad:
    case Op::EmbeddingBagWeightGrad:
      return {infer_bag, make_bag};
    case Op::MaskedScatter:
    case Op::MaskedCompact:
    case Op::NonzeroStatic:
    case Op::RepeatInterleave:
      return {infer_masked, make_masked};
    default:
      return {infer_indexed, make_indexed};
  }
}

// Whether elements are computed with, not just moved.
bool computes(const Args& args, Op op) {
  switch (op) {
    case Op::IndexPut:
    case Op::Put:
      return args.boolean_or(3, false);
    case Op::ScatterAdd:
    case Op::ScatterReduce:
    case Op::IndexAdd:
    case Op::IndexReduce:
    case Op::EmbeddingGrad:
    case Op::EmbeddingBag:
    case Op::EmbeddingBagGrad:
    case Op::EmbeddingBagWeightGrad:
      return true;
    default:
      return false;
  }
}

// Columns of what is added row by row: indices choose among the rows only.
Pieces row_pieces(const StepDesc& d) {
  constexpr int64_t kColumns = 64;
  const auto last = [](const TensorRef& t) { return static_cast<int>(t.shape.size()) - 1; };
  const TensorRef& out = d.outputs[0];
  if (out.shape.size() < 2) return {};
  const int64_t width = out.shape.back();
  switch (d.op) {
    case Op::EmbeddingGrad:
      break;
    case Op::IndexAdd:
    case Op::IndexReduce:
      if (wrap_dim(d.args.integer(1), last(out) + 1) == last(out)) return {};
      break;
    case Op::IndexPut:
      for (int64_t dim : index_list(d.args.at(1)).dim)
        if (dim == last(out)) return {};
      break;
    default:
      return {};
  }
  Pieces p;
  p.grain = kColumns;
  for (const TensorRef& t : d.inputs) {
    const bool index = !is_float(t.dtype);
    if (!index && (t.shape.empty() || t.shape.back() != width)) return {};
    p.inputs.push_back(index ? Pieces::kWhole : last(t));
  }
  p.outputs.assign(d.outputs.size(), Pieces::kWhole);
  p.outputs[0] = last(out);
  return p;
}

}  // namespace

IndexList index_list(const Arg& list) {
  IndexList out;
  for (size_t i = 0; i < list.list.size(); ++i)
    if (list.list[i].is_operand()) {
      out.operand.push_back(static_cast<int>(list.list[i].i));
      out.dim.push_back(static_cast<int64_t>(i));
    }
  return out;
}

Dims broadcast_shapes(const std::vector<Dims>& shapes) {
  Dims out;
  for (const Dims& s : shapes) {
    std::optional<Dims> both = broadcast(out, s);
    user_check(both.has_value(), "[index] index tensors do not broadcast: [{}] and [{}]",
               fmt::join(out, ", "), fmt::join(s, ", "));
    out = std::move(*both);
  }
  return out;
}

int64_t index_position(const IndexList& list) {
  for (size_t i = 1; i < list.dim.size(); ++i)
    if (list.dim[i] != list.dim[i - 1] + 1) return 0;
  return list.dim.empty() ? 0 : list.dim[0];
}

Dims indexed_shape(const Dims& x, const IndexList& list, const Dims& index_shape) {
  std::vector<bool> indexed(x.size(), false);
  for (int64_t d : list.dim) indexed[d] = true;
  Dims out;
  for (size_t i = 0; i < x.size(); ++i)
    if (!indexed[i]) out.push_back(x[i]);
  const int64_t at = index_position(list);
  out.insert(out.begin() + at, index_shape.begin(), index_shape.end());
  return out;
}

kernels::Combine combination(const std::string& reduce) {
  if (reduce == "sum") return kernels::Combine::kSum;
  if (reduce == "prod") return kernels::Combine::kProd;
  if (reduce == "amax") return kernels::Combine::kMax;
  user_check(reduce == "amin", "\"{}\" is not a way to reduce", reduce);
  return kernels::Combine::kMin;
}

std::string_view base_name(Op op) {
  const std::string_view text = op_text(op);
  return text.substr(0, text.find('.'));
}

void check_index_dtype(Op op, const TensorType& t) {
  user_check(is_int(t.dtype), "[{}] needs an integer index, got {}", base_name(op),
             name_of(t.dtype));
}

TensorRef at_least_1d(TensorRef t) {
  if (t.shape.empty()) {
    t.shape = {1};
    t.strides = {1};
  }
  return t;
}

bool add_offsets(const RunCtx& c, Op op, kernels::IndexWalk w, bool wraps, int64_t* offsets) {
  constexpr int64_t kNever = std::numeric_limits<int64_t>::min() / 2;
  bool good = true;
  for (;;) {
    const int64_t done = kernels::add_offsets(w, wraps, offsets);
    if (done >= w.n) return good;
    fail_run(c, "[{}] index {} is out of bounds for a dim of size {}", base_name(op),
             kernels::read_index(w.index, done * w.index_step, w.index_dtype), w.extent);
    good = false;
    offsets[done] = kNever;
    offsets += done + 1;
    w.index += (done + 1) * w.index_step * size_of(w.index_dtype);
    w.n -= done + 1;
  }
}

std::vector<TensorType> infer_gather(const Graph& g, const Node& n) {
  return part_of(n.op).infer(g, n);
}

Work work_gather(const Graph& g, const Node& n) {
  // Every result is written once. What is read is as large as the result, unless rows are added
  // together: then it is the operands.
  Work w{WorkKind::kGather, 0, 0};
  int64_t written = 0, read = 0;
  for (ValueId v : n.results) written += g.type(v).bytes();
  for (ValueId v : n.operands) read += g.type(v).bytes();
  w.bytes = written + std::min(read, 2 * written);
  if (computes(n.args, n.op)) {
    w.bytes = written + read;
    for (ValueId v : n.operands)  // the last one is what is added
      if (is_float(g.type(v).dtype)) w.flops = g.type(v).count();
  }
  return w;
}

KernelPtr make_gather(const StepDesc& d) {
  // Moving elements is the same for all types of a size; what is computed with halves is computed
  // in f32.
  const Make make = part_of(d.op).make;
  return computes(d.args, d.op) ? make_widened(d, make, row_pieces(d)) : make(d);
}

bool accepts_gather(Op, int, const TensorRef&) {
  return true;
}

}  // namespace tessera
