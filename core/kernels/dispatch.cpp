// SPDX-License-Identifier: Apache-2.0
// What the processor can run.
#include "kernels/dispatch.h"

#include "base/env.h"

namespace tessera::kernels {

namespace {

Isa detect() {
  if (env::isa() == "v3") return Isa::kV3;
  __builtin_cpu_init();
  const bool v4 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                  __builtin_cpu_supports("avx512vl");
  return v4 ? Isa::kV4 : Isa::kV3;
}

}  // namespace

Isa host_isa() {
  static const Isa isa = detect();
  return isa;
}

bool host_has_bf16_dots() {
  static const bool has = host_isa() == Isa::kV4 && __builtin_cpu_supports("avx512bf16");
  return has;
}

}  // namespace tessera::kernels
