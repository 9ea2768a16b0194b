// SPDX-License-Identifier: Apache-2.0
// Mutants of program text: small damage that keeps most of the structure, so that much of it gets
// past the parser. The same seed gives the same mutants on every machine.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "session/session.h"

namespace tessera::fuzz {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next() {  // splitmix64
    uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  size_t below(size_t n) { return n ? next() % n : 0; }
  bool one_in(size_t n) { return below(n) == 0; }
  template <typename List>
  const auto& pick(const List& list) {
    return list[below(std::size(list))];
  }

 private:
  uint64_t state_;
};

struct Mutant {
  std::string text;
  CompileOptions options;
};

// One change of the text; lines of other programs may come in.
void damage(std::string& text, const std::vector<std::string>& programs, Random& r);

// Mutant `index` of `seed`: one of the programs, damaged one to a few times.
Mutant make_mutant(const std::vector<std::string>& programs, uint64_t seed, uint64_t index);

// All programs below `dirs`: files *.tir, with the program and the expected text of a case each on
// its own.
std::vector<std::string> read_programs(const std::vector<std::string>& dirs);

}  // namespace tessera::fuzz
