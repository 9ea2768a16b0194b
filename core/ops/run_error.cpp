// SPDX-License-Identifier: Apache-2.0
#include "ops/run_error.h"

namespace tessera {

void RunErrors::report(RunError error) {
  const std::lock_guard guard(lock_);
  if (set_.load(std::memory_order_relaxed)) return;
  first_ = std::move(error);
  set_.store(true, std::memory_order_release);
}

std::optional<RunError> RunErrors::take() {
  // The common case costs one load.
  if (!set_.load(std::memory_order_acquire)) return std::nullopt;
  const std::lock_guard guard(lock_);
  set_.store(false, std::memory_order_relaxed);
  return std::move(first_);
}

}  // namespace tessera
