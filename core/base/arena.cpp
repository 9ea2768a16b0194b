// SPDX-License-Identifier: Apache-2.0
#include "base/arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <utility>

#include "base/error.h"

namespace tessera {
namespace {

double gib(int64_t bytes) {
  return static_cast<double>(bytes) / (1 << 30);
}

int64_t number_in(const char* path) {
  int64_t value = -1;
  std::ifstream(path) >> value;
  return value;
}

}  // namespace

int64_t available_memory() {
  int64_t free = 0, kilobytes = 0;
  std::string word;
  for (std::ifstream file("/proc/meminfo"); file >> word;)
    if ((word == "MemAvailable:" || word == "SwapFree:") && file >> kilobytes)
      free += kilobytes * 1024;
  if (free == 0) return INT64_MAX;  // not known
  // A container may have less; "max" is no number.
  int64_t limit = number_in("/sys/fs/cgroup/memory.max");
  int64_t used = number_in("/sys/fs/cgroup/memory.current");
  return limit > 0 && used >= 0 ? std::min(free, std::max<int64_t>(0, limit - used)) : free;
}

void check_memory(int64_t bytes) {
  const int64_t available = available_memory();
  if (bytes > available)
    throw MemoryError(fmt::format(
        "[memory] the program needs {:.2f} GiB at once but {:.2f} GiB are available on this "
        "machine. Try: a smaller micro-batch with gradientAccumulation, or a smaller model",
        gib(bytes), gib(available)));
}

Arena::Arena(int64_t bytes) {
  if (bytes <= 0) return;
  constexpr int64_t kHuge = 2 << 20;
  bytes = (bytes + kHuge - 1) / kHuge * kHuge;
  // Over-allocate so that the block can begin on a huge page.
  void* p = mmap(nullptr, static_cast<size_t>(bytes + kHuge), PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED)
    throw MemoryError(
        fmt::format("[memory] the system refuses {:.2f} GiB. Try: a smaller micro-batch with "
                    "gradientAccumulation",
                    gib(bytes)));
  auto start = reinterpret_cast<uintptr_t>(p);
  uintptr_t aligned = (start + kHuge - 1) / kHuge * kHuge;
  if (aligned > start) munmap(p, aligned - start);
  uintptr_t end = start + static_cast<uintptr_t>(bytes) + kHuge;
  if (end > aligned + static_cast<uintptr_t>(bytes))
    munmap(reinterpret_cast<void*>(aligned + static_cast<uintptr_t>(bytes)),
           end - aligned - static_cast<uintptr_t>(bytes));
  data_ = reinterpret_cast<std::byte*>(aligned);
  bytes_ = bytes;
  madvise(data_, static_cast<size_t>(bytes_), MADV_HUGEPAGE);
}

Arena::~Arena() {
  if (data_) munmap(data_, static_cast<size_t>(bytes_));
}

Arena::Arena(Arena&& o) noexcept
    : data_(std::exchange(o.data_, nullptr)), bytes_(std::exchange(o.bytes_, 0)) {}

Arena& Arena::operator=(Arena&& o) noexcept {
  std::swap(data_, o.data_);
  std::swap(bytes_, o.bytes_);
  return *this;
}

}  // namespace tessera
