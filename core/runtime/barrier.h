// SPDX-License-Identifier: Apache-2.0
// Barrier of a small team. Spins for about 0.1 ms, then sleeps: an unbounded spin costs 4 ms when
// another process holds the core (notes on interference in docs/adr/0005).
#pragma once

#include <atomic>

#include "runtime/clock.h"

namespace tessera {

class Barrier {
 public:
  explicit Barrier(int count) : count_(count) {}

  // Only while nobody waits.
  void resize(int count) { count_ = count; }

  void wait() {
    wait([] {});
  }
  // `last` is run by the thread that arrives last, before any of them goes on.
  template <typename F>
  void wait(F last) {
    uint32_t phase = phase_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == count_) {
      last();
      arrived_.store(0, std::memory_order_relaxed);
      phase_.fetch_add(1, std::memory_order_release);
      if (sleepers_.load(std::memory_order_seq_cst) > 0) phase_.notify_all();
      return;
    }
    for (int spin = 0; spin < kSpins; ++spin) {
      if (phase_.load(std::memory_order_acquire) != phase) return;
      pause();
    }
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    phase_.wait(phase, std::memory_order_acquire);
    sleepers_.fetch_sub(1, std::memory_order_relaxed);
  }

 private:
  int count_;
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<uint32_t> phase_{0};
  alignas(64) std::atomic<int> sleepers_{0};
};

}  // namespace tessera
