// SPDX-License-Identifier: Apache-2.0
// Errors that only the data can cause (an index out of range). A kernel runs on a team of threads
// and must not throw: it reports the first failure here, goes on without touching foreign memory,
// and the engine asks after the run.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "base/error.h"
#include "ops/kernel.h"

namespace tessera {

void report_run_error(const RunCtx& c, std::string message);

// The first error reported since the last call, if any.
std::optional<std::string> take_run_error();

template <typename... Args>
void fail_run(const RunCtx& c, fmt::format_string<Args...> text, Args&&... args) {
  report_run_error(c, fmt::format(text, std::forward<Args>(args)...));
}

}  // namespace tessera
