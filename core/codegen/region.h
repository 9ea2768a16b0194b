// SPDX-License-Identifier: Apache-2.0
// Fused regions: a body of pointwise ops, perhaps ending in reductions, becomes one loop nest over
// its operands. Compiled with LLVM where it is built in, else interpreted element by element.
//
// A body is a graph whose sources are the operands in order and whose nodes are
// - rows of pointwise.def; operands broadcast as in PyTorch, the node's type says in which type it
// computes;
// - sum, amax, amin (x, dims, keepdim): only as outputs of the region, all over the same dims of
// one shape;
// - iota(dim, start, step): start + step * index along `dim` of the node's own shape;
// - uniform(key, stream): key is an i64[2] operand; the index is the row-major one of the iteration
// space. All pointwise outputs and all reduced values have one shape, the iteration space. An
// output may lie exactly on an operand with the same strides (an update in place); a reduced output
// may not. Strides are free, zero included.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/tensor.h"
#include "ir/graph.h"
#include "ops/kernel.h"

namespace tessera {

class Region {
 public:
  virtual ~Region() = default;

  // The iteration space as a matrix: `inner` is the fastest dim of the outputs after merging,
  // `outer` all others.
  int64_t outer() const { return outer_; }
  int64_t inner() const { return inner_; }
  // Element operations of one run, for the choice of the number of threads.
  int64_t cost() const { return cost_; }
  bool reduces() const { return reduces_; }
  // Whether the data may forbid it (integer division by zero), and whether it did since the last
  // call.
  bool may_fail() const { return may_fail_; }
  bool take_failure() const { return failed_.exchange(0, std::memory_order_relaxed) != 0; }
  // Memory that `run` shares between the threads of a team; nothing for pure pointwise regions.
  virtual int64_t scratch_bytes() const { return 0; }
  // Of the machine code that it runs; see code.h.
  virtual std::vector<std::string> code_keys() const { return {}; }

  // Computes all outputs over a box. Only for regions without reductions. `ptrs`: first elements of
  // the inputs, then of the outputs.
  virtual void run_box(std::byte* const* ptrs, int64_t o_begin, int64_t o_end, int64_t i_begin,
                       int64_t i_end) const = 0;
  // Everything, by a team: splits by ctx.thread, the same bits for every number of threads.
  virtual void run(const RunCtx& ctx, std::byte* const* ptrs) const = 0;

 protected:
  int64_t outer_ = 1, inner_ = 1, cost_ = 0;
  bool reduces_ = false, may_fail_ = false;
  mutable std::atomic<int32_t> failed_ = 0;  // written by generated code
};

struct RegionOptions {
  // Keep the last logical dim by itself as `inner` (epilogues address it by rows and columns).
  bool keep_inner = false;
};

std::unique_ptr<Region> compile_region(const Graph& body, const std::vector<TensorRef>& inputs,
                                       const std::vector<TensorRef>& outputs,
                                       const RegionOptions& options = {});

// The body of a step: of a fused one, or the epilogue of a product. Parses desc.body and compiles
// it.
std::unique_ptr<Region> region_of(const StepDesc& desc);
// The kernel of a `fused` step.
KernelPtr make_fused(const StepDesc& desc);

// How regions made from now on are executed. The default is the compiler where it is built in.
enum class CodegenBackend : uint8_t { kLlvm, kReference };
void set_codegen_backend(CodegenBackend backend);
CodegenBackend codegen_backend();
bool codegen_has_llvm();

// Of the process: kernels compiled by LLVM, kernels from files, requests served by an equal one,
// time spent.
struct CodegenStats {
  int64_t compiled = 0;
  int64_t linked = 0;
  int64_t reused = 0;
  double compile_ms = 0;
};
CodegenStats codegen_stats();

}  // namespace tessera
