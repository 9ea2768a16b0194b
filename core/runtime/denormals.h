// SPDX-License-Identifier: Apache-2.0
// Flush-to-zero while a program runs, restored on exit: momentum of a dead unit decays into
// denormals and stays there, and each operation on one costs a microcode assist. The caller's
// setting is never changed.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace tessera {

class FlushDenormals {
 public:
#if defined(__x86_64__)
  FlushDenormals() : before_(_mm_getcsr()) {
    if (!already()) _mm_setcsr(before_ | kFlush);
  }
  ~FlushDenormals() {
    if (!already()) _mm_setcsr(before_);
  }
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;

 private:
  static constexpr unsigned kFlush = 0x8040;
  // Writing the register costs more than a small step; a run inside of a run leaves it alone.
  bool already() const {
    return (before_ & kFlush) == kFlush;
  }
  unsigned before_;
#endif
};

}  // namespace tessera
