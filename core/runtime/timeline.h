// SPDX-License-Identifier: Apache-2.0
// Which task ran when and on which thread, written as the trace viewers of Chrome and Perfetto read
// it: a process per replica, a row per IPU.
#pragma once

#include <string>
#include <vector>

#include "plan/program.h"

namespace tessera {

class Timeline {
 public:
  // Nothing is kept without a file to write to.
  Timeline(std::string file, int threads);

  static constexpr int kUpdate = -1;
  // `thread` is the one that calls; times are seconds since the program was loaded.
  void add(int thread, int task, int64_t step, int64_t replica, double start, double end) {
    if (!file_.empty())
      events_[static_cast<size_t>(thread)].push_back({task, step, replica, start, end});
  }
  // Writes what was added since the last time.
  void write(const Program& program, int64_t replicas);

 private:
  struct Event {
    int task;
    int64_t step, replica;
    double start, end;
  };
  std::string file_;
  std::vector<std::vector<Event>> events_;  // by thread
};

}  // namespace tessera
