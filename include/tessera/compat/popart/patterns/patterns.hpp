// SPDX-License-Identifier: Apache-2.0
// Which patterns there are. Objects of PatternCreator at namespace scope say so when a library is
// loaded; Options._Popart.setPatterns switches them on and off.
#pragma once

#include <memory>
#include <string>

#include "../../detail/recorder.h"
#include "pattern.hpp"

namespace popart {
namespace detail {

struct PatternEntry {
  std::unique_ptr<PreAliasPattern> pattern;
  bool enabled, mandatory;
  bool on() const {
    const std::string key = "pattern " + pattern->getPatternName();
    return mandatory || tessera_fact(key.c_str(), enabled) != 0;
  }
};

// Kept for the life of the process; of two of one name the first counts.
inline void add_pattern(PreAliasPattern* pattern, bool enabled, bool mandatory) {
  std::unique_ptr<PatternEntry> e(new PatternEntry{nullptr, enabled, mandatory});
  e->pattern.reset(pattern);
  if (!tessera_creator_add("pattern", pattern->getPatternName().c_str(), e.get())) e.release();
}

// Until none of them finds anything more. What takes the results (`results`) is none of their
// business.
inline void apply_patterns(Graph& graph, const Op* results) {
  constexpr int kMostRounds = 1000;
  for (int round = 0; round < kMostRounds; ++round) {
    const PatternEntry* changed = nullptr;
    for (int64_t i = 0; void* found = tessera_creator_at("pattern", i); ++i) {
      const PatternEntry& e = *static_cast<const PatternEntry*>(found);
      if (!e.on()) continue;
      for (const auto& entry : graph.getOps()) {
        Op* op = entry.second;
        if (op == results || !graph.getOps().count(entry.first)) continue;
        if (op->settings.excludePatterns.count(e.pattern->getPatternName())) continue;
        if (e.pattern->matches(op) && e.pattern->apply(op)) changed = &e;
      }
    }
    if (!changed) return;
    if (round + 1 == kMostRounds)
      throw error("the pattern {} finds something to change again and again",
                  changed->pattern->getPatternName());
  }
}

}  // namespace detail

template <typename PATTERN>
class PatternCreator {
 public:
  explicit PatternCreator(const std::string& name, bool enabled = true, bool mandatory = false) {
    std::unique_ptr<PATTERN> pattern(new PATTERN);
    pattern->initialise(name);
    detail::add_pattern(pattern.release(), enabled, mandatory);
  }
};

template <typename PATTERN>
using PreAliasPatternCreator = PatternCreator<PATTERN>;

}  // namespace popart
