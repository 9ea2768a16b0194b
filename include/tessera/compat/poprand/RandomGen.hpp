// SPDX-License-Identifier: Apache-2.0
// Random numbers of Poplar. Not supported: they belong to the seed of a program, which an op has
// not.
#pragma once

#include "../detail/not_here.h"
#include "../poplar/Graph.hpp"
#include "../poplar/Program.hpp"

namespace poprand {

TESSERA_NOT_HERE(uniform)
TESSERA_NOT_HERE(logUniform)
TESSERA_NOT_HERE(normal)
TESSERA_NOT_HERE(truncatedNormal)
TESSERA_NOT_HERE(bernoulli)
TESSERA_NOT_HERE(dropout)
TESSERA_NOT_HERE(shapedDropout)

}  // namespace poprand
