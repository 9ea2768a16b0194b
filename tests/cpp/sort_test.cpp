// SPDX-License-Identifier: Apache-2.0
// Sorting, selection, search and histograms against std::stable_sort and plain loops: all types,
// any dim, any strides, short and long rows, one and two threads with equal bits.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>

#include "row_test_util.h"

namespace tessera::test {
namespace {

struct Case {
  Dims shape;
  std::vector<int> order;  // minor to major
  int64_t dim;
};

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {{5, 7}, {1, 0}, 1},         {{5, 70}, {0, 1}, 1},
      {{90, 33}, {1, 0}, 0},       {{40000}, {0}, 0},
      {{2, 20000}, {1, 0}, -1},    {{3, 700}, {1, 0}, 1},
      {{600, 20}, {1, 0}, 0},      {{4, 300, 5}, {2, 1, 0}, 1},
      {{4, 30, 20}, {0, 2, 1}, 2}, {{}, {}, 0},
      {{0, 4}, {1, 0}, 1},         {{1, 9}, {1, 0}, 0},
  };
  return all;
}

template <typename T>
struct Item {
  T value;
  int64_t at;
};

// a before b with NaN the largest.
template <typename T>
bool less(T a, T b) {
  if (a != a) return false;
  if (b != b) return true;
  return a < b;
}

// f(index of the row without the dim, its elements in order).
template <typename T>
void each_row(Buffer& x, int64_t dim, const std::function<void(Dims, std::vector<Item<T>>)>& f) {
  const auto rank = static_cast<int64_t>(x.ref.shape.size());
  if (rank == 0) {
    f({}, {{x.at<T>({}), 0}});
    return;
  }
  dim = dim < 0 ? dim + rank : dim;
  Dims heads = x.ref.shape;
  if (heads[dim] == 0) return;
  heads[dim] = 1;
  each_index(heads, [&](Dims i) {
    std::vector<Item<T>> row;
    for (int64_t k = 0; k < x.ref.shape[dim]; ++k) {
      i[dim] = k;
      row.push_back({x.at<T>(i), k});
    }
    i.erase(i.begin() + dim);
    f(i, row);
  });
}

template <typename T>
void order(std::vector<Item<T>>& row, bool descending) {
  std::stable_sort(row.begin(), row.end(), [&](const Item<T>& a, const Item<T>& b) {
    return descending ? less(b.value, a.value) : less(a.value, b.value);
  });
}

Dims with(Dims i, const Case& k, int64_t at) {
  const auto rank = static_cast<int64_t>(k.shape.size());
  if (rank > 0) i.insert(i.begin() + (k.dim < 0 ? k.dim + rank : k.dim), at);
  return i;
}

int64_t length(const Case& k) {
  const auto rank = static_cast<int64_t>(k.shape.size());
  return rank ? k.shape[k.dim < 0 ? k.dim + rank : k.dim] : 1;
}

template <typename T>
bool same(T a, T b) {
  return a == b || (a != a && b != b);
}

// Many equal elements, and NaN, infinities and both zeros among floats.
template <typename T>
void fill(Buffer& x, unsigned seed, bool odd) {
  std::mt19937 gen(seed);
  each_index(x.ref.shape, [&](const Dims& i) {
    const auto r = static_cast<int64_t>(gen() % 1000);
    T v = static_cast<T>(r - 500);
    if constexpr (std::is_floating_point_v<T>) {
      v /= 8;
      if (odd && r < 40) v = r < 10 ? T(NAN) : r < 20 ? -T(INFINITY) : r < 30 ? -T(0) : T(INFINITY);
    }
    x.at<T>(i) = v;
  });
}

template <typename T>
void check_sort(DType dtype) {
  for (const Case& k : cases())
    for (bool descending : {false, true}) {
      CAPTURE(k.shape);
      Buffer x(dtype, k.shape, strides_of_order(k.shape, k.order));
      Buffer y(dtype, k.shape), index(DType::I64, k.shape);
      fill<T>(x, 1, true);
      run_both(make_sort,
               step(Op::Sort, {Arg::operand(0), Arg::integer(k.dim), Arg::boolean(descending)}),
               {&x}, {&y, &index});
      each_row<T>(x, k.dim, [&](const Dims& head, std::vector<Item<T>> row) {
        order(row, descending);
        for (size_t i = 0; i < row.size(); ++i) {
          const Dims at = with(head, k, static_cast<int64_t>(i));
          REQUIRE(index.at<int64_t>(at) == row[i].at);
          REQUIRE(std::memcmp(&y.at<T>(at), &row[i].value, sizeof(T)) == 0);
        }
      });
    }
}

TEST_CASE("sorting is stable, both ways, with NaN the largest, to the bit") {
  check_sort<float>(DType::F32);
  check_sort<double>(DType::F64);
  check_sort<int64_t>(DType::I64);
  check_sort<int32_t>(DType::I32);
  check_sort<int16_t>(DType::I16);
  check_sort<int8_t>(DType::I8);
  check_sort<uint8_t>(DType::U8);
}

TEST_CASE("half precision sorts like its values") {
  // 1, -1, NaN, 0, -0, inf, -inf, 0.5 in f16 and bf16
  const std::map<DType, std::vector<uint16_t>> rows = {
      {DType::F16, {0x3c00, 0xbc00, 0x7e00, 0x0000, 0x8000, 0x7c00, 0xfc00, 0x3800}},
      {DType::BF16, {0x3f80, 0xbf80, 0x7fc0, 0x0000, 0x8000, 0x7f80, 0xff80, 0x3f00}}};
  for (const auto& [dtype, row] : rows) {
    Buffer x(dtype, {8}), y(dtype, {8}), index(DType::I64, {8});
    std::copy(row.begin(), row.end(), x.data<uint16_t>());
    run_both(make_sort, step(Op::Sort, {Arg::operand(0), Arg::integer(0), Arg::boolean(false)}),
             {&x}, {&y, &index});
    const std::vector<int64_t> want = {6, 1, 3, 4, 7, 0, 5, 2};
    for (int i = 0; i < 8; ++i) {
      CHECK(index.data<int64_t>()[i] == want[i]);
      CHECK(y.data<uint16_t>()[i] == row[want[i]]);
    }
  }
}

template <typename T>
void check_topk(DType dtype) {
  for (const Case& k : cases())
    for (int64_t wanted : {int64_t(0), int64_t(1), int64_t(5), length(k) / 3, length(k)})
      for (bool largest : {false, true}) {
        if (wanted > length(k)) continue;
        CAPTURE(k.shape);
        CAPTURE(wanted);
        Buffer x(dtype, k.shape, strides_of_order(k.shape, k.order));
        fill<T>(x, 2, true);
        Dims shape = k.shape;
        if (!shape.empty()) shape[k.dim < 0 ? k.dim + shape.size() : k.dim] = wanted;
        Buffer y(dtype, shape), index(DType::I64, shape);
        if (shape.empty() && wanted == 0) continue;
        run_both(make_sort,
                 step(Op::Topk, {Arg::operand(0), Arg::integer(wanted), Arg::integer(k.dim),
                                 Arg::boolean(largest), Arg::boolean(true)}),
                 {&x}, {&y, &index});
        each_row<T>(x, k.dim, [&](const Dims& head, std::vector<Item<T>> row) {
          order(row, largest);
          for (int64_t i = 0; i < wanted; ++i) {
            REQUIRE(index.at<int64_t>(with(head, k, i)) == row[i].at);
            REQUIRE(same(y.at<T>(with(head, k, i)), row[i].value));
          }
        });
      }
}

TEST_CASE("topk is the head of the sorted row, the first of equals first") {
  check_topk<float>(DType::F32);
  check_topk<int64_t>(DType::I64);
  check_topk<int8_t>(DType::I8);
}

TEST_CASE("topk of a rising and of a constant row") {
  for (bool rising : {false, true}) {
    Buffer x(DType::F32, {50000}), y(DType::F32, {700}), index(DType::I64, {700});
    for (int i = 0; i < 50000; ++i) x.data<float>()[i] = rising ? static_cast<float>(i) : 1.0f;
    run_both(make_sort,
             step(Op::Topk, {Arg::operand(0), Arg::integer(700), Arg::integer(0),
                             Arg::boolean(true), Arg::boolean(true)}),
             {&x}, {&y, &index});
    for (int i = 0; i < 700; ++i) REQUIRE(index.data<int64_t>()[i] == (rising ? 49999 - i : i));
  }
}

enum class Rank { kKth, kMedian, kNanmedian };

template <typename T>
void check_rank(DType dtype, Rank what, bool odd) {
  for (const Case& k : cases())
    for (bool keepdim : {false, true}) {
      if (length(k) == 0) continue;
      CAPTURE(k.shape);
      CAPTURE(name_of(dtype));
      CAPTURE(length(k));
      CAPTURE(static_cast<int>(what));
      Buffer x(dtype, k.shape, strides_of_order(k.shape, k.order));
      fill<T>(x, 3, odd);
      Dims shape = k.shape;
      if (!shape.empty()) {
        const auto d = k.dim < 0 ? k.dim + shape.size() : k.dim;
        if (keepdim)
          shape[d] = 1;
        else
          shape.erase(shape.begin() + d);
      }
      Buffer y(dtype, shape), index(DType::I64, shape);
      const int64_t kth = (length(k) + 2) / 3;
      StepDesc d = what == Rank::kKth
                       ? step(Op::Kthvalue, {Arg::operand(0), Arg::integer(kth),
                                             Arg::integer(k.dim), Arg::boolean(keepdim)})
                       : step(what == Rank::kMedian ? Op::Median : Op::Nanmedian,
                              {Arg::operand(0), Arg::integer(k.dim), Arg::boolean(keepdim)});
      run_both(make_sort, d, {&x}, {&y, &index});
      each_row<T>(x, k.dim, [&](const Dims& head, std::vector<Item<T>> row) {
        order(row, false);
        const auto n = static_cast<int64_t>(row.size());
        const int64_t nans = std::count_if(row.begin(), row.end(),
                                           [](const Item<T>& i) { return i.value != i.value; });
        int64_t r = kth - 1;
        if (what == Rank::kMedian) r = nans ? n - nans : (n - 1) / 2;
        if (what == Rank::kNanmedian) r = nans == n ? 0 : (n - nans - 1) / 2;
        const Dims at = keepdim ? with(head, k, 0) : head;
        REQUIRE(index.at<int64_t>(at) == row[r].at);
        REQUIRE(same(y.at<T>(at), row[r].value));
      });
    }
}

TEST_CASE("kthvalue and medians are elements of the sorted row") {
  for (Rank r : {Rank::kKth, Rank::kMedian, Rank::kNanmedian}) {
    check_rank<float>(DType::F32, r, true);
    check_rank<float>(DType::F32, r, false);
    check_rank<int64_t>(DType::I64, r, false);
    check_rank<uint8_t>(DType::U8, r, false);
  }
}

TEST_CASE("mode is the smallest of the most frequent, at its last place") {
  for (const Case& k : cases()) {
    if (length(k) == 0) continue;
    CAPTURE(k.shape);
    Buffer x(DType::I32, k.shape, strides_of_order(k.shape, k.order));
    std::mt19937 gen(5);
    each_index(k.shape, [&](const Dims& i) { x.at<int32_t>(i) = static_cast<int>(gen() % 7) - 3; });
    Dims shape = k.shape;
    if (!shape.empty()) shape.erase(shape.begin() + (k.dim < 0 ? k.dim + shape.size() : k.dim));
    Buffer y(DType::I32, shape), index(DType::I64, shape);
    run_both(make_sort, step(Op::Mode, {Arg::operand(0), Arg::integer(k.dim), Arg::boolean(false)}),
             {&x}, {&y, &index});
    each_row<int32_t>(x, k.dim, [&](const Dims& head, const std::vector<Item<int32_t>>& row) {
      std::map<int32_t, std::pair<int64_t, int64_t>> seen;  // value -> count, last place
      for (const auto& i : row) seen[i.value] = {seen[i.value].first + 1, i.at};
      auto best = seen.begin();
      for (auto it = seen.begin(); it != seen.end(); ++it)
        if (it->second.first > best->second.first) best = it;
      REQUIRE(y.at<int32_t>(head) == best->first);
      REQUIRE(index.at<int64_t>(head) == best->second.second);
    });
  }
}

TEST_CASE("search finds what a count of smaller elements gives") {
  for (bool one_sequence : {false, true})
    for (bool right : {false, true})
      for (int64_t n : {0, 1, 2, 33, 1000}) {
        CAPTURE(n);
        const int64_t rows = 3, width = 700;
        Buffer x(DType::F32, one_sequence ? Dims{n} : Dims{rows, n});
        Buffer v(DType::F32, {rows, width}), out(DType::I32, {rows, width});
        fill<float>(x, 1, false);
        fill<float>(v, 2, true);
        for (int64_t r = 0; r < (one_sequence ? 1 : rows); ++r)
          std::sort(x.data<float>() + r * n, x.data<float>() + (r + 1) * n);
        run_both(make_sort,
                 step(Op::Searchsorted,
                      {Arg::operand(0), Arg::operand(1), Arg::boolean(right), Arg::boolean(true)}),
                 {&x, &v}, {&out});
        Buffer found(DType::Bool, {rows, width});
        run_both(make_sort, step(Op::Isin, {Arg::operand(0), Arg::operand(1)}), {&x, &v}, {&found});
        for (int64_t r = 0; r < rows; ++r)
          for (int64_t i = 0; i < width; ++i) {
            const float value = v.at<float>({r, i});
            int32_t want = 0;
            bool there = false;
            for (int64_t j = 0; j < n; ++j) {
              const float e = x.data<float>()[(one_sequence ? 0 : r * n) + j];
              want += std::isnan(value) || (right ? e <= value : e < value);
              there |= e == value;
            }
            REQUIRE(found.at<bool>({r, i}) == there);
            REQUIRE(out.at<int32_t>({r, i}) == want);
          }
      }
}

TEST_CASE("histograms count what is in range, or take the range of the data") {
  for (bool given : {false, true}) {
    Buffer x(DType::F32, {300, 200}, {1, 300}), out(DType::F32, {7});
    x.randn(1);
    x.at<float>({5, 6}) = given ? NAN : 2.0f;
    const double low = given ? -1 : 0, high = given ? 1.5 : 0;
    run_both(make_histogram,
             step(Op::Histc, {Arg::operand(0), Arg::integer(7), Arg::real(low), Arg::real(high)}),
             {&x}, {&out});
    float lo = INFINITY, hi = -INFINITY;
    each_index({300, 200}, [&](const Dims& i) {
      lo = std::min(lo, x.at<float>(i));
      hi = std::max(hi, x.at<float>(i));
    });
    if (given) lo = -1, hi = 1.5;
    std::vector<float> want(7, 0);
    each_index({300, 200}, [&](const Dims& i) {
      const float v = x.at<float>(i);
      if (v >= lo && v <= hi) want[std::min(6, static_cast<int>((v - lo) * 7 / (hi - lo)))] += 1;
    });
    for (int b = 0; b < 7; ++b) CHECK(out.data<float>()[b] == want[b]);
    CHECK_FALSE(harness_errors().any());
  }
}

TEST_CASE("an endless range and a value without a bin are errors, not writes") {
  Buffer x(DType::F32, {100}), out(DType::F32, {4});
  x.randn(1);
  x.data<float>()[50] = INFINITY;
  run_step(make_histogram,
           step(Op::Histc, {Arg::operand(0), Arg::integer(4), Arg::real(0), Arg::real(0)}), {&x},
           {&out}, 1);
  CHECK(harness_errors().take().has_value());
  for (int64_t bad : {int64_t(-1), int64_t(10)}) {
    Buffer v(DType::I64, {20000}), counts(DType::I64, {10});
    for (int i = 0; i < 20000; ++i) v.data<int64_t>()[i] = i % 10;
    v.data<int64_t>()[777] = bad;
    run_step(make_histogram, step(Op::Bincount, {Arg::operand(0), Arg::none(), Arg::integer(10)}),
             {&v}, {&counts}, 2);
    CHECK(harness_errors().take().has_value());
  }
}

TEST_CASE("values are counted, or their weights added") {
  Buffer v(DType::I32, {30000}), w(DType::F32, {30000});
  Buffer counts(DType::I64, {12}), sums(DType::F32, {12});
  std::vector<int64_t> want(12, 0);
  std::vector<float> sum(12, 0);
  w.randn(1);
  for (int i = 0; i < 30000; ++i) {
    const int x = i * 7 % 11;
    v.data<int32_t>()[i] = x;
    want[x] += 1;
    sum[x] += w.data<float>()[i];
  }
  run_both(make_histogram, step(Op::Bincount, {Arg::operand(0), Arg::none(), Arg::integer(12)}),
           {&v}, {&counts});
  run_both(make_histogram, step(Op::Bincount, {Arg::operand(0), Arg::operand(1), Arg::integer(12)}),
           {&v, &w}, {&sums});
  for (int b = 0; b < 12; ++b) {
    CHECK(counts.data<int64_t>()[b] == want[b]);
    CHECK(sums.data<float>()[b] == sum[b]);
  }
}

}  // namespace
}  // namespace tessera::test
