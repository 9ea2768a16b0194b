// SPDX-License-Identifier: Apache-2.0
// What one op does, as numbers: the currency between op rows, the IPU Model and the reports.
#pragma once

#include <cstdint>

namespace tessera {

enum class WorkKind : uint8_t {
  kNone,
  kPointwise,
  kReduce,
  kMatMul,
  kConv,
  kGather,
  kCopy,
  kRandom,
  kHost
};

struct Work {
  WorkKind kind = WorkKind::kNone;
  int64_t flops = 0;
  int64_t bytes = 0;                       // read + written
  int64_t m = 0, n = 0, k = 0, batch = 1;  // of matmul-like work
  double available_memory = 0;             // share of tile memory for temporaries, 0 if unset
};

}  // namespace tessera
