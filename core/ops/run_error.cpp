// SPDX-License-Identifier: Apache-2.0
// The slot behind run_error.h.
#include "ops/run_error.h"

#include <atomic>
#include <mutex>

namespace tessera {
namespace {

struct Slot {
  std::atomic<bool> set{false};
  std::mutex lock;
  std::string message;
};

Slot& slot() {
  static Slot s;
  return s;
}

}  // namespace

void report_run_error(const RunCtx&, std::string message) {
  Slot& s = slot();
  const std::lock_guard guard(s.lock);
  if (s.set.load(std::memory_order_relaxed)) return;
  s.message = std::move(message);
  s.set.store(true, std::memory_order_release);
}

std::optional<std::string> take_run_error() {
  Slot& s = slot();
  // The common case costs one load.
  if (!s.set.load(std::memory_order_acquire)) return std::nullopt;
  const std::lock_guard guard(s.lock);
  s.set.store(false, std::memory_order_relaxed);
  return std::move(s.message);
}

}  // namespace tessera
