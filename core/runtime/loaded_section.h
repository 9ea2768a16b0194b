// SPDX-License-Identifier: Apache-2.0
// A section of a program made runnable: a kernel per step, and where the threads of a team must
// meet between them.
#pragma once

#include <functional>
#include <string_view>
#include <vector>

#include "plan/program.h"
#include "runtime/run_config.h"

namespace tessera {

// A step that torch runs; the callback works on tensors that alias the program's memory.
struct HostCallInfo {
  int index = 0;
  StepDesc desc;
  std::byte* arena = nullptr;  // of its IPU
};

// All host calls of a program, and the functions that were given for them.
struct HostCalls {
  std::vector<HostCallInfo> infos;
  std::vector<std::function<void()>> functions;
};

struct LoadedStep {
  KernelPtr kernel;
  bool barrier_before = false;
  bool check_before = false;  // with the barrier: whether to go on
  bool poll_before = false;   // with the check: whether the caller wants to
  bool single = false;        // Kernel::single_thread
  std::string_view where;     // the user's line
  mutable double best_us = -1;
};

// Steps [begin, end) run by the team in one launch, or one top-level step.
struct Stretch {
  size_t begin = 0, end = 0;
  bool team = true;
  bool alone = false;  // no step of it is shared by threads
};

struct LoadedSection {
  std::vector<LoadedStep> steps;
  std::vector<Stretch> stretches;
  bool barrier_after = false;  // of the body of a loop
};

// Makes the kernels of `section`, whose region 0 is `arena`. Host calls are added to `hosts`, which
// must outlive them.
LoadedSection load_section(const Section& section, const RunConfig& config, std::byte* arena,
                           HostCalls& hosts);
// The same for the body of a loop: its first steps come after its last ones. Regions from
// `first_slice` to `last_slice`, the latter not included, are other memory in each turn. All
// threads read `tested`, if it is there, between two turns.
LoadedSection load_turns(const Section& section, const RunConfig& config, std::byte* arena,
                         HostCalls& hosts, int first_slice, int last_slice,
                         const TensorRef* tested = nullptr);

// The kernel of a step; `host` makes the kernel of a host call.
KernelPtr make_step(const StepDesc& desc, const std::function<KernelPtr(const StepDesc&)>& host);

}  // namespace tessera
