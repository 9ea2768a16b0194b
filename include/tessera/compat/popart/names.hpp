// SPDX-License-Identifier: Apache-2.0
// Names of the types that the interface of ops is made of.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace popart {

using Shape = std::vector<int64_t>;
using Rank = int;
using InIndex = int;
using OutIndex = int;
using TensorId = std::string;
using OpId = int;
using OpName = std::string;
using OpDomain = std::string;
using OpType = std::string;
using OpVersion = unsigned;
using VGraphId = int64_t;
using PipelineStage = int64_t;
using ExecutionPhase = int64_t;
using BatchSerializedPhase = int64_t;
using StashIndex = int64_t;
using StepIndex = int;
using RandomReferenceId = int64_t;
using SubgraphPartIndex = int;
using GraphId = std::string;
using TaskId = std::string;
using ReplicatedTensorShardingIndices = std::set<std::pair<std::set<InIndex>, std::set<OutIndex>>>;

class AliasModel;
class Graph;
class Ir;
class Op;
class OpSerialiserBase;
class Tensor;

namespace popx {
class Devicex;
class Opx;
}  // namespace popx

enum class ExecutionContext {
  Normal,
  AccumulateOuterFragment,
  WeightsFromHostFragment,
  WeightsToHostFragment,
  OptimizerFromHostFragment,
  Subgraph
};
enum class RecomputeType { Undefined = 0, Checkpoint, Recompute, Recomputed };
enum class ScheduledPreLoss { Yes, No, Undefined };
enum class TileSet { Compute, IO, Undefined, N };
enum class InputCreatorType {
  CanCreate,
  CanUnwind,
  CanCreateOrUnwind,
  CanDelegate,
  CanDelegateOrUnwind,
  Deadend
};

}  // namespace popart
