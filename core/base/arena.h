// SPDX-License-Identifier: Apache-2.0
// One block of memory for the life of a program, on huge pages where the system gives them: eager
// allocation spends a page fault of 1.4 to 2.6 us per 4 KB, this spends them once.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tessera {

// Bytes that this process may still fill without driving the machine out of memory.
int64_t available_memory();

// Throws MemoryError if `bytes` are more than that. The system grants more memory than it has and
// kills the process that uses it, so asking it is not enough.
void check_memory(int64_t bytes);

// Things in an arena start on lines of the cache.
constexpr int64_t whole_lines(int64_t bytes) {
  return (bytes + 63) / 64 * 64;
}

class Arena {
 public:
  Arena() = default;
  explicit Arena(int64_t bytes);  // zeroed; throws MemoryError
  ~Arena();
  Arena(Arena&& o) noexcept;
  Arena& operator=(Arena&& o) noexcept;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace tessera
