// SPDX-License-Identifier: Apache-2.0
// Runs tasks of many micro-batches on a few threads. A task takes micro-batches in order, an IPU
// does one task at a time, and of all that may start the oldest micro-batch goes first, so that no
// more of them are on their way than the threads need.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <span>
#include <vector>

#include "plan/program.h"

namespace tessera {

class TaskSchedule {
 public:
  // Without `waits` all tasks of a micro-batch may run at once.
  TaskSchedule(std::span<const TaskDesc> tasks, bool waits);

  // Calls `run(task, micro_batch, thread)` for each task of each of `count` micro-batches. An
  // exception ends all threads and is thrown again here. `stop(thread)` is asked between tasks.
  void run(int64_t count, int threads, const std::function<void(int, int64_t, int)>& run,
           const std::function<bool(int)>& stop);

 private:
  struct Entry {
    int ipu = 0;
    std::vector<WaitDesc> waits;
    int64_t next = 0;  // micro-batch
    int64_t done = 0;
  };

  int pick() const;
  bool ready(const Entry& e) const;
  void work(int thread, const std::function<void(int, int64_t, int)>& run,
            const std::function<bool(int)>& stop);
  void wait(std::unique_lock<std::mutex>& lock);

  std::vector<Entry> entries_;
  std::vector<bool> busy_;  // by IPU
  int64_t count_ = 0;
  int64_t left_ = 0;  // tasks to finish
  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<uint64_t> version_{0};
  int sleepers_ = 0;
  bool ending_ = false;
  std::exception_ptr failure_;
};

}  // namespace tessera
