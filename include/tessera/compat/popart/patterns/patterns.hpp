// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "pattern.hpp"

namespace popart {

template <typename PATTERN>
class PatternCreator {
 public:
  explicit PatternCreator(const std::string& name, bool enabled = true, bool mandatory = false) {
    (void)enabled;
    (void)mandatory;
    PATTERN().initialise(name);
  }
};

template <typename PATTERN>
using PreAliasPatternCreator = PatternCreator<PATTERN>;

}  // namespace popart
