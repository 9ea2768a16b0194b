// SPDX-License-Identifier: Apache-2.0
// Errors with texts such as popart::error("{} of {}", a, b).
#pragma once

#include <stdexcept>
#include <string>

#include "../detail/format.h"

namespace popart {

class error : public std::runtime_error {
 public:
  explicit error(const char* text) : std::runtime_error(text) {}
  explicit error(const std::string& text) : std::runtime_error(text) {}
  template <typename First, typename... Rest>
  explicit error(const char* text, const First& first, const Rest&... rest)
      : std::runtime_error(tessera_compat::format(text, first, rest...)) {}
  template <typename First, typename... Rest>
  explicit error(const std::string& text, const First& first, const Rest&... rest)
      : std::runtime_error(tessera_compat::format(text, first, rest...)) {}
};

class internal_error : public error {
 public:
  using error::error;
};
class runtime_error : public error {
 public:
  using error::error;
};

}  // namespace popart
