// SPDX-License-Identifier: Apache-2.0
// Collectives over replicas. Not supported in custom ops.
#pragma once

#include "../detail/not_here.h"
#include "../poplar/Graph.hpp"
#include "../poplar/Program.hpp"

namespace gcl {

TESSERA_NOT_HERE(allReduceCrossReplica)
TESSERA_NOT_HERE(allGatherCrossReplica)
TESSERA_NOT_HERE(reduceScatterCrossReplica)
TESSERA_NOT_HERE(allToAllCrossReplica)
TESSERA_NOT_HERE(broadcastCrossReplica)

}  // namespace gcl
