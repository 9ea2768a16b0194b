// SPDX-License-Identifier: Apache-2.0
// Errors that only the data can cause (an index out of range). A kernel runs on a team of threads
// and must not throw: it reports the first failure here, goes on without touching foreign memory,
// and the engine asks after the run.
#pragma once

#include <atomic>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "base/error.h"
#include "ops/kernel.h"

namespace tessera {

struct RunError {
  std::string message;
  std::string where;  // the user's line
};

// One per engine, because programs may run side by side.
class RunErrors {
 public:
  // Keeps the first.
  void report(RunError error);
  // The first error reported since the last call, if any.
  std::optional<RunError> take();
  bool any() const { return set_.load(std::memory_order_acquire); }

 private:
  std::atomic<bool> set_{false};
  std::mutex lock_;
  RunError first_;
};

template <typename... Args>
void fail_run(const RunCtx& c, fmt::format_string<Args...> text, Args&&... args) {
  if (c.errors)
    c.errors->report({fmt::format(text, std::forward<Args>(args)...), std::string(c.where)});
}

}  // namespace tessera
