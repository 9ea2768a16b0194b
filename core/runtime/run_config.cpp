// SPDX-License-Identifier: Apache-2.0
#include "runtime/run_config.h"

#include "base/env.h"

namespace tessera {
namespace {

constexpr Setting<bool> kCheckFloats{"check_floats", false};
constexpr Setting<int64_t> kDeviceIterations{"device_iterations", 1};
constexpr Setting<int64_t> kGradientAccumulation{"gradient_accumulation", 1};
constexpr Setting<int64_t> kReplicas{"replicas", 1};
constexpr Setting<int64_t> kInputGroup{"input_group", 1};
constexpr Setting<bool> kOrthogonalGroups{"orthogonal_groups", false};
constexpr Setting<int64_t> kThreads{"threads", 1, 1, 65535};
// Parameter, size of its groups, whether they are orthogonal.
const Setting<std::vector<std::tuple<std::string, int64_t, bool>>> kGrouped{"grouped"};
// Mode and period of each output.
const Setting<std::vector<std::tuple<std::string, int64_t>>> kOutputs{"outputs"};
constexpr WordSetting<OutputMode, 4> kMode{"outputs",
                                           OutputMode::kFinal,
                                           {{"final", OutputMode::kFinal},
                                            {"all", OutputMode::kAll},
                                            {"sum", OutputMode::kSum},
                                            {"every_n", OutputMode::kEveryN}}};

}  // namespace

RunConfig read_run_config(const Settings& s) {
  RunConfig c;
  c.device_iterations = s.get(kDeviceIterations);
  c.gradient_accumulation = s.get(kGradientAccumulation);
  c.replicas = s.get(kReplicas);
  c.input_group = s.get(kInputGroup);
  c.orthogonal_groups = s.get(kOrthogonalGroups);
  for (auto& [name, size, orthogonal] : s.get(kGrouped))
    c.grouped.push_back({name, size, orthogonal});
  for (auto& [mode, period] : s.get(kOutputs))
    c.outputs.push_back({settings::word(kMode, mode), period});
  c.threads = static_cast<int>(s.get(kThreads));
  c.check_floats = s.get(kCheckFloats);
  c.trace = env::trace();
  return c;
}

}  // namespace tessera
