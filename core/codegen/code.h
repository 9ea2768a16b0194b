// SPDX-License-Identifier: Apache-2.0
// Machine code of fused regions on its way to files and back. It holds no addresses: what it calls
// of this binary is named by its place in it, so it is good for this build alone.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ops/kernel.h"

namespace tessera {

// What machine code that is made here needs: the build, and the CPU with its features.
std::string code_target();
// Whether all of that is here; code for a lesser CPU than this one is not taken, as that which is
// made here is faster.
bool code_runs_here(const std::string& target);

// Keys of the code that the kernel of a step was made of; `desc` has a body.
std::vector<std::string> code_keys(const StepDesc& desc);
// The object file of a key that this process has compiled or was offered.
std::optional<std::string> code_of(const std::string& key);
// Object files that are linked instead of compiled, should their keys be asked for while this
// lives.
class OfferedCode {
 public:
  explicit OfferedCode(std::vector<std::pair<std::string, std::string>> objects);
  ~OfferedCode();
  OfferedCode(const OfferedCode&) = delete;
  OfferedCode& operator=(const OfferedCode&) = delete;

 private:
  std::vector<std::string> keys_;
};

}  // namespace tessera
