// SPDX-License-Identifier: Apache-2.0
// Strided copies and fills. They wait for memory, so one build for the baseline processor is
// enough.
#include "kernels/gather.h"

#include <immintrin.h>

#include <cstring>

namespace tessera::kernels {
namespace {

struct Wide {
  uint64_t a, b;
};

template <typename T>
void copy_t(const std::byte* s, int64_t ss, std::byte* d, int64_t ds, int64_t n) {
  const T* src = reinterpret_cast<const T*>(s);
  T* dst = reinterpret_cast<T*>(d);
  if (ds == 1 && ss == -1)  // a flip: steps that the compiler knows become shuffles
    for (int64_t i = 0; i < n; ++i) dst[i] = src[-i];
  else if (ds == 1 && ss == 0)
    for (int64_t i = 0; i < n; ++i) dst[i] = src[0];
  else
    for (int64_t i = 0; i < n; ++i) dst[i * ds] = src[i * ss];
}

template <typename T>
void fill_t(const std::byte* v, std::byte* d, int64_t step, int64_t n) {
  T value;
  std::memcpy(&value, v, sizeof(T));
  T* dst = reinterpret_cast<T*>(d);
  if (step == 1)
    for (int64_t i = 0; i < n; ++i) dst[i] = value;
  else
    for (int64_t i = 0; i < n; ++i) dst[i * step] = value;
}

// A short row by overlapping vectors; longer ones are left to the C library.
inline void copy_bytes(const std::byte* src, std::byte* dst, int64_t bytes) {
  if (bytes > 256 || bytes < 32) {
    std::memcpy(dst, src, static_cast<size_t>(bytes));
    return;
  }
  auto move = [&](int64_t at) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(dst + at),
                        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(src + at)));
  };
  for (int64_t at = 0; at + 32 <= bytes; at += 32) move(at);
  if (bytes % 32) move(bytes - 32);
}

}  // namespace

void copy_rows(const std::byte* src, int64_t src_row, int64_t src_step, std::byte* dst,
               int64_t dst_row, int64_t dst_step, int64_t rows, int64_t n, int64_t size) {
  if (src_step == 1 && dst_step == 1) {
    for (int64_t r = 0; r < rows; ++r)
      copy_bytes(src + r * src_row * size, dst + r * dst_row * size, n * size);
    return;
  }
  for (int64_t r = 0; r < rows; ++r)
    copy_strided(src + r * src_row * size, src_step, dst + r * dst_row * size, dst_step, n, size);
}

void copy_strided(const std::byte* src, int64_t src_step, std::byte* dst, int64_t dst_step,
                  int64_t n, int64_t size) {
  if (src_step == 1 && dst_step == 1) {
    std::memcpy(dst, src, static_cast<size_t>(n * size));
    return;
  }
  switch (size) {
    case 1:
      copy_t<uint8_t>(src, src_step, dst, dst_step, n);
      break;
    case 2:
      copy_t<uint16_t>(src, src_step, dst, dst_step, n);
      break;
    case 4:
      copy_t<uint32_t>(src, src_step, dst, dst_step, n);
      break;
    case 8:
      copy_t<uint64_t>(src, src_step, dst, dst_step, n);
      break;
    default:
      copy_t<Wide>(src, src_step, dst, dst_step, n);
      break;
  }
}

void fill_strided(const std::byte* value, std::byte* dst, int64_t step, int64_t n, int64_t size) {
  switch (size) {
    case 1:
      fill_t<uint8_t>(value, dst, step, n);
      break;
    case 2:
      fill_t<uint16_t>(value, dst, step, n);
      break;
    case 4:
      fill_t<uint32_t>(value, dst, step, n);
      break;
    case 8:
      fill_t<uint64_t>(value, dst, step, n);
      break;
    default:
      fill_t<Wide>(value, dst, step, n);
      break;
  }
}

void add_scaled(const float* src, float* dst, int64_t n, float scale) {
  for (int64_t i = 0; i < n; ++i) dst[i] += src[i] * scale;
}

void zero_bytes(std::byte* dst, int64_t bytes) {
  constexpr int64_t kLarge = 4 << 20;  // larger than a core's share of the caches
  if (bytes < kLarge) {
    std::memset(dst, 0, static_cast<size_t>(bytes));
    return;
  }
  const int64_t head = static_cast<int64_t>(-reinterpret_cast<uintptr_t>(dst) & 63);
  std::memset(dst, 0, static_cast<size_t>(head));
  const int64_t lines = (bytes - head) / 64;
  auto* p = reinterpret_cast<__m256i*>(dst + head);
  const __m256i zero = _mm256_setzero_si256();
  for (int64_t i = 0; i < lines; ++i) {
    _mm256_stream_si256(p + 2 * i, zero);
    _mm256_stream_si256(p + 2 * i + 1, zero);
  }
  _mm_sfence();  // the other threads must see it after the next barrier
  std::memset(dst + head + lines * 64, 0, static_cast<size_t>(bytes - head - lines * 64));
}

}  // namespace tessera::kernels
