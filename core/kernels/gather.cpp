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

// f(entry, offset of the element in the target) for every entry up to the first bad index.
template <typename I, bool plain, typename F>
int64_t walk_steps(const IndexWalk& w, F f) {
  const I* index = reinterpret_cast<const I*>(w.index);
  const int64_t index_step = plain ? 1 : w.index_step, target_step = plain ? 0 : w.target_step,
                dim_step = plain ? 1 : w.dim_step, extent = w.extent, n = w.n;
  for (int64_t k = 0; k < n; ++k) {
    int64_t i = index[k * index_step];
    i += i < 0 ? extent : 0;
    if (static_cast<uint64_t>(i) >= static_cast<uint64_t>(extent)) [[unlikely]]
      return k;
    f(k, k * target_step + i * dim_step);
  }
  return n;
}

// Contiguous lines are the common case and run without multiplications.
template <typename I, typename F>
int64_t walk_typed(const IndexWalk& w, F f) {
  if (w.index_step == 1 && w.target_step == 0 && w.dim_step == 1) return walk_steps<I, true>(w, f);
  return walk_steps<I, false>(w, f);
}

template <typename F>
int64_t walk(const IndexWalk& w, F f) {
  switch (w.index_dtype) {
    case DType::I64:
      return walk_typed<int64_t>(w, f);
    case DType::I32:
      return walk_typed<int32_t>(w, f);
    case DType::I16:
      return walk_typed<int16_t>(w, f);
    case DType::I8:
      return walk_typed<int8_t>(w, f);
    default:
      return walk_typed<uint8_t>(w, f);
  }
}

// Calls f with a value of an unsigned type of `size` bytes.
template <typename F>
auto with_element(int64_t size, F f) {
  switch (size) {
    case 1:
      return f(uint8_t{});
    case 2:
      return f(uint16_t{});
    case 4:
      return f(uint32_t{});
    case 8:
      return f(uint64_t{});
    default:
      return f(Wide{});
  }
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

int64_t gather_walk(const IndexWalk& w, const std::byte* target, std::byte* other,
                    int64_t other_step, int64_t size) {
  return with_element(size, [&]<typename T>(T) {
    const T* from = reinterpret_cast<const T*>(target);
    T* to = reinterpret_cast<T*>(other);
    return walk(w, [=](int64_t k, int64_t at) { to[k * other_step] = from[at]; });
  });
}

int64_t scatter_walk(const IndexWalk& w, std::byte* target, const std::byte* value, int64_t size) {
  return with_element(size, [&]<typename T>(T) {
    T v;
    std::memcpy(&v, value, sizeof v);
    T* to = reinterpret_cast<T*>(target);
    return walk(w, [=](int64_t, int64_t at) { to[at] = v; });
  });
}

int64_t scatter_add_walk(const IndexWalk& w, std::byte* target, const std::byte* other,
                         int64_t other_step, DType dtype) {
  auto add = [&]<typename T>(T) {
    T* to = reinterpret_cast<T*>(target);
    const T* from = reinterpret_cast<const T*>(other);
    return walk(
        w, [=](int64_t k, int64_t at) { to[at] = static_cast<T>(to[at] + from[k * other_step]); });
  };
  switch (dtype) {
    case DType::F32:
      return add(float{});
    case DType::F64:
      return add(double{});
    case DType::I64:
      return add(int64_t{});
    case DType::I32:
      return add(int32_t{});
    default:
      return walk(w, [=](int64_t k, int64_t at) {
        const int64_t size = size_of(dtype);
        add_strided(other + k * other_step * size, 1, target + at * size, 1, 1, dtype);
      });
  }
}

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
