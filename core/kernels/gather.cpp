// SPDX-License-Identifier: Apache-2.0
// Strided copies, fills and additions. They wait for memory, so one build for the baseline
// processor is enough.
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

template <typename T>
void add_t(const std::byte* s, int64_t ss, std::byte* d, int64_t ds, int64_t n) {
  const T* src = reinterpret_cast<const T*>(s);
  T* dst = reinterpret_cast<T*>(d);
  if (ss == 1 && ds == 1)
    for (int64_t i = 0; i < n; ++i) dst[i] = static_cast<T>(dst[i] + src[i]);
  else
    for (int64_t i = 0; i < n; ++i) dst[i * ds] = static_cast<T>(dst[i * ds] + src[i * ss]);
}

}  // namespace

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

bool has_add(DType dtype) {
  return dtype == DType::F32 || dtype == DType::F64 || is_int(dtype) || dtype == DType::Bool;
}

void add_strided(const std::byte* src, int64_t src_step, std::byte* dst, int64_t dst_step,
                 int64_t n, DType dtype) {
  switch (dtype) {
    case DType::F32:
      add_t<float>(src, src_step, dst, dst_step, n);
      break;
    case DType::F64:
      add_t<double>(src, src_step, dst, dst_step, n);
      break;
    case DType::I64:
      add_t<int64_t>(src, src_step, dst, dst_step, n);
      break;
    case DType::I32:
      add_t<int32_t>(src, src_step, dst, dst_step, n);
      break;
    case DType::I16:
      add_t<int16_t>(src, src_step, dst, dst_step, n);
      break;
    case DType::Bool: {  // true + true is true
      for (int64_t i = 0; i < n; ++i) dst[i * dst_step] |= src[i * src_step];
      break;
    }
    default:
      add_t<uint8_t>(src, src_step, dst, dst_step, n);
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
