// SPDX-License-Identifier: Apache-2.0
// Typed code and the way its slots are walked -> LLVM IR of one function. Sizes and strides are
// run-time values, so the key of a kernel is its structure only.
#pragma once

#include <string>
#include <vector>

#include "codegen/jit.h"
#include "codegen/typed_code.h"

namespace tessera::codegen {

enum class Step : uint8_t { kZero, kUnit, kOther, kTwo };  // kTwo: a load of every second element

struct Walk {
  Step inner = Step::kZero;
  bool outer_moves = false;
  // Tiled loops only: the slot's unit stride is along the rows, so 16 x 16 tiles are transposed in
  // registers.
  bool transposed = false;
};

struct LoopSpec {
  const TypedCode* code = nullptr;
  std::vector<Walk> walks;  // per slot
  bool inner_reduced = false;
  bool outer_reduced = false;
  bool tiled = false;
  // Stores go past the cache; every vector that is stored must then be aligned to its size.
  bool streams = false;
};

std::string loop_key(const LoopSpec& spec);
void emit_loop(const LoopSpec& spec, llvm::Module& module, const std::string& name,
               const JitTarget& target);

}  // namespace tessera::codegen
