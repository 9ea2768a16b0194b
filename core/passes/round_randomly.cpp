// SPDX-License-Identifier: Apache-2.0
// Stochastic rounding: every op with a result in f16 is computed in f32, and its result rounded up
// or down at random with the probability that keeps the expectation. Random numbers come from the
// program's own generator, one stream per rounded value, so a seed gives the same run again.
#include <algorithm>

#include "ops/registry.h"
#include "passes/optimizer_terms.h"

namespace tessera {
namespace {

using Values = std::vector<ValueId>;

constexpr int64_t kFirstStream = int64_t{1} << 30;  // those of the user's ops count from one

// Ops that only move elements round nothing.
bool computes(Op op) {
  if (is_pointwise(op)) return op != Op::Copy && op != Op::Fill && op != Op::Uniform;
  constexpr Op kOps[] = {
      Op::Mm,
      Op::Bmm,
      Op::Convolution,
      Op::ConvInputGrad,
      Op::ConvWeightGrad,
      Op::MaxPoolGrad,
      Op::AvgPool,
      Op::AvgPoolGrad,
      Op::AdaptiveAvgPool,
      Op::AdaptiveAvgPoolGrad,
      Op::AdaptiveMaxPoolGrad,
      Op::PoolIndexAdd,
      Op::Resample,
      Op::ResampleGrad,
      Op::Col2Im,
      Op::UnfoldGrad,
      Op::GridSampler,
      Op::GridSamplerGrad,
      Op::LayerNorm,
      Op::LayerNormGrad,
      Op::GroupNorm,
      Op::GroupNormGrad,
      Op::BatchNorm,
      Op::BatchNormEval,
      Op::BatchNormGrad,
      Op::Softmax,
      Op::SoftmaxGrad,
      Op::LogSoftmax,
      Op::LogSoftmaxGrad,
      Op::NllLoss,
      Op::NllLossGrad,
      Op::CtcLoss,
      Op::CtcLossGrad,
      Op::Sdpa,
      Op::SdpaGrad,
      Op::LstmLayer,
      Op::LstmLayerGrad,
      Op::GruLayer,
      Op::GruLayerGrad,
      Op::RnnLayer,
      Op::RnnLayerGrad,
      Op::Sum,
      Op::Prod,
      Op::Cumsum,
      Op::Cumprod,
      Op::Logcumsumexp,
      Op::EmbeddingGrad,
      Op::EmbeddingBag,
      Op::EmbeddingBagGrad,
      Op::EmbeddingBagWeightGrad,
      Op::IndexAdd,
      Op::IndexPut,
      Op::IndexReduce,
      Op::Put,
      Op::ScatterAdd,
      Op::ScatterReduce,
  };
  return std::find(std::begin(kOps), std::end(kOps), op) != std::end(kOps);
}

class Rounder {
 public:
  explicit Rounder(Graph& g) {
    const Source* found = find_source(g, "rng", {DType::I64, {2}, {}});
    key_ = found ? found->value : g.add_source(SourceKind::kBuffer, "rng", {DType::I64, {2}, {}});
  }

  Values visit(Node& n, Builder& b) {
    Graph& g = b.graph();
    bool half = false;
    for (ValueId v : n.results) half = half || g.type(v).dtype == DType::F16;
    if (!half || !computes(n.op)) return {};
    Values operands = n.operands;
    for (ValueId& v : operands)
      if (g.type(v).dtype == DType::F16 && n.op != Op::Cast) v = cast(b, v, DType::F32);
    std::vector<TensorType> types;
    for (ValueId v : n.results) {
      types.push_back(g.type(v));
      if (types.back().dtype == DType::F16) types.back().dtype = DType::F32;
    }
    Args args = n.args;
    for (Arg& a : args.list)
      if (a.kind == Arg::Kind::kDType && static_cast<DType>(a.i) == DType::F16)
        a.i = static_cast<int64_t>(DType::F32);
    Values made = n.op == Op::Cast ? Values{cast(b, operands[0], DType::F32)}
                                   : b.add_node(n.op, operands, args, types);
    for (size_t i = 0; i < made.size(); ++i)
      if (g.type(n.results[i]).dtype == DType::F16) made[i] = rounded(b, made[i]);
    return made;
  }

 private:
  static ValueId cast(Builder& b, ValueId v, DType dtype) {
    const TensorType t = b.graph().type(v);
    return t.dtype == dtype ? v : b.add(Op::Cast, {v}, {dtype, t.shape, {}});
  }
  ValueId rounded(Builder& b, ValueId v) {
    const TensorType wide{DType::F32, b.graph().type(v).shape, {}};
    const ValueId random = b.add(Op::Uniform, {key_}, wide, {Arg::integer(kFirstStream + next_++)});
    return cast(b, b.add(Op::RoundRandom, {v, random}, wide), DType::F16);
  }

  ValueId key_ = kNoValue;
  int64_t next_ = 0;
};

}  // namespace

bool round_randomly(Graph& g, const PassContext& ctx) {
  if (!ctx.stochastic_rounding) return false;
  Rounder r(g);
  return rewrite(g, [&](Node& n, Builder& b) { return r.visit(n, b); });
}

}  // namespace tessera
