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

// A number that may not be there; here none is.
template <typename T>
class Optional {
 public:
  Optional() {}
  Optional(const T& x) : there_(true), value_(x) {}
  explicit operator bool() const { return there_; }
  bool has_value() const { return there_; }
  const T& operator*() const { return value_; }
  const T& value() const { return value_; }
  const T& value_or(const T& otherwise) const { return there_ ? value_ : otherwise; }
  bool operator==(const Optional& o) const {
    return there_ == o.there_ && (!there_ || value_ == o.value_);
  }
  bool operator!=(const Optional& o) const { return !(*this == o); }

 private:
  bool there_ = false;
  T value_ = T();
};
using OptionalVGraphId = Optional<VGraphId>;
using OptionalPipelineStage = Optional<PipelineStage>;
using OptionalExecutionPhase = Optional<ExecutionPhase>;
using OptionalBatchSerializedPhase = Optional<BatchSerializedPhase>;

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
