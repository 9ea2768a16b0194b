// SPDX-License-Identifier: Apache-2.0
#include "ops/registry.h"

namespace tessera {
namespace {

Work no_work(const Graph&, const Node&) {
  return {};
}
KernelPtr no_kernel(const StepDesc& d) {
  throw InternalError(
      fmt::format("internal error: {} reached the runtime; no pass rewrote it", op_text(d.op)));
}
bool any_strides(Op, int, const TensorRef&) {
  return true;
}
std::vector<TensorType> declared(const Graph& g, const Node& n) {
  std::vector<TensorType> out;
  for (ValueId v : n.results) out.push_back({g.type(v).dtype, g.type(v).shape, {}});
  return out;
}

#define FAMILY(family)                                                             \
  constexpr OpRow row_##family(std::string_view text) {                            \
    return {text, infer_##family, work_##family, make_##family, accepts_##family}; \
  }
#include "ops/op_families.inc"
#undef FAMILY
constexpr OpRow row_view(std::string_view text) {
  return {text, infer_view, no_work, no_kernel, any_strides};
}
constexpr OpRow row_fused(std::string_view text) {
  return {text, declared, no_work, no_kernel, any_strides};
}
constexpr OpRow row_flow(std::string_view text) {
  return {text, infer_flow, no_work, no_kernel, any_strides};
}
constexpr OpRow row_host(std::string_view text) {
  return {text, declared, no_work, no_kernel, any_strides};
}

const OpRow kRows[] = {
#define OP(name, text, family, facts, signature) row_##family(text),
#include "ops/ops.def"
#undef OP
};

constexpr int kPointwiseCount = 0
#define POINTWISE(name, text, arity, rule, flops, facts, body) +1
#include "ops/pointwise.def"
#undef POINTWISE
    ;

}  // namespace

const OpRow& op_row(Op op) {
  int i = static_cast<int>(op) - kPointwiseCount;
  invariant(i >= 0 && op < Op::kCount, "{} has no structured row", op_text(op));
  return kRows[i];
}

}  // namespace tessera
