// SPDX-License-Identifier: Apache-2.0
// Which of the two builds of an ISA kernel this processor runs. Every file *_isa.cpp is compiled
// for x86-64-v3 (AVX2) and x86-64-v4 (AVX-512) into namespaces v3 and v4; its plain neighbour picks
// a table with this.
#pragma once

namespace tessera::kernels {

// True if processor and system can run x86-64-v4 code. TESSERA_ISA=v3 in the environment says no,
// for tests.
bool cpu_has_avx512();

// True if it also has dot products of bf16.
bool cpu_has_avx512_bf16();

}  // namespace tessera::kernels
