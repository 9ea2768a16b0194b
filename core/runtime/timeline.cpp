// SPDX-License-Identifier: Apache-2.0
#include "runtime/timeline.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "base/error.h"

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
  out << "{\"traceEvents\": [\n";
  const int ipus = static_cast<int>(program.ipus.size());
  for (int64_t r = 0; r < replicas; ++r)
    for (int i = 0; i < ipus; ++i)
      out << fmt::format(
          "{{\"ph\": \"M\", \"name\": \"thread_name\", \"pid\": {}, \"tid\": {}, \"args\": "
          "{{\"name\": \"IPU {}\"}}}},\n",
          r, i, r * ipus + i);
  const char* comma = "";
  for (size_t thread = 0; thread < events_.size(); ++thread) {
    for (const Event& e : events_[thread]) {
      const TaskDesc* t = e.task == kUpdate ? nullptr : &program.tasks[e.task];
      const char* kind = t == nullptr ? "update" : t->backward ? "bwd" : "fwd";
      out << comma
          << fmt::format(
                 "{{\"ph\": \"X\", \"name\": \"{}\", \"cat\": \"{}\", \"pid\": {}, \"tid\": {}, "
                 "\"ts\": {:.3f}, \"dur\": {:.3f}, \"args\": {{\"micro_batch\": {}, \"thread\": "
                 "{}}}}}",
                 t == nullptr ? "update" : t->name, kind, e.replica, t == nullptr ? 0 : t->ipu,
                 1e6 * e.start, 1e6 * (e.end - e.start), e.step, thread);
      comma = ",\n";
    }
    events_[thread].clear();
  }
  out << "\n]}\n";
  user_check(out.flush().good(), "TESSERA_TRACE: cannot write {}", file_);
}

}  // namespace tessera
