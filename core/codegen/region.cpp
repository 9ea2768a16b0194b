// SPDX-License-Identifier: Apache-2.0
// The door to both engines, and the kernel of a `fused` step.
#include "codegen/region.h"

#include <array>
#include <atomic>

#include "codegen/compiled_region.h"
#include "codegen/reference.h"
#include "codegen/typed_code.h"
#include "ops/run_error.h"

namespace tessera {
namespace {

#ifdef TESSERA_HAVE_LLVM
constexpr bool kHaveLlvm = true;
#else
constexpr bool kHaveLlvm = false;
#endif

std::atomic<CodegenBackend> chosen_backend{kHaveLlvm ? CodegenBackend::kLlvm
                                                     : CodegenBackend::kReference};

// Below this many element operations waking the team costs more than it saves.
constexpr int64_t kSmallCost = 8192;

class FusedKernel final : public Kernel {
 public:
  FusedKernel(std::unique_ptr<Region> region, const StepDesc& desc) : region_(std::move(region)) {
    tensors_ = desc.inputs;
    tensors_.insert(tensors_.end(), desc.outputs.begin(), desc.outputs.end());
    invariant(tensors_.size() <= kMaxTensors, "fused step of {} tensors", tensors_.size());
  }

  void run(const RunCtx& ctx) const override {
    std::array<std::byte*, kMaxTensors> ptrs;
    for (size_t k = 0; k < tensors_.size(); ++k) ptrs[k] = ctx.ptr<std::byte>(tensors_[k]);
    region_->run(ctx, ptrs.data());
    if (region_->may_fail() && region_->take_failure())
      fail_run(ctx, "ZeroDivisionError: integer division or remainder by zero");
  }
  int64_t scratch_bytes(int) const override { return region_->scratch_bytes(); }
  bool single_thread() const override { return region_->cost() < kSmallCost; }
  bool may_fail() const override { return region_->may_fail(); }

 private:
  static constexpr size_t kMaxTensors = 96;
  std::unique_ptr<Region> region_;
  std::vector<TensorRef> tensors_;
};

}  // namespace

void set_codegen_backend(CodegenBackend backend) {
  user_check(kHaveLlvm || backend == CodegenBackend::kReference,
             "[codegen] this build has no LLVM; only the reference interpreter is available");
  chosen_backend = backend;
}
CodegenBackend codegen_backend() {
  return chosen_backend;
}
bool codegen_has_llvm() {
  return kHaveLlvm;
}

#ifndef TESSERA_HAVE_LLVM
CodegenStats codegen_stats() {
  return {};
}
#endif

std::unique_ptr<Region> compile_region(const Graph& body, const std::vector<TensorRef>& inputs,
                                       const std::vector<TensorRef>& outputs,
                                       const RegionOptions& options) {
  codegen::TypedCode code = codegen::make_typed_code(body, inputs, outputs);
#ifdef TESSERA_HAVE_LLVM
  if (codegen_backend() == CodegenBackend::kLlvm)
    return codegen::make_compiled_region(std::move(code), outputs, options);
#else
  (void)options;
#endif
  return codegen::make_reference_region(std::move(code), outputs);
}

KernelPtr make_fused(const StepDesc& desc) {
  std::unique_ptr<Graph> body = parse_graph(desc.body);
  return std::make_unique<FusedKernel>(compile_region(*body, desc.inputs, desc.outputs), desc);
}

}  // namespace tessera
