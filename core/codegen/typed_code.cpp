// SPDX-License-Identifier: Apache-2.0
// Decides types, broadcasting and the iteration space of a body.
#include "codegen/typed_code.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <optional>

#include "base/promote.h"

namespace tessera::codegen {
namespace {

Dims broadcast_in_region(const Dims& a, const Dims& b) {
  std::optional<Dims> out = broadcast(a, b);
  invariant(out.has_value(), "fused region: {} and {} do not broadcast", fmt::join(a, ","),
            fmt::join(b, ","));
  return std::move(*out);
}

// Strides of a tensor over the iteration space: 0 along dims it lacks or has once.
Dims spread(const TensorRef& t, const Dims& shape) {
  invariant(t.shape.size() <= shape.size(),
            "fused region: operand of rank {} in a space of rank {}", t.shape.size(), shape.size());
  Dims out(shape.size(), 0);
  size_t skip = shape.size() - t.shape.size();
  for (size_t i = 0; i < t.shape.size(); ++i) {
    invariant(t.shape[i] == 1 || t.shape[i] == shape[skip + i],
              "fused region: operand size {} in a dim of {}", t.shape[i], shape[skip + i]);
    if (t.shape[i] != 1) out[skip + i] = t.strides[i];
  }
  return out;
}

// Operands of a comparison: tensors with dims decide within their class; zero-dim tensors and
// literals only when they are of a higher one.
DType promote_operands(const Graph& g, const Node& n, int arity) {
  bool have = false;
  DType with_dims = DType::Bool, scalars = DType::Bool;
  bool have_scalar = false;
  auto join = [](bool& have_one, DType& into, DType t) {
    into = have_one ? promote(into, t) : t;
    have_one = true;
  };
  for (int k = 0; k < arity; ++k) {
    const Arg& a = n.args.at(k);
    if (a.is_operand()) {
      const TensorType& t = g.type(n.operands[a.i]);
      t.shape.empty() ? join(have_scalar, scalars, t.dtype) : join(have, with_dims, t.dtype);
    } else {
      join(have_scalar, scalars,
           a.kind == Arg::Kind::kFloat  ? DType::F32
           : a.kind == Arg::Kind::kBool ? DType::Bool
                                        : DType::I64);
    }
  }
  if (!have) return scalars;
  if (!have_scalar) return with_dims;
  auto level = [](DType t) { return is_float(t) ? 2 : is_int(t) ? 1 : 0; };
  return level(scalars) > level(with_dims) ? scalars : with_dims;
}

// Which operand of an op is a mask rather than a number; -1 if none.
int mask_operand(Op op) {
  return op == Op::Where ? 0 : -1;
}

class Builder {
 public:
  Builder(const Graph& g, const std::vector<TensorRef>& inputs,
          const std::vector<TensorRef>& outputs)
      : g_(g), inputs_(inputs), outputs_(outputs) {}

  TypedCode build() {
    invariant(g_.sources.size() == inputs_.size(), "fused region: {} operands for {} sources",
              inputs_.size(), g_.sources.size());
    invariant(g_.outputs.size() == outputs_.size(), "fused region: {} outputs for {} buffers",
              g_.outputs.size(), outputs_.size());
    find_space();
    code_.inputs = static_cast<int>(inputs_.size());
    code_.outputs = static_cast<int>(outputs_.size());
    code_value_.assign(g_.values.size(), -1);
    add_loads();
    code_.cost = 0;
    for (const Node& n : g_.nodes)
      if (!has_fact(n.op, kFuses)) add_instr(n);
    code_.cost += code_.outputs;
    add_outputs();
    if (std::any_of(code_.instrs.begin(), code_.instrs.end(), divides_integers)) {
      code_.failure_param = static_cast<int>(code_.params.size());
      code_.params.push_back(0);
    }
    for (Slot& s : index_slots_) code_.slots.push_back(std::move(s));
    return std::move(code_);
  }

 private:
  const Node* producer(ValueId v) const {
    for (const Node& n : g_.nodes)
      for (ValueId r : n.results)
        if (r == v) return &n;
    return nullptr;
  }

  void find_space() {
    for (ValueId v : g_.outputs) {
      const Node* n = producer(v);
      if (n && has_fact(n->op, kFuses)) {
        const TensorType& x = g_.type(n->arg_value(0));
        code_.shape = broadcast_in_region(code_.shape, x.shape);
      } else {
        code_.shape = broadcast_in_region(code_.shape, g_.type(v).shape);
      }
    }
    code_.reduced.assign(code_.shape.size(), false);
    for (ValueId v : g_.outputs) {
      const Node* n = producer(v);
      if (!n || !has_fact(n->op, kFuses)) {
        invariant(g_.type(v).shape == code_.shape,
                  "fused region: an output has not the shape of the region");
        continue;
      }
      invariant(g_.type(n->arg_value(0)).shape == code_.shape,
                "fused region: a reduction of another shape");
      std::vector<bool> dims = reduced_dims(*n);
      invariant(!code_.reduces || dims == code_.reduced,
                "fused region: reductions over different dims");
      code_.reduces = true;
      code_.reduced = dims;
    }
  }

  std::vector<bool> reduced_dims(const Node& n) const {
    const auto rank = static_cast<int64_t>(g_.type(n.arg_value(0)).shape.size());
    std::vector<int64_t> dims = n.args.size() > 1 ? n.args.ints(1) : std::vector<int64_t>{};
    std::vector<bool> out(rank, dims.empty());
    for (int64_t d : dims) {
      invariant(d >= -rank && d < rank, "fused region: dim {} of a tensor of rank {}", d, rank);
      out[d < 0 ? d + rank : d] = true;
    }
    return out;
  }

  void add_loads() {
    std::vector<bool> is_key(g_.values.size(), false);
    for (const Node& n : g_.nodes)
      if (n.op == Op::Uniform) is_key[n.arg_value(0)] = true;
    for (size_t k = 0; k < inputs_.size(); ++k) {
      ValueId v = g_.sources[k].value;
      invariant(g_.type(v).dtype == inputs_[k].dtype && g_.type(v).shape == inputs_[k].shape,
                "fused region: operand {} is {}, the body expects {}", k, name_of(inputs_[k].dtype),
                to_string(g_.type(v)));
      Slot s{is_key[v] ? SlotKind::kKey : SlotKind::kLoad, inputs_[k].dtype,
             Dims(code_.shape.size(), 0), static_cast<int>(k), Op::Sum};
      if (!is_key[v]) s.strides = spread(inputs_[k], code_.shape);
      code_.slots.push_back(std::move(s));
      code_.types.push_back(inputs_[k].dtype);
      code_value_[v] = static_cast<int>(k);
    }
  }

  CodeArg code_arg(const Node& n, int k, DType as) const {
    invariant(k < static_cast<int>(n.args.size()), "fused region: {} misses argument {}",
              op_text(n.op), k);
    const Arg& a = n.args.at(k);
    if (!a.is_operand()) {
      invariant(a.is_number(), "fused region: argument {} of {} is no number", k, op_text(n.op));
      return {-1, a, as};
    }
    int value = code_value_[n.operands[a.i]];
    invariant(value >= 0, "fused region: {} uses the result of a reduction or of a later node",
              op_text(n.op));
    return {value, {}, as};
  }

  void add_instr(const Node& n) {
    invariant(is_pointwise(n.op), "fused region: {} is not pointwise", op_text(n.op));
    const TensorType& type = g_.type(n.results[0]);
    Instr in;
    in.op = n.op;
    in.result = type.dtype;
    if (n.op == Op::Iota || n.op == Op::Uniform) {
      add_index(n, type, in);
    } else {
      const int arity = pointwise_arity(n.op);
      DType as = in.result;
      if (pointwise_rule(n.op) == DTypeRule::kBool) as = promote_operands(g_, n, arity);
      for (int k = 0; k < arity; ++k) {
        DType own = as;
        if (k == mask_operand(n.op)) own = DType::Bool;
        if (n.op == Op::Cast && n.args.at(0).is_operand())
          own = g_.type(n.operands[n.args.at(0).i]).dtype;
        in.args.push_back(code_arg(n, k, own));
      }
    }
    code_.cost += std::max(1, pointwise_flops(n.op));
    code_value_[n.results[0]] = static_cast<int>(code_.types.size());
    code_.types.push_back(in.result);
    code_.instrs.push_back(std::move(in));
  }

  void add_index(const Node& n, const TensorType& type, Instr& in) {
    const Dims& shape = code_.shape;
    Slot s{SlotKind::kIndex, DType::I64, Dims(shape.size(), 0), -1, Op::Sum};
    in.index_slot = static_cast<int>(inputs_.size() + outputs_.size() + index_slots_.size());
    in.param = static_cast<int>(code_.params.size());
    if (n.op == Op::Iota) {
      // The dim counts in the node's own shape, which may have fewer dims than the space.
      int64_t rank = static_cast<int64_t>(type.shape.size()), dim = n.args.integer(0);
      if (dim < 0) dim += rank;
      invariant(dim >= 0 && dim < rank, "fused region: iota over dim {} of {}", dim,
                to_string(type));
      if (type.shape[dim] != 1) s.strides[shape.size() - rank + dim] = 1;
      bool whole = is_int(type.dtype);
      for (int k = 1; k <= 2; ++k) {
        double otherwise = k == 1 ? 0.0 : 1.0;
        code_.params.push_back(whole ? n.args.integer_or(k, static_cast<int64_t>(otherwise))
                                     : std::bit_cast<int64_t>(n.args.real_or(k, otherwise)));
      }
    } else {
      const TensorType& key = g_.type(n.arg_value(0));
      invariant(key.dtype == DType::I64 && key.count() == 2,
                "fused region: the key of uniform is {}", to_string(key));
      invariant(type.shape == shape && product(shape) < (int64_t{1} << 32),
                "fused region: uniform of {} in another space", to_string(type));
      s.strides = dense_strides(shape);
      in.args.push_back(code_arg(n, 0, DType::I64));
      code_.params.push_back(n.args.integer(1));
    }
    index_slots_.push_back(std::move(s));
  }

  // Strides of a reduction's result over the iteration space, whether it keeps summed dims as 1 or
  // drops them.
  Dims result_strides(const TensorRef& out) const {
    const size_t rank = code_.shape.size();
    const auto summed =
        static_cast<size_t>(std::count(code_.reduced.begin(), code_.reduced.end(), true));
    const bool keeps = out.shape.size() == rank;
    invariant(keeps || out.shape.size() + summed == rank, "fused region: a reduction to rank {}",
              out.shape.size());
    Dims strides(rank, 0);
    for (size_t d = 0, at = 0; d < rank; ++d) {
      if (!code_.reduced[d]) {
        invariant(out.shape[at] == code_.shape[d], "fused region: a reduction to another shape");
        strides[d] = out.strides[at];
      }
      at += keeps || !code_.reduced[d];
    }
    return strides;
  }

  void add_outputs() {
    for (size_t k = 0; k < outputs_.size(); ++k) {
      ValueId v = g_.outputs[k];
      const Node* n = producer(v);
      Slot s;
      s.dtype = outputs_[k].dtype;
      invariant(s.dtype == g_.type(v).dtype, "fused region: output {} is {}, the body says {}", k,
                name_of(s.dtype), to_string(g_.type(v)));
      if (n && has_fact(n->op, kFuses)) {
        s.kind = SlotKind::kReduce;
        s.reduce = n->op;
        s.value = code_value_[n->arg_value(0)];
        // Half types add up in f32 and integers in i64, whatever the result is stored as.
        s.dtype = s.dtype == DType::F64 ? DType::F64 : is_float(s.dtype) ? DType::F32 : DType::I64;
        s.strides = result_strides(outputs_[k]);
      } else {
        s.kind = SlotKind::kStore;
        s.value = code_value_[v];
        invariant(outputs_[k].shape == code_.shape, "fused region: output {} has another shape", k);
        s.strides = spread(outputs_[k], code_.shape);
      }
      invariant(s.value >= 0, "fused region: output {} is a reduction of a reduction", k);
      code_.slots.push_back(std::move(s));
    }
  }

  const Graph& g_;
  const std::vector<TensorRef>&inputs_, &outputs_;
  TypedCode code_;
  std::vector<int> code_value_;  // by graph value
  std::vector<Slot> index_slots_;
};

}  // namespace

bool divides_integers(const Instr& in) {
  if (!has_fact(in.op, kDivides) || is_float(in.args[1].as)) return false;
  return in.args[1].value >= 0 || in.args[1].literal.number() == 0;
}

TypedCode make_typed_code(const Graph& body, const std::vector<TensorRef>& inputs,
                          const std::vector<TensorRef>& outputs) {
  return Builder(body, inputs, outputs).build();
}

}  // namespace tessera::codegen
