// SPDX-License-Identifier: Apache-2.0
// Results of 64 bits as results of 32 bits, which is all that callers get.
#pragma once

#include <cstdint>

namespace tessera {

// Integers keep their low 32 bits, floats are rounded. False if a value does not fit: an integer
// that changes, a finite float that becomes infinite.
bool narrow(const int64_t* from, int32_t* to, int64_t count);
bool narrow(const double* from, float* to, int64_t count);

}  // namespace tessera
