// SPDX-License-Identifier: Apache-2.0
// See sort.h. Long rows are sorted digit by digit (least first), short ones by insertion.
#include "kernels/sort.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <type_traits>

namespace tessera::kernels {
namespace {

// f16 and bf16 as they lie in memory; `inf` has the bits of infinity.
template <uint16_t inf>
struct Half {
  uint16_t bits;
};
using F16 = Half<0x7c00>;
using Bf16 = Half<0x7f80>;

template <size_t bytes>
using Unsigned = std::conditional_t<
    bytes == 1, uint8_t,
    std::conditional_t<bytes == 2, uint16_t, std::conditional_t<bytes == 4, uint32_t, uint64_t>>>;

template <typename T>
struct IsHalf : std::false_type {};
template <uint16_t inf>
struct IsHalf<Half<inf>> : std::true_type {};

// The order of T as the order of unsigned numbers.
template <typename T>
struct Order {
  using K = Unsigned<sizeof(T)>;
  static constexpr bool kFloat = std::is_floating_point_v<T> || IsHalf<T>::value;
  static constexpr K kSign = K(K(1) << (sizeof(T) * 8 - 1)), kNan = K(~K(0));

  static constexpr K infinity() {
    if constexpr (std::is_same_v<T, F16>)
      return 0x7c00;
    else if constexpr (std::is_same_v<T, Bf16>)
      return 0x7f80;
    else
      return std::bit_cast<K>(std::numeric_limits<T>::infinity());
  }
  // Without branches, so that loops over it become vectors.
  static K key(T x) {
    const K b = std::bit_cast<K>(x);
    if constexpr (kFloat) {
      using S = std::make_signed_t<K>;
      const K size = b & K(~kSign);
      const K negative = K(S(b) >> (sizeof(K) * 8 - 1)) & K(size != 0 ? ~K(0) : K(0));  // -0 is 0
      const K up = K(size ^ negative) ^ kSign;
      return S(size) > S(infinity()) ? kNan : up;
    } else if constexpr (std::is_signed_v<T>) {
      return b ^ kSign;
    } else {
      return b;
    }
  }
  // Whether the element cannot be told from its key.
  static bool lossy(K key) { return kFloat && (key == kNan || key == kSign); }
  static T element(K key) {
    K b = key;
    if constexpr (kFloat)
      b = key & kSign ? K(key ^ kSign) : K(~key);
    else if constexpr (std::is_signed_v<T>)
      b = key ^ kSign;
    return std::bit_cast<T>(b);
  }
};

struct WidePair {
  uint64_t key_bits;
  int64_t at;
  bool operator<(const WidePair& o) const {
    return key_bits != o.key_bits ? key_bits < o.key_bits : at < o.at;
  }
};

// Key above index in one number, if both fit.
template <typename K>
struct Pairs {
  using P = uint64_t;
  static P make(K key, int64_t at) { return uint64_t(key) << 32 | uint32_t(at); }
  static K key(P p) { return K(p >> 32); }
  static int64_t index(P p) { return uint32_t(p); }
};
template <>
struct Pairs<uint64_t> {
  using P = WidePair;
  static P make(uint64_t key, int64_t at) { return {key, at}; }
  static uint64_t key(const P& p) { return p.key_bits; }
  static int64_t index(const P& p) { return p.at; }
};

template <typename T>
struct Sorter {
  using O = Order<T>;
  using K = typename O::K;
  using Q = Pairs<K>;
  using P = typename Q::P;

  static K key_at(const SortRow& r, int64_t i) {
    const K k = O::key(reinterpret_cast<const T*>(r.x)[i * r.step]);
    return K(k ^ (r.descending ? K(~K(0)) : K(0)));
  }

  // f(index, key) for all elements; keys are made in blocks, which the compiler vectorises.
  template <typename F>
  static void for_keys(const SortRow& r, F f) {
    constexpr int64_t kBlock = 256;
    alignas(64) K keys[kBlock];
    for (int64_t i = 0; i < r.n; i += kBlock) {
      const int64_t n = std::min(kBlock, r.n - i), step = r.step;
      const T* x = reinterpret_cast<const T*>(r.x) + i * step;
      const K flip = r.descending ? K(~K(0)) : K(0);
      if (step == 1)
        for (int64_t j = 0; j < n; ++j) keys[j] = O::key(x[j]) ^ flip;
      else
        for (int64_t j = 0; j < n; ++j) keys[j] = O::key(x[j * step]) ^ flip;
      for (int64_t j = 0; j < n; ++j) f(i + j, keys[j]);
    }
  }

  static void load(const SortRow& r, void* out) {
    P* p = static_cast<P*>(out);
    for_keys(r, [&](int64_t i, K key) { p[i] = Q::make(key, r.first + i); });
  }

  static int digit_of(const P& p, int digit) { return (Q::key(p) >> (8 * digit)) & 0xff; }

  static void count(const void* pairs, int64_t n, int digit, int64_t* bins) {
    const P* p = static_cast<const P*>(pairs);
    for (int64_t i = 0; i < n; ++i) ++bins[digit_of(p[i], digit)];
  }
  static void spread(const void* pairs, int64_t n, int digit, int64_t* starts, void* other) {
    const P* p = static_cast<const P*>(pairs);
    P* q = static_cast<P*>(other);
    for (int64_t i = 0; i < n; ++i) q[starts[digit_of(p[i], digit)]++] = p[i];
  }

  static void insertion(P* p, int64_t n) {
    for (int64_t i = 1; i < n; ++i) {
      const P v = p[i];
      int64_t j = i;
      for (; j > 0 && v < p[j - 1]; --j) p[j] = p[j - 1];
      p[j] = v;
    }
  }

  // Each pair to the position that the number of smaller ones gives: no branches, wide comparisons.
  static constexpr int64_t kShort = 64;
  static P* sort_short(P* p, P* q, int64_t n) {
    if constexpr (std::is_same_v<P, uint64_t>) {
      alignas(64) P padded[kShort];
      const int64_t whole = (n + 7) / 8 * 8;
      for (int64_t i = 0; i < whole; ++i) padded[i] = i < n ? p[i] : ~P(0);
      for (int64_t i = 0; i < n; ++i) {
        uint64_t smaller = 0;
        for (int64_t j = 0; j < whole; ++j) smaller += padded[j] < padded[i];
        q[smaller] = padded[i];
      }
      return q;
    } else {
      insertion(p, n);
      return p;
    }
  }

  static void* sort(void* pairs, void* other, int64_t n) {
    P *p = static_cast<P*>(pairs), *q = static_cast<P*>(other);
    if (n <= kShort) return sort_short(p, q, n);
    uint32_t bins[sizeof(K)][kSortBins] = {};
    for (int64_t i = 0; i < n; ++i)
      for (size_t d = 0; d < sizeof(K); ++d) ++bins[d][digit_of(p[i], static_cast<int>(d))];
    for (size_t d = 0; d < sizeof(K); ++d) {
      const int digit = static_cast<int>(d);
      if (bins[d][digit_of(p[0], digit)] == n) continue;  // all alike
      uint32_t at = 0;
      for (uint32_t& b : bins[d]) {
        const uint32_t size = b;
        b = at;
        at += size;
      }
      for (int64_t i = 0; i < n; ++i) q[bins[d][digit_of(p[i], digit)]++] = p[i];
      std::swap(p, q);
    }
    return p;
  }

  // The k-th smallest (from 0) to its sorted position, smaller ones before it. Partitions without
  // branches.
  static void nth(P* p, int64_t n, int64_t k) {
    int64_t lo = 0, hi = n;
    int rounds = 2 * std::bit_width(static_cast<uint64_t>(n));
    auto middle = [&](int64_t a, int64_t b, int64_t c) {
      return std::max(std::min(p[a], p[b]), std::min(std::max(p[a], p[b]), p[c]));
    };
    while (hi - lo > 24) {
      if (rounds-- == 0) {
        std::nth_element(p + lo, p + k, p + hi);
        return;
      }
      const int64_t e = (hi - lo - 1) / 8;
      const P x = middle(lo, lo + e, lo + 2 * e), y = middle(lo + 3 * e, lo + 4 * e, lo + 5 * e),
              z = middle(lo + 6 * e, lo + 7 * e, lo + 8 * e);
      const P pivot = std::max(std::min(x, y), std::min(std::max(x, y), z));
      int64_t s = lo;
      for (int64_t i = lo; i < hi; ++i) {
        const P v = p[i];
        p[i] = p[s];
        p[s] = v;
        s += v < pivot;
      }
      (k < s ? hi : lo) = s;  // the pivot is neither the first nor the last of nine
    }
    insertion(p + lo, hi - lo);
  }

  static void front(void* pairs, int64_t n, int64_t k, bool ordered) {
    P* p = static_cast<P*>(pairs);
    if (k > 0) nth(p, n, k - 1);
    if (!ordered) return;
    if (k <= 64)
      insertion(p, k);
    else
      std::sort(p, p + k);
  }

  // Calls f(index) for the elements from i on that may have a key below the limit, as long as f
  // leaves the limit as it is; returns where to go on. Halves are told by keys, other types by
  // value, which needs no conversion; NaN always may.
  template <typename F>
  static int64_t candidates(const SortRow& r, int64_t i, K limit, F f) {
    if constexpr (IsHalf<T>::value) {
      return scan_blocks(
          r, i, [&](int64_t j) { return key_at(r, j) < limit; }, f);
    } else {
      const T* x = reinterpret_cast<const T*>(r.x);
      const T edge = O::element(r.descending ? K(~limit) : limit);
      if (r.step != 1 && r.descending)
        return scan_blocks(
            r, i, [&](int64_t j) { return !(x[j * r.step] <= edge); }, f);
      if (r.step != 1)
        return scan_blocks(
            r, i, [&](int64_t j) { return !(x[j * r.step] >= edge); }, f);
      if (r.descending)
        return scan_blocks(
            r, i, [&](int64_t j) { return !(x[j] <= edge); }, f);
      return scan_blocks(
          r, i, [&](int64_t j) { return !(x[j] >= edge); }, f);
    }
  }
  template <typename B, typename F>
  static int64_t scan_blocks(const SortRow& r, int64_t i, B beyond, F f) {
    constexpr int64_t kBlock = 32;
    for (; i < r.n; ++i) {
      while (i + kBlock <= r.n) {
        int any = 0;
        for (int64_t j = 0; j < kBlock; ++j) any |= beyond(i + j);
        if (any) break;
        i += kBlock;
      }
      for (const int64_t end = std::min(i + kBlock, r.n); i < end; ++i)
        if (beyond(i) && f(i)) return i + 1;
      --i;
    }
    return i;
  }

  static int64_t best(const SortRow& r, int64_t k, void* pairs) {
    P* p = static_cast<P*>(pairs);
    const bool few = k <= 32;  // kept in order, so that the limit is always the exact one
    const int64_t room = few ? k : best_room(k);
    int64_t have = std::min(room, r.n);
    load({r.x, r.step, have, r.first, r.descending}, p);
    if (have < room) {
      if (have > k) nth(p, have, k - 1);
      return std::min(have, k);
    }
    few ? insertion(p, k) : nth(p, have, k - 1);
    have = k;
    K limit = Q::key(p[k - 1]);
    for (int64_t i = room; i < r.n;)
      i = candidates(r, i, limit, [&](int64_t j) {
        const K key = key_at(r, j);
        if (key >= limit) return false;
        const P v = Q::make(key, r.first + j);
        if (few) {
          int64_t at = k - 1;
          for (; at > 0 && v < p[at - 1]; --at) p[at] = p[at - 1];
          p[at] = v;
        } else {
          p[have++] = v;
          if (have < room) return false;
          nth(p, have, k - 1);
          have = k;
        }
        limit = Q::key(p[k - 1]);
        return true;
      });
    if (have > k) nth(p, have, k - 1);
    return k;
  }

  static constexpr int kCoarseShift = sizeof(K) > 1 ? static_cast<int>(sizeof(K)) * 8 - 11 : 0;
  static void coarse(const SortRow& r, int64_t* bins) {
    // Neighbours often fall into one bin: four tables, so that one increment need not wait for
    // another.
    uint32_t table[4][kSelectBins] = {};
    for_keys(r, [&](int64_t i, K key) { ++table[i % 4][key >> kCoarseShift]; });
    for (int64_t b = 0; b < kSelectBins; ++b)
      bins[b] += int64_t(table[0][b]) + table[1][b] + table[2][b] + table[3][b];
  }
  static int64_t of_bin(const SortRow& r, int64_t bin, void* pairs) {
    P* p = static_cast<P*>(pairs);
    int64_t have = 0;
    for_keys(r, [&](int64_t i, K key) {
      p[have] = Q::make(key, r.first + i);
      have += static_cast<int64_t>(key >> kCoarseShift) == bin;
    });
    return have;
  }
  static int64_t nans(const SortRow& r) {
    int64_t n = 0;
    const K nan = r.descending ? K(0) : O::kNan;
    if constexpr (O::kFloat) for_keys(r, [&](int64_t, K key) { n += key == nan; });
    return n;
  }

  static int64_t index_of(const void* pairs, int64_t i) {
    return Q::index(static_cast<const P*>(pairs)[i]);
  }
  static int64_t run(const void* pairs, int64_t n) {
    const P* p = static_cast<const P*>(pairs);
    if (O::kFloat && Q::key(p[0]) == O::kNan) return 1;
    int64_t i = 1;
    while (i < n && Q::key(p[i]) == Q::key(p[0])) ++i;
    return i;
  }

  static void store(const void* pairs, int64_t n, const SortRow& r, std::byte* y, int64_t y_step,
                    int64_t* index, int64_t index_step) {
    const P* p = static_cast<const P*>(pairs);
    T* out = reinterpret_cast<T*>(y);
    for (int64_t i = 0; i < n; ++i) {
      const K key = r.descending ? K(~Q::key(p[i])) : Q::key(p[i]);
      out[i * y_step] = O::lossy(key) ? reinterpret_cast<const T*>(r.x)[Q::index(p[i]) * r.step]
                                      : O::element(key);
      index[i * index_step] = Q::index(p[i]);
    }
  }

  static constexpr SortFns kFns{sizeof(P), static_cast<int>(sizeof(K)),
                                load,      sort,
                                count,     spread,
                                front,     best,
                                coarse,    of_bin,
                                nans,      index_of,
                                run,       store};
};

// Binary search without branches, several values at a time to hide the latency of the loads.
template <typename T>
void search(const SearchRow& r, std::byte* out, SearchResult what) {
  constexpr int64_t kAtOnce = 8;
  const T* sorted = reinterpret_cast<const T*>(r.sorted);
  const T* values = reinterpret_cast<const T*>(r.values);
  auto before = [&](T element, T value) {
    return r.right ? !(element > value) : !(element >= value);  // as written: NaN is after all
  };
  for (int64_t i = 0; i < r.count; i += kAtOnce) {
    const int64_t m = std::min(kAtOnce, r.count - i);
    std::array<int64_t, kAtOnce> base{};
    if (r.n > 0) {
      int64_t len = r.n;
      for (; len > 1; len -= len / 2)
        for (int64_t k = 0; k < m; ++k)
          base[k] += before(sorted[base[k] + len / 2 - 1], values[i + k]) ? len / 2 : 0;
      for (int64_t k = 0; k < m; ++k) base[k] += before(sorted[base[k]], values[i + k]);
    }
    for (int64_t k = 0; k < m; ++k) {
      if (what == SearchResult::kI32)
        reinterpret_cast<int32_t*>(out)[i + k] = static_cast<int32_t>(base[k]);
      else if (what == SearchResult::kI64)
        reinterpret_cast<int64_t*>(out)[i + k] = base[k];
      else
        reinterpret_cast<bool*>(out)[i + k] = base[k] < r.n && sorted[base[k]] == values[i + k];
    }
  }
}

}  // namespace

const SortFns* sort_fns(DType dtype) {
  switch (dtype) {
    case DType::F32:
      return &Sorter<float>::kFns;
    case DType::F64:
      return &Sorter<double>::kFns;
    case DType::F16:
      return &Sorter<F16>::kFns;
    case DType::BF16:
      return &Sorter<Bf16>::kFns;
    case DType::I64:
      return &Sorter<int64_t>::kFns;
    case DType::I32:
      return &Sorter<int32_t>::kFns;
    case DType::I16:
      return &Sorter<int16_t>::kFns;
    case DType::I8:
      return &Sorter<int8_t>::kFns;
    case DType::U8:
    case DType::Bool:
      return &Sorter<uint8_t>::kFns;
    default:
      return nullptr;
  }
}

SearchFn search_fn(DType dtype) {
  switch (dtype) {
    case DType::F32:
      return search<float>;
    case DType::F64:
      return search<double>;
    case DType::I64:
      return search<int64_t>;
    case DType::I32:
      return search<int32_t>;
    case DType::I16:
      return search<int16_t>;
    case DType::I8:
      return search<int8_t>;
    case DType::U8:
    case DType::Bool:
      return search<uint8_t>;
    default:
      return nullptr;
  }
}

}  // namespace tessera::kernels
