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
  return make_matmul_with_epilogue(desc, std::make_unique<RegionEpilogue>(region_of(desc)));
}

}  // namespace

KernelPtr make_step(const StepDesc& desc, const std::function<KernelPtr(const StepDesc&)>& host) {
  if (desc.op == Op::HostCall) return host(desc);
  if (desc.op == Op::Fused) return make_fused(desc);
  if (!desc.body.empty()) return make_product(desc);
  return op_row(desc.op).make(desc);
}

}  // namespace tessera
