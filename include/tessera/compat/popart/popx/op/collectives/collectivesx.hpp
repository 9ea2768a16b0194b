// SPDX-License-Identifier: Apache-2.0
// What ops over replicas have in common when they grow.
#pragma once

#include "../../../../gcl/Collectives.hpp"
#include "../../../op/collectives/collectives.hpp"
#include "../../opx.hpp"

namespace popart {
namespace popx {

inline gcl::CollectiveOperator getPoplarCollectiveOperator(CollectiveOperator op) {
  return static_cast<gcl::CollectiveOperator>(op);
}
inline gcl::CommGroup toGclCommGroup(const ReplicaGrouping& g) {
  if (g.getNumReplicas() != tessera_fact("replicas", 1))
    throw error("{} in a program of {} replicas", g, tessera_fact("replicas", 1));
  return gcl::CommGroup(gcl::CommGroupType::CONSECUTIVE, static_cast<unsigned>(g.getGroupSize()),
                        static_cast<unsigned>(g.getStride()));
}
inline gcl::CommGroup toGclCommGroup(const CommGroup& g) {
  return toGclCommGroup(g.toReplicaGrouping(tessera_fact("replicas", 1)));
}

class CollectivesBaseOpx : public Opx {
 public:
  using Opx::Opx;
};

}  // namespace popx
}  // namespace popart
