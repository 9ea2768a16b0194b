// SPDX-License-Identifier: Apache-2.0
// Meeting point of the threads that run a function of a user: one that has returned or thrown is
// not waited for, however often the others still come.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>

namespace tessera {

class CustomTeam {
 public:
  void wait(uint32_t threads) {
    uint64_t now = word_.load(std::memory_order_relaxed), next;
    do next = opened(now + kArrived, threads);
    while (!word_.compare_exchange_weak(now, next, std::memory_order_acq_rel));
    const uint64_t phase = now & kPhases;
    for (int spin = 0; (word_.load(std::memory_order_acquire) & kPhases) == phase; ++spin)
      if (spin > 1000) std::this_thread::yield();
  }
  // Once per thread and run; the last one readies it for the next run.
  void leave(uint32_t threads) {
    uint64_t now = word_.load(std::memory_order_relaxed), next;
    do {
      next = opened(now + kLeft, threads);
      if ((next & kLeaving) / kLeft == threads) next = (next & kPhases) + kPhase;
    } while (!word_.compare_exchange_weak(now, next, std::memory_order_acq_rel));
  }

 private:
  static constexpr uint64_t kArrived = 1, kLeft = uint64_t{1} << 16, kPhase = uint64_t{1} << 32;
  static constexpr uint64_t kArriving = kLeft - 1, kLeaving = kPhase - kLeft,
                            kPhases = ~(kPhase - 1);

  // The next phase if nobody is missing.
  static uint64_t opened(uint64_t w, uint32_t threads) {
    const uint64_t arrived = w & kArriving;
    if (arrived == 0 || arrived + (w & kLeaving) / kLeft < threads) return w;
    return w - arrived + kPhase;
  }

  alignas(64) std::atomic<uint64_t> word_{0};
};

}  // namespace tessera
