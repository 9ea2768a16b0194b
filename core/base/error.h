// SPDX-License-Identifier: Apache-2.0
// The kinds of failure: what the user did (UserError, shown as poptorch.Error), what we did
// (InternalError), and what happened to a device (RecoverableError). All carry a message that says
// what, where and what to try.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace tessera {

class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message, std::string location = {})
      : std::runtime_error(message), location_(std::move(location)) {}
  // The line of the user's program that it is about; may be empty.
  const std::string& location() const { return location_; }

 private:
  std::string location_;
};

// The program or its input is wrong; the executor stays usable.
class UserError : public Error {
 public:
  using Error::Error;
};

// Our bug. Tests treat one of these as a failure, whatever they expected.
class InternalError : public Error {
 public:
  using Error::Error;
};

// The host has not enough memory for the plan.
class MemoryError : public UserError {
 public:
  using UserError::UserError;
};

// The run was stopped from outside (Ctrl-C) between two steps.
class Interrupted : public Error {
 public:
  using Error::Error;
};

// A device failed, and its memory is lost; `action` cures it, in PopTorch's words.
class RecoverableError : public Error {
 public:
  RecoverableError(std::string action, const std::string& message)
      : Error(message), action_(std::move(action)) {}
  const std::string& action() const { return action_; }

 private:
  std::string action_;
};

template <typename... Args>
void user_check(bool ok, fmt::format_string<Args...> text, Args&&... args) {
  if (!ok) [[unlikely]]
    throw UserError(fmt::format(text, std::forward<Args>(args)...));
}

template <typename... Args>
void invariant(bool ok, fmt::format_string<Args...> text, Args&&... args) {
  if (!ok) [[unlikely]]
    throw InternalError("internal error: " + fmt::format(text, std::forward<Args>(args)...));
}

}  // namespace tessera
