// SPDX-License-Identifier: Apache-2.0
// Work on several threads at once: OpenMP's, which are also PyTorch's (ADR 5).
#pragma once

#include <omp.h>

#ifdef __SANITIZE_THREAD__
#include <thread>
#include <vector>
#endif

namespace tessera {

// Calls `body(thread)` on each of `threads` threads and returns when all are done.
template <typename F>
void run_team(int threads, const F& body) {
  if (threads == 1) return body(0);
#ifdef __SANITIZE_THREAD__
  // The sanitizer sees no order between OpenMP's threads and their caller, because libgomp is built
  // without it.
  std::vector<std::thread> team;
  for (int i = 1; i < threads; ++i) team.emplace_back(body, i);
  body(0);
  for (std::thread& t : team) t.join();
#else
#pragma omp parallel num_threads(threads)
  body(omp_get_thread_num());
#endif
}

}  // namespace tessera
