// SPDX-License-Identifier: Apache-2.0
#include "base/arena.h"

#include <sys/mman.h>
#include <sys/sysinfo.h>

#include <utility>

#include "base/error.h"

namespace tessera {

Arena::Arena(int64_t bytes) {
  if (bytes <= 0) return;
  constexpr int64_t kHuge = 2 << 20;
  bytes = (bytes + kHuge - 1) / kHuge * kHuge;
  struct sysinfo info {};
  if (sysinfo(&info) == 0) {
    int64_t total =
        static_cast<int64_t>(info.totalram + info.totalswap) * static_cast<int64_t>(info.mem_unit);
    if (bytes > total)
      throw MemoryError(fmt::format(
          "[memory] the program needs {:.2f} GiB at once but this machine has {:.2f} GiB. Try: a "
          "smaller "
          "micro-batch with gradientAccumulation, or recomputation of activations",
          static_cast<double>(bytes) / (1 << 30), static_cast<double>(total) / (1 << 30)));
  }
  // Over-allocate so that the block can begin on a huge page.
  void* p = mmap(nullptr, static_cast<size_t>(bytes + kHuge), PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED)
    throw MemoryError(
        fmt::format("[memory] the system refuses {:.2f} GiB. Try: a smaller micro-batch with "
                    "gradientAccumulation",
                    static_cast<double>(bytes) / (1 << 30)));
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
