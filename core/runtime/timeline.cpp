// SPDX-License-Identifier: Apache-2.0
#include "runtime/timeline.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "base/error.h"
#include "base/json.h"

namespace tessera {

Timeline::Timeline(std::string file, int threads)
    : file_(std::move(file)), events_(static_cast<size_t>(threads)) {
  // Said before the first call has trained anything.
  if (!file_.empty())
    user_check(std::ofstream(file_, std::ios::app).good(), "TESSERA_TRACE: cannot write {}: {}",
               file_, std::strerror(errno));
}

void Timeline::write(const Program& program, int64_t replicas) {
  if (file_.empty()) return;
  std::ofstream out(file_);
  out << "{\"traceEvents\": [";
  const char* comma = "\n";
  auto add = [&](const json::Object& event) {
    out << comma << json::text(event);
    comma = ",\n";
  };
  const int ipus = static_cast<int>(program.ipus.size());
  for (int64_t r = 0; r < replicas; ++r)
    for (int i = 0; i < ipus; ++i) {
      const std::string row = fmt::format("IPU {}", r * ipus + i);
      json::Object named;
      named.add("ph", "M").add("name", "thread_name").add("pid", r).add("tid", i);
      add(named.add("args", json::Object().add("name", row)));
    }
  for (size_t thread = 0; thread < events_.size(); ++thread) {
    for (const Event& e : events_[thread]) {
      const TaskDesc* t = e.task == kUpdate ? nullptr : &program.tasks[e.task];
      json::Object event;
      event.add("ph", "X").add("name", t == nullptr ? "update" : t->name);
      event.add("cat", t == nullptr ? "update" : t->backward ? "bwd" : "fwd");
      event.add("pid", e.replica).add("tid", t == nullptr ? 0 : t->ipu);
      event.add("ts", 1e6 * e.start, 3).add("dur", 1e6 * (e.end - e.start), 3);
      add(event.add("args", json::Object().add("micro_batch", e.step).add("thread", thread)));
    }
    events_[thread].clear();
  }
  out << "\n]}\n";
  user_check(out.flush().good(), "TESSERA_TRACE: cannot write {}", file_);
}

}  // namespace tessera
