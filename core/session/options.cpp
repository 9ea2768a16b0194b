// SPDX-License-Identifier: Apache-2.0
#include "session/compile.h"

namespace tessera {
namespace {

using settings::check_range;

constexpr int64_t kMost = (int64_t{1} << 31) - 1;
const Setting<std::vector<std::string>> kAnchors{"anchors"};

void check_rule(const OutputRule& rule) {
  check_range("output_return_period", rule.period, 1, kMost);
}

void check_location(const char* name, const LocationRule& rule) {
  check_range(name, rule.on_chip, -1, 1);
}

}  // namespace

CompileOptions read_options(const Settings& settings) {
  return {settings, read_run_config(settings), read_partition_options(settings),
          settings.get(kAnchors)};
}

void check_options(const CompileOptions& options) {
  const RunConfig& run = options.run;
  check_range("device_iterations", run.device_iterations, 1, kMost);
  check_range("gradient_accumulation", run.gradient_accumulation, 1, kMost);
  check_range("replicas", run.replicas, 1, 65535);
  check_range("threads", run.threads, 1, 65535);
  // Each micro-batch has a place in the inputs, the outputs and the table of times.
  const int64_t batches = kMost / run.replicas / run.gradient_accumulation;
  user_check(run.device_iterations <= batches,
             "[options] {} device iterations of {} micro-batches on {} replicas are too many for "
             "one call",
             run.device_iterations, run.gradient_accumulation, run.replicas);
  auto check_group = [&](const char* name, int64_t size) {
    user_check(size >= 1 && run.replicas % size == 0,
               "[options] {} of {} does not divide {} replicas", name, size, run.replicas);
  };
  check_group("input_group", run.input_group);
  for (const GroupedParam& p : run.grouped) check_group("a group", p.group_size);
  check_rule(run.output);
  for (const OutputRule& rule : run.outputs) check_rule(rule);
  const PartitionOptions& place = options.placement;
  check_range("strategy", static_cast<int64_t>(place.strategy), 0,
              static_cast<int64_t>(Strategy::kPhased));
  check_range("liveness", static_cast<int64_t>(place.liveness), 0,
              static_cast<int64_t>(Liveness::kOffChipAfterEachPhase));
  check_location("location_activation", place.activations);
  check_location("location_weight", place.weights);
  check_location("location_optimizer", place.optimizer);
  check_location("location_accumulator", place.accumulators);
}

}  // namespace tessera
