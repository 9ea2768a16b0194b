// SPDX-License-Identifier: Apache-2.0
#include "passes/partition.h"

namespace tessera {
namespace {

constexpr WordSetting<Strategy, 4> kStrategy{"strategy",
                                             Strategy::kOne,
                                             {{"one", Strategy::kOne},
                                              {"pipelined", Strategy::kPipelined},
                                              {"sharded", Strategy::kSharded},
                                              {"phased", Strategy::kPhased}}};
constexpr Setting<bool> kRecompute{"recompute", true};
constexpr Setting<bool> kSeparateBackward{"separate_backward", false};
constexpr Setting<int64_t> kLiveness{"liveness", 0, 0,
                                     static_cast<int64_t>(Liveness::kOffChipAfterEachPhase)};

// On chip, sharded, and from how many elements on each.
using Location = std::tuple<int64_t, bool, int64_t, int64_t>;
constexpr Setting<Location> kActivations{"location_activation"}, kWeights{"location_weight"},
    kOptimizer{"location_optimizer"}, kAccumulators{"location_accumulator"};

LocationRule rule(const Settings& settings, Setting<Location> from) {
  const LocationRule plain;
  from.fallback = {plain.on_chip, plain.sharded, plain.min_off_chip, plain.min_sharded};
  const auto [on_chip, sharded, off_chip_from, sharded_from] = settings.get(from);
  return {on_chip, sharded, off_chip_from, sharded_from};
}

}  // namespace

PartitionOptions read_partition_options(const Settings& settings) {
  PartitionOptions o;
  o.strategy = settings.get(kStrategy);
  o.recompute = settings.get(kRecompute);
  o.separate_backward = settings.get(kSeparateBackward);
  o.liveness = static_cast<Liveness>(settings.get(kLiveness));
  o.activations = rule(settings, kActivations);
  o.weights = rule(settings, kWeights);
  o.optimizer = rule(settings, kOptimizer);
  o.accumulators = rule(settings, kAccumulators);
  return o;
}

const LocationRule* PartitionOptions::rule_of(SourceKind kind) const {
  switch (kind) {
    case SourceKind::kParam:
      return &weights;
    case SourceKind::kOptimizer:
      return &optimizer;
    case SourceKind::kAccumulator:
      return &accumulators;
    default:
      return nullptr;
  }
}

bool PartitionOptions::state_off_chip(SourceKind kind, const Dims& shape) const {
  const LocationRule* rule = rule_of(kind);
  return rule && rule->off_chip(strategy == Strategy::kPhased, product(shape));
}

bool PartitionOptions::has_locations() const {
  const LocationRule plain;
  return activations != plain || weights != plain || optimizer != plain || accumulators != plain;
}

}  // namespace tessera
