// SPDX-License-Identifier: Apache-2.0
#include "session/narrow.h"

#include <cmath>

namespace tessera {

bool narrow(const int64_t* from, int32_t* to, int64_t count) {
  int64_t differs = 0;
  for (int64_t i = 0; i < count; ++i) {
    to[i] = static_cast<int32_t>(from[i]);
    differs |= from[i] ^ to[i];
  }
  return differs == 0;
}

bool narrow(const double* from, float* to, int64_t count) {
  bool overflow = false;
  for (int64_t i = 0; i < count; ++i) {
    to[i] = static_cast<float>(from[i]);
    overflow |= std::isinf(to[i]) & !std::isinf(from[i]);
  }
  return !overflow;
}

}  // namespace tessera
