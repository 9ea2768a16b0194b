// SPDX-License-Identifier: Apache-2.0
// One program through the whole compiler, and a run where it is small.
#pragma once

#include <string>

#include "damage.h"

namespace tessera::fuzz {

enum class Outcome : int { kRefused, kCompiled, kRan, kRunRefused, kBad };

struct Result {
  Outcome outcome = Outcome::kRefused;
  std::string message;  // of kBad: what is wrong with it
};

// Parses, checks, runs every pass alone and the pipeline, compiles, runs. Anything but success or a
// UserError is bad; so is an error of the text that does not say where.
Result try_program(const Mutant& m, Random& r);

// Runs a program that is small, on data of all kinds; false if it is not. Throws as a run does.
bool run_engine(Engine& engine, Random& r);

}  // namespace tessera::fuzz
