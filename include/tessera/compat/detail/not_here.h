// SPDX-License-Identifier: Apache-2.0
// Functions that are known and not there: a call does not compile, and the message has the name.
#pragma once

#include <cstddef>

#define TESSERA_NOT_HERE(name)                                                         \
  template <typename... T>                                                             \
  int name(T&&...) {                                                                   \
    static_assert(sizeof...(T) == static_cast<std::size_t>(-1),                        \
                  #name " is not supported by Tessera's headers: docs/custom-ops.md"); \
    return 0;                                                                          \
  }
