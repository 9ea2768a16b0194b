// SPDX-License-Identifier: Apache-2.0
#include "runtime/task_schedule.h"

#include <algorithm>
#include <chrono>

#include "runtime/clock.h"
#include "runtime/team.h"

namespace tessera {

TaskSchedule::TaskSchedule(std::span<const TaskDesc> tasks, bool waits) {
  int ipus = 0;
  for (const TaskDesc& t : tasks) {
    entries_.push_back({t.ipu, waits ? t.waits : std::vector<WaitDesc>{}});
    ipus = std::max(ipus, t.ipu + 1);
  }
  busy_.assign(static_cast<size_t>(ipus), false);
}

bool TaskSchedule::ready(const Entry& e) const {
  if (e.next >= count_ || busy_[e.ipu]) return false;
  return std::all_of(e.waits.begin(), e.waits.end(),
                     [&](const WaitDesc& w) { return entries_[w.task].done > e.next - w.lag; });
}

int TaskSchedule::pick() const {
  int best = -1;
  for (size_t i = entries_.size(); i-- > 0;)
    if ((best < 0 || entries_[i].next < entries_[best].next) && ready(entries_[i]))
      best = static_cast<int>(i);
  return best;
}

// Spins before it sleeps, as the barrier does.
void TaskSchedule::wait(std::unique_lock<std::mutex>& lock) {
  const uint64_t seen = version_.load(std::memory_order_acquire);
  lock.unlock();
  for (int spin = 0; spin < kSpins; ++spin) {
    if (version_.load(std::memory_order_acquire) != seen) break;
    pause();
  }
  lock.lock();
  if (version_.load(std::memory_order_acquire) != seen) return;
  ++sleepers_;
  changed_.wait_for(lock, std::chrono::milliseconds(5));
  --sleepers_;
}

void TaskSchedule::work(int thread, const std::function<void(int, int64_t, int)>& run,
                        const std::function<bool(int)>& stop) {
  auto tell = [&] {
    version_.fetch_add(1, std::memory_order_release);
    if (sleepers_ > 0) changed_.notify_all();
  };
  std::unique_lock<std::mutex> lock(mutex_);
  while (!ending_ && left_ > 0) {
    bool leave = false;
    std::exception_ptr error;
    lock.unlock();
    try {
      leave = stop(thread);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    if (leave || error) {
      ending_ = true;
      if (!failure_) failure_ = error;
      tell();
      return;
    }
    const int t = pick();
    if (t < 0) {
      if (!ending_ && left_ > 0) wait(lock);
      continue;
    }
    Entry& e = entries_[t];
    const int64_t micro = e.next++;
    busy_[e.ipu] = true;
    lock.unlock();
    try {
      run(t, micro, thread);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    busy_[e.ipu] = false;
    ++e.done;
    --left_;
    if (error) {
      ending_ = true;
      if (!failure_) failure_ = error;
    }
    tell();
  }
}

void TaskSchedule::run(int64_t count, int threads,
                       const std::function<void(int, int64_t, int)>& run,
                       const std::function<bool(int)>& stop) {
  count_ = count;
  left_ = count * static_cast<int64_t>(entries_.size());
  ending_ = false;
  failure_ = nullptr;
  for (Entry& e : entries_) e.next = e.done = 0;
  std::fill(busy_.begin(), busy_.end(), false);
  run_team(threads, [&](int thread) { work(thread, run, stop); });
  if (failure_) std::rethrow_exception(failure_);
}

}  // namespace tessera
