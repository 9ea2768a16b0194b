// SPDX-License-Identifier: Apache-2.0
// Two builds of each hot kernel, and the choice between them. Every file *_isa.cpp is compiled for
// x86-64-v3 (AVX2) and for x86-64-v4 (AVX-512), with TESSERA_ISA naming the namespace its code goes
// into. A family of kernels is a struct of function pointers; its header says
//
//   TESSERA_KERNELS(NormKernels, norm)
//
// its norm_isa.cpp defines `const NormKernels norm_table{...}`, and everybody else calls
// norm_kernels().
#pragma once

#include <cstdint>

#ifndef TESSERA_ISA
#define TESSERA_ISA v3
#endif

// What *_isa.cpp files take from headers: inlined always, so that no copy of it compiled for
// AVX-512 is left for the linker to choose (tools/dev/check_isa.py).
#define TESSERA_INLINE inline __attribute__((always_inline))

namespace tessera::kernels {

enum class Isa : uint8_t { kV3, kV4 };

// The better one that processor and system can run, found out once. TESSERA_ISA=v3 in the
// environment forbids the other, for tests.
Isa host_isa();

// Whether code of kV4 may also use dot products of bf16.
bool host_has_bf16_dots();

// The two builds of a table, and the function that gives the one to use.
#define TESSERA_KERNELS(Table, name)                                 \
  namespace v3 {                                                     \
  extern const Table name##_table;                                   \
  }                                                                  \
  namespace v4 {                                                     \
  extern const Table name##_table;                                   \
  }                                                                  \
  TESSERA_INLINE const Table& name##_kernels(Isa isa = host_isa()) { \
    return isa == Isa::kV4 ? v4::name##_table : v3::name##_table;    \
  }

}  // namespace tessera::kernels
