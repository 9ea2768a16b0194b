// SPDX-License-Identifier: Apache-2.0
// Elements named by index tensors: walks along an index, offsets of elements, and how a new element
// is combined with the one that is there.
#include <immintrin.h>

#include <cstring>
#include <type_traits>

#include "kernels/gather.h"

namespace tessera::kernels {
namespace {

struct Wide {
  uint64_t a, b;
};

// Whether n entries of an index lie in [low, high): the differences to both ends have no sign. The
// loop has no way out, so that it is vector code.
template <typename I>
bool in_range(const I* index, int64_t step, int64_t n, int64_t low, int64_t high) {
  const auto first = static_cast<uint64_t>(low), last = static_cast<uint64_t>(high) - 1;
  uint64_t signs = 0;
  auto look = [&](I i) {
    const auto u = static_cast<uint64_t>(static_cast<int64_t>(i));
    signs |= (u - first) | (last - u);
  };
  if (step == 1)
    for (int64_t k = 0; k < n; ++k) look(index[k]);
  else
    for (int64_t k = 0; k < n; ++k) look(index[k * step]);
  return static_cast<int64_t>(signs) >= 0;
}

// Entries that are checked ahead of their use.
constexpr int64_t kAhead = 256;

// f(entry, offset of the element in the target) for every entry up to the first bad index.
template <typename I, bool plain, typename F>
int64_t walk_steps(const IndexWalk& w, F f) {
  const I* index = reinterpret_cast<const I*>(w.index);
  const int64_t index_step = plain ? 1 : w.index_step, target_step = plain ? 0 : w.target_step,
                dim_step = plain ? 1 : w.dim_step;
  for (int64_t k = 0; k < w.n;) {
    const int64_t end = k + kAhead < w.n ? k + kAhead : w.n;
    if (in_range(index + k * index_step, index_step, end - k, 0, w.extent)) {
#pragma GCC unroll 4
      for (; k < end; ++k) f(k, k * target_step + index[k * index_step] * dim_step);
      continue;
    }
    for (; k < end; ++k) {
      const int64_t i = index[k * index_step];
      if (i < 0 || i >= w.extent) return k;
      f(k, k * target_step + i * dim_step);
    }
  }
  return w.n;
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
      return walk_steps<int16_t, false>(w, f);
    case DType::I8:
      return walk_steps<int8_t, false>(w, f);
    default:
      return walk_steps<uint8_t, false>(w, f);
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

// One combination as a type, so that loops are compiled for it.
template <Combine how>
struct Combined {
  template <typename T>
  T operator()(T a, T b) const {
    if constexpr (how == Combine::kMax || how == Combine::kMin) {
      const T kept = (how == Combine::kMax ? a < b : b < a) ? b : a;
      return b != b ? b : kept;
    } else if constexpr (how == Combine::kSet) {
      return b;
    } else if constexpr (std::is_floating_point_v<T>) {
      return how == Combine::kSum ? a + b : a * b;
    } else {
      const auto x = static_cast<uint64_t>(a), y = static_cast<uint64_t>(b);
      return static_cast<T>(how == Combine::kSum ? x + y : x * y);
    }
  }
};

// Calls f(a value of the type of computation, the combination).
template <typename F>
auto with_combination(DType dtype, Combine how, F f) {
  if (how == Combine::kSet)
    return with_element(size_of(dtype), [&](auto t) { return f(t, Combined<Combine::kSet>{}); });
  auto typed = [&](auto t) {
    switch (how) {
      case Combine::kSum:
        return f(t, Combined<Combine::kSum>{});
      case Combine::kProd:
        return f(t, Combined<Combine::kProd>{});
      case Combine::kMax:
        return f(t, Combined<Combine::kMax>{});
      default:
        return f(t, Combined<Combine::kMin>{});
    }
  };
  switch (dtype) {
    case DType::F32:
      return typed(float{});
    case DType::F64:
      return typed(double{});
    case DType::I64:
      return typed(int64_t{});
    case DType::I32:
      return typed(int32_t{});
    case DType::I16:
      return typed(int16_t{});
    case DType::I8:
      return typed(int8_t{});
    case DType::U64:
      return typed(uint64_t{});
    case DType::U32:
      return typed(uint32_t{});
    case DType::U16:
      return typed(uint16_t{});
    case DType::Bool:  // true + true is true
      return how == Combine::kSum || how == Combine::kMax ? f(uint8_t{}, Combined<Combine::kMax>{})
                                                          : f(uint8_t{}, Combined<Combine::kMin>{});
    default:
      return typed(uint8_t{});
  }
}

// f(k, offset) for the offsets inside their bounds.
template <typename F>
void for_offsets(const Offsets& o, F f) {
  const int64_t* at = o.at;
  if (!o.bounded) {
#pragma GCC unroll 4
    for (int64_t k = 0; k < o.n; ++k) f(k, at[k]);
    return;
  }
  const auto span = static_cast<uint64_t>(o.high - o.low);
  for (int64_t k = 0; k < o.n; ++k)
    if (static_cast<uint64_t>(at[k] - o.low) < span) f(k, at[k]);
}

// A short run by overlapping vectors; longer ones are left to the C library.
inline void copy_run(const std::byte* src, std::byte* dst, int64_t bytes) {
  if (bytes > 512 || bytes < 32) {
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

// Calls f with a pointer of the index's type.
template <typename F>
auto with_index(const std::byte* index, DType dtype, F f) {
  switch (dtype) {
    case DType::I64:
      return f(reinterpret_cast<const int64_t*>(index));
    case DType::I32:
      return f(reinterpret_cast<const int32_t*>(index));
    case DType::I16:
      return f(reinterpret_cast<const int16_t*>(index));
    case DType::I8:
      return f(reinterpret_cast<const int8_t*>(index));
    default:
      return f(reinterpret_cast<const uint8_t*>(index));
  }
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

int64_t scatter_walk(const IndexWalk& w, std::byte* target, const std::byte* other,
                     int64_t other_step, DType dtype, Combine how) {
  return with_combination(dtype, how, [&]<typename T>(T, auto combine) {
    T* to = reinterpret_cast<T*>(target);
    const T* from = reinterpret_cast<const T*>(other);
    return walk(w, [=](int64_t k, int64_t at) { to[at] = combine(to[at], from[k * other_step]); });
  });
}

bool indices_in_range(const IndexWalk& w, bool wraps) {
  return with_index(w.index, w.index_dtype, [&](const auto* index) {
    return in_range(index, w.index_step, w.n, wraps ? -w.extent : 0, w.extent);
  });
}

int64_t add_offsets(const IndexWalk& w, bool wraps, int64_t* offsets) {
  return with_index(w.index, w.index_dtype, [&](const auto* index) {
    const int64_t low = wraps ? -w.extent : 0, extent = w.extent, step = w.dim_step;
    int64_t n = w.n;
    if (!in_range(index, w.index_step, n, low, extent))
      for (n = 0; index[n * w.index_step] >= low && index[n * w.index_step] < extent;) ++n;
    if (w.index_step == 1 && step == 1)
      for (int64_t k = 0; k < n; ++k) {
        const int64_t i = index[k];
        offsets[k] += i < 0 ? i + extent : i;
      }
    else
      for (int64_t k = 0; k < n; ++k) {
        const int64_t i = index[k * w.index_step];
        offsets[k] += (i < 0 ? i + extent : i) * step;
      }
    return n;
  });
}

void gather_runs(const Offsets& offsets, int64_t run, const std::byte* target, std::byte* other,
                 int64_t other_step, int64_t size) {
  // Short runs move as one element.
  const int64_t bytes = run * size;
  if (bytes <= 16 && (bytes & (bytes - 1)) == 0) {
    with_element(bytes, [&]<typename T>(T) {
      for_offsets(offsets, [=](int64_t k, int64_t at) {
        std::memcpy(other + k * other_step * size, target + at * size, sizeof(T));
      });
      return 0;
    });
    return;
  }
  for_offsets(offsets, [=](int64_t k, int64_t at) {
    copy_run(target + at * size, other + k * other_step * size, bytes);
  });
}

void scatter_runs(const Offsets& offsets, int64_t run, std::byte* target, const std::byte* other,
                  int64_t other_step, DType dtype, Combine how) {
  if (run > 1 && how == Combine::kSet) {
    const int64_t size = size_of(dtype);
    for_offsets(offsets, [=](int64_t k, int64_t at) {
      copy_run(other + k * other_step * size, target + at * size, run * size);
    });
    return;
  }
  with_combination(dtype, how, [&]<typename T>(T, auto combine) {
    T* to = reinterpret_cast<T*>(target);
    const T* from = reinterpret_cast<const T*>(other);
    if (run > 1)
      for_offsets(offsets, [=](int64_t k, int64_t at) {
        T* __restrict t = to + at;
        const T* __restrict f = from + k * other_step;
        for (int64_t j = 0; j < run; ++j) t[j] = combine(t[j], f[j]);
      });
    else
      for_offsets(offsets,
                  [=](int64_t k, int64_t at) { to[at] = combine(to[at], from[k * other_step]); });
    return 0;
  });
}

void sum_rows(const float* table, int64_t row_step, const int64_t* rows, const float* weights,
              int64_t n, float* out, int64_t width) {
  constexpr int64_t kLanes = 8, kBlock = 8;  // vectors that stay in registers
  auto columns = [&]<int64_t count>(std::integral_constant<int64_t, count>, int64_t j) {
    __m256 sum[count];
    for (auto& v : sum) v = _mm256_setzero_ps();
    for (int64_t k = 0; k < n; ++k) {
      const float* row = table + rows[k] * row_step + j;
      const __m256 w = _mm256_set1_ps(weights ? weights[k] : 1.0f);
      for (int64_t q = 0; q < count; ++q)
        sum[q] = _mm256_add_ps(sum[q], _mm256_mul_ps(w, _mm256_loadu_ps(row + q * kLanes)));
    }
    for (int64_t q = 0; q < count; ++q) _mm256_storeu_ps(out + j + q * kLanes, sum[q]);
  };
  int64_t j = 0;
  for (; j + kBlock * kLanes <= width; j += kBlock * kLanes)
    columns(std::integral_constant<int64_t, kBlock>{}, j);
  for (; j + kLanes <= width; j += kLanes) columns(std::integral_constant<int64_t, 1>{}, j);
  for (; j < width; ++j) {
    float sum = 0;
    for (int64_t k = 0; k < n; ++k)
      sum += (weights ? weights[k] : 1.0f) * table[rows[k] * row_step + j];
    out[j] = sum;
  }
}

bool has_arithmetic(DType dtype) {
  return dtype == DType::F32 || dtype == DType::F64 || is_int(dtype) || dtype == DType::Bool;
}

void combine_strided(const std::byte* src, int64_t src_step, std::byte* dst, int64_t dst_step,
                     int64_t n, DType dtype, Combine how) {
  if (how == Combine::kSet) {
    copy_strided(src, src_step, dst, dst_step, n, size_of(dtype));
    return;
  }
  with_combination(dtype, how, [&]<typename T>(T, auto combine) {
    const T* from = reinterpret_cast<const T*>(src);
    T* to = reinterpret_cast<T*>(dst);
    if (src_step == 1 && dst_step == 1)
      for (int64_t i = 0; i < n; ++i) to[i] = combine(to[i], from[i]);
    else
      for (int64_t i = 0; i < n; ++i)
        to[i * dst_step] = combine(to[i * dst_step], from[i * src_step]);
    return 0;
  });
}

}  // namespace tessera::kernels
