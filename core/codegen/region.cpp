// SPDX-License-Identifier: Apache-2.0
// The door to both engines, and the kernel of a `fused` step.
#include "codegen/region.h"

#include <array>
#include <atomic>

#include "codegen/code.h"
#include "codegen/compiled_region.h"
#include "codegen/reference.h"
#include "codegen/typed_code.h"
#include "ops/epilogue.h"
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

std::unique_ptr<Region> region_of(const StepDesc& desc) {
  const std::unique_ptr<Graph> body = parse_graph(desc.body);
  if (desc.op == Op::Fused) return compile_region(*body, desc.inputs, desc.outputs);
  TensorRef product = matmul_epilogue_product(desc);
  const Dims& shape = desc.outputs[0].shape;
  if (shape.size() == 3) {  // the region sees the logical shape, the product its rows
    int64_t ld = product.strides[0];
    product.shape = shape;
    product.strides = {shape[1] * ld, ld, 1};
  }
  std::vector<TensorRef> inputs{product};
  inputs.insert(inputs.end(), desc.inputs.begin() + 2, desc.inputs.end());
  return compile_region(*body, inputs, desc.outputs, {.keep_inner = true});
}

KernelPtr make_fused(const StepDesc& desc) {
  return std::make_unique<FusedKernel>(region_of(desc), desc);
}

std::vector<std::string> code_keys(const StepDesc& desc) {
  return region_of(desc)->code_keys();
}

#ifndef TESSERA_HAVE_LLVM
std::string code_target() {
  return "";
}
bool code_runs_here(const std::string&) {
  return false;
}
std::optional<std::string> code_of(const std::string&) {
  return std::nullopt;
}
OfferedCode::OfferedCode(std::vector<std::pair<std::string, std::string>>) {}
OfferedCode::~OfferedCode() = default;
#endif

}  // namespace tessera
