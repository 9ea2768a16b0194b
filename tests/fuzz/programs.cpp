// SPDX-License-Identifier: Apache-2.0
// Where mutants come from: the programs on disk, and options beside the text.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "damage.h"

namespace tessera::fuzz {
namespace {

int64_t edge(Random& r) {
  constexpr int64_t kEdges[] = {
      0, 1, 2, 3, 4, -1, 7, 64, 65536, INT32_MAX, INT64_MAX, INT64_MIN, int64_t{1} << 40};
  return kEdges[r.one_in(2) ? r.below(5) : r.below(std::size(kEdges))];
}

void damage_options(CompileOptions& o, Random& r) {
  LocationRule* places[] = {&o.placement.activations, &o.placement.weights, &o.placement.optimizer,
                            &o.placement.accumulators};
  LocationRule& place = *r.pick(places);
  switch (r.below(16)) {
    case 0:
      o.run.device_iterations = edge(r);
      break;
    case 1:
      o.run.gradient_accumulation = edge(r);
      break;
    case 2:
      o.run.replicas = edge(r);
      break;
    case 3:
      o.run.input_group = edge(r);
      break;
    case 4:
      o.run.threads = static_cast<int>(edge(r));
      break;
    case 5:
      o.run.output = {static_cast<OutputMode>(r.below(4)), edge(r)};
      break;
    case 6:
      o.run.outputs.push_back({static_cast<OutputMode>(r.below(4)), edge(r)});
      break;
    case 7:
      o.run.grouped.push_back({"w", edge(r), r.one_in(2)});
      break;
    case 8:
      o.placement.strategy = static_cast<Strategy>(r.below(4));
      break;
    case 9:
      o.placement.liveness = static_cast<Liveness>(r.below(6));
      break;
    case 10:
      place = {edge(r), r.one_in(2), edge(r), edge(r)};
      break;
    case 11:
      o.settings.set("running_mean", Arg::boolean(true));
      break;
    case 12:
      o.settings.set("half_partials", Arg::boolean(true));
      break;
    case 13:
      o.settings.set("stochastic_rounding", Arg::boolean(true));
      break;
    case 14:
      o.run.check_floats = true;
      break;
    default:
      o.placement.recompute = o.placement.separate_backward = r.one_in(2);
  }
}

}  // namespace

Mutant make_mutant(const std::vector<std::string>& programs, uint64_t seed, uint64_t index) {
  Random r(seed * 0x9e3779b97f4a7c15u + index);
  r.next();
  Mutant m{r.pick(programs), {}};
  m.options.settings.set("training", Arg::boolean(r.one_in(2)));
  m.options.run.threads = 1 + static_cast<int>(r.below(2));
  if (r.one_in(2)) m.options.placement.strategy = Strategy::kPipelined;
  for (size_t n = 1 + r.below(r.one_in(4) ? 6 : 2); n > 0; --n) damage(m.text, programs, r);
  if (r.one_in(3))
    for (size_t n = 1 + r.below(3); n > 0; --n) damage_options(m.options, r);
  return m;
}

std::vector<std::string> read_programs(const std::vector<std::string>& dirs) {
  std::vector<std::filesystem::path> files;
  for (const std::string& dir : dirs)
    for (const auto& entry : std::filesystem::recursive_directory_iterator(dir))
      if (entry.path().extension() == ".tir") files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  std::vector<std::string> out;
  for (const auto& path : files) {
    std::ifstream in(path);
    const std::string text{std::istreambuf_iterator<char>(in), {}};
    // A file of pass cases holds several programs.
    for (size_t at = text.find("tessera 1"); at != std::string::npos;) {
      const size_t next = text.find("tessera 1", at + 1);
      std::string one = text.substr(at, next == std::string::npos ? next : next - at);
      for (const char* mark : {"// case:", "// expect:"})
        if (size_t end = one.find(mark); end != std::string::npos) one.resize(end);
      out.push_back(one);
      at = next;
    }
  }
  return out;
}

}  // namespace tessera::fuzz
