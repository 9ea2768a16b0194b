// SPDX-License-Identifier: Apache-2.0
// The process's one JIT: turns a module builder into a function, once per key.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

namespace llvm {
class Module;
}

namespace tessera::codegen {

// A compiled loop nest of two dims. Per slot: where its first element is (for an index slot: the
// first index), and the bytes (indices) from one row to the next and from one column to the next.
using LoopFn = void (*)(std::byte* const* ptrs, const int64_t* outer_strides,
                        const int64_t* inner_strides, const int64_t* params, int64_t rows,
                        int64_t columns);

struct JitTarget {
  bool avx512 = false;
  bool bf16 = false;  // AVX-512 with conversions to bf16
};

// The function for `key`, compiled by filling a module with a function called `name` if it is new.
// Thread-safe; the code stays until the process ends.
LoopFn jit_function(
    const std::string& key,
    const std::function<void(llvm::Module&, const std::string& name, const JitTarget&)>& fill);

// The name by which machine code calls a function of this binary.
std::string symbol_of(const void* function);

}  // namespace tessera::codegen
