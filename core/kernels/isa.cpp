// SPDX-License-Identifier: Apache-2.0
// Run-time choice of instruction set.
#include "kernels/isa.h"

#include <cstdlib>
#include <string_view>

namespace tessera::kernels {

namespace {

bool detect_avx512() {
  const char* forced = std::getenv("TESSERA_ISA");
  if (forced != nullptr && std::string_view(forced) == "v3") return false;
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl");
}

}  // namespace

bool cpu_has_avx512() {
  static const bool has = detect_avx512();
  return has;
}

bool cpu_has_avx512_bf16() {
  static const bool has = cpu_has_avx512() && __builtin_cpu_supports("avx512bf16");
  return has;
}

}  // namespace tessera::kernels
