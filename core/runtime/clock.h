// SPDX-License-Identifier: Apache-2.0
// Times of runs and of steps, and how a thread waits for a moment.
#pragma once

#include <chrono>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace tessera {

inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// The best of several times in microseconds; below zero before the first.
inline void keep_best(double& best, std::chrono::steady_clock::time_point start) {
  const double us = 1e6 * seconds_since(start);
  if (best < 0 || us < best) best = us;
}

// So many pauses, about 0.1 ms, before a waiting thread sleeps.
constexpr int kSpins = 2000;

inline void pause() {
#if defined(__x86_64__)
  _mm_pause();  // about 49 ns here
#endif
}

}  // namespace tessera
