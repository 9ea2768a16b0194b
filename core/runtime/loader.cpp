// SPDX-License-Identifier: Apache-2.0
// From a step's description to its kernel: the only place that knows codegen, host calls and op
// rows together.
#include "codegen/region.h"
#include "ops/epilogue.h"
#include "ops/registry.h"
#include "runtime/loaded_section.h"

namespace tessera {
namespace {

struct RegionEpilogue final : Epilogue {
  explicit RegionEpilogue(std::unique_ptr<Region> r) : region(std::move(r)) {}
  void run_box(std::byte* const* ptrs, int64_t o0, int64_t o1, int64_t i0,
               int64_t i1) const override {
    region->run_box(ptrs, o0, o1, i0, i1);
  }
  std::unique_ptr<Region> region;
};

KernelPtr make_product(const StepDesc& desc) {
  std::unique_ptr<Graph> body = parse_graph(desc.body);
  TensorRef product = matmul_epilogue_product(desc);
  const Dims& shape = desc.outputs[0].shape;
  if (shape.size() == 3) {  // the region sees the logical shape, the product its rows
    int64_t ld = product.strides[0];
    product.shape = shape;
    product.strides = {shape[1] * ld, ld, 1};
  }
  std::vector<TensorRef> inputs{product};
  inputs.insert(inputs.end(), desc.inputs.begin() + 2, desc.inputs.end());
  auto region = compile_region(*body, inputs, desc.outputs, {.keep_inner = true});
  return make_matmul_with_epilogue(desc, std::make_unique<RegionEpilogue>(std::move(region)));
}

}  // namespace

KernelPtr make_step(const StepDesc& desc, const std::function<KernelPtr(const StepDesc&)>& host) {
  if (desc.op == Op::HostCall) return host(desc);
  if (desc.op == Op::Fused) return make_fused(desc);
  if (!desc.body.empty()) return make_product(desc);
  return op_row(desc.op).make(desc);
}

}  // namespace tessera
