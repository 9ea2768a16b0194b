// SPDX-License-Identifier: Apache-2.0
// Reductions against naive loops: all kinds and types, any dims, any strides, one and two threads
// with equal bits.
#include <doctest/doctest.h>

#include "row_test_util.h"

namespace tessera::test {
namespace {

Dims reduced(const Dims& shape, const std::vector<bool>& drop, bool keepdim) {
  Dims out;
  for (size_t i = 0; i < shape.size(); ++i) {
    if (!drop[i])
      out.push_back(shape[i]);
    else if (keepdim)
      out.push_back(1);
  }
  return out;
}

struct Case {
  Dims shape;
  std::vector<int> order;
  std::vector<int64_t> dims;
  bool keepdim;
};

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {{40, 70}, {1, 0}, {1}, false},
      {{40, 70}, {1, 0}, {0}, true},
      {{40, 70}, {1, 0}, {}, false},
      {{3, 100003}, {1, 0}, {1}, false},
      {{512, 768}, {1, 0}, {0}, false},
      {{700, 1200}, {1, 0}, {0}, false},
      {{20000, 5}, {1, 0}, {0}, false},
      {{20003, 3}, {1, 0}, {-1}, false},
      {{16, 12, 9, 9}, {3, 2, 1, 0}, {0, 2, 3}, false},
      {{16, 12, 9, 9}, {1, 3, 2, 0}, {0, 2, 3}, true},
      {{16, 12, 9, 9}, {0, 3, 2, 1}, {0, 2, 3}, false},
      {{16, 12, 9, 9}, {0, 3, 2, 1}, {1}, true},
      {{5, 6, 7, 8, 3}, {4, 3, 2, 1, 0}, {1, 3}, false},
      {{5, 6, 7, 8, 3}, {2, 0, 4, 1, 3}, {0, -1, 2}, false},
      {{1, 1}, {1, 0}, {0}, false},
      {{}, {}, {}, false},
      {{300, 200, 3}, {2, 1, 0}, {1}, false},
  };
  return all;
}

// Naive result per output position, in row-major order of the output.
template <typename T, typename R>
std::vector<R> naive(Buffer& x, const std::vector<bool>& drop, R start,
                     const std::function<R(R, T)>& f) {
  Dims step(drop.size(), 0);
  int64_t count = 1;
  for (size_t d = drop.size(); d-- > 0;)
    if (!drop[d]) {
      step[d] = count;
      count *= x.ref.shape[d];
    }
  std::vector<R> out(static_cast<size_t>(count), start);
  each_index(x.ref.shape, [&](const Dims& i) {
    int64_t at = 0;
    for (size_t d = 0; d < i.size(); ++d) at += i[d] * step[d];
    R& r = out[static_cast<size_t>(at)];
    r = f(r, x.at<T>(i));
  });
  return out;
}

std::vector<bool> drops(const Case& k) {
  std::vector<bool> drop(k.shape.size(), k.dims.empty());
  for (int64_t d : k.dims) drop[d < 0 ? d + int64_t(k.shape.size()) : d] = true;
  return drop;
}

template <typename T>
std::vector<T> flat(Buffer& b) {
  std::vector<T> v;
  each_index(b.ref.shape, [&](const Dims& i) { v.push_back(b.at<T>(i)); });
  return v;
}

std::vector<Arg> call(const Case& k) {
  return {Arg::operand(0), Arg::ints(k.dims), Arg::boolean(k.keepdim)};
}

TEST_CASE("float sums are as exact as a sum in double") {
  for (const Case& k : cases()) {
    CAPTURE(k.shape);
    CAPTURE(k.dims);
    Buffer x(DType::F32, k.shape, strides_of_order(k.shape, k.order));
    x.randn(1);
    const auto drop = drops(k);
    Buffer out(DType::F32, reduced(k.shape, drop, k.keepdim));
    run_both(make_reduce, step(Op::Sum, call(k)), {&x}, {&out});
    const auto want = naive<float, double>(x, drop, 0.0, [](double a, float v) { return a + v; });
    const auto size =
        naive<float, double>(x, drop, 0.0, [](double a, float v) { return a + std::abs(v); });
    const auto got = flat<float>(out);
    REQUIRE(got.size() == want.size());
    for (size_t i = 0; i < got.size(); ++i)
      REQUIRE(std::abs(got[i] - want[i]) <= 3e-7 * size[i] + 1e-30);
  }
}

TEST_CASE("a long sum of equal numbers does not drift") {
  Buffer x(DType::F32, {1 << 22}), out(DType::F32, {});
  for (int i = 0; i < 1 << 22; ++i) x.data<float>()[i] = 0.1f;
  run_both(make_reduce, step(Op::Sum, {Arg::operand(0)}), {&x}, {&out});
  CHECK(std::abs(out.data<float>()[0] / (0.1f * double(1 << 22)) - 1) < 2e-7);
}

TEST_CASE("maxima and minima match and pass NaN on") {
  for (const Case& k : cases()) {
    CAPTURE(k.shape);
    CAPTURE(k.dims);
    for (bool nan : {false, true}) {
      Buffer x(DType::F32, k.shape, strides_of_order(k.shape, k.order));
      x.randn(2);
      if (nan)
        for (int64_t i = 0; i < x.ref.count(); i += 97) x.data<float>()[i] = NAN;
      const auto drop = drops(k);
      Buffer out(DType::F32, reduced(k.shape, drop, k.keepdim));
      for (bool largest : {true, false}) {
        run_both(make_reduce, step(largest ? Op::Amax : Op::Amin, call(k)), {&x}, {&out});
        const auto want =
            naive<float, float>(x, drop, largest ? -INFINITY : INFINITY, [=](float a, float v) {
              if (std::isnan(a) || std::isnan(v)) return NAN;
              return largest ? std::max(a, v) : std::min(a, v);
            });
        const auto got = flat<float>(out);
        for (size_t i = 0; i < got.size(); ++i)
          REQUIRE((got[i] == want[i] || (std::isnan(got[i]) && std::isnan(want[i]))));
      }
    }
  }
}

template <typename T>
void check_integers(DType dtype) {
  for (const Case& k : cases()) {
    CAPTURE(k.shape);
    CAPTURE(k.dims);
    Buffer x(dtype, k.shape, strides_of_order(k.shape, k.order));
    std::mt19937 gen(5);
    for (int64_t i = 0; i < x.ref.count(); ++i)
      x.data<T>()[i] = dtype == DType::Bool ? T(gen() % 100 == 0) : T(int64_t(gen() % 2001) - 1000);
    const auto drop = drops(k);
    const Dims shape = reduced(k.shape, drop, k.keepdim);
    Buffer sum(DType::I64, shape), top(dtype, shape), low(dtype, shape), any(DType::Bool, shape),
        all(DType::Bool, shape);
    run_both(make_reduce, step(Op::Sum, call(k)), {&x}, {&sum});
    run_both(make_reduce, step(Op::Amax, call(k)), {&x}, {&top});
    run_both(make_reduce, step(Op::Amin, call(k)), {&x}, {&low});
    run_both(make_reduce, step(Op::Any, call(k)), {&x}, {&any});
    run_both(make_reduce, step(Op::All, call(k)), {&x}, {&all});
    const T lo = std::numeric_limits<T>::lowest(), hi = std::numeric_limits<T>::max();
    CHECK(flat<int64_t>(sum) ==
          naive<T, int64_t>(x, drop, 0, [](int64_t a, T v) { return a + v; }));
    CHECK(flat<T>(top) == naive<T, T>(x, drop, lo, [](T a, T v) { return std::max(a, v); }));
    CHECK(flat<T>(low) == naive<T, T>(x, drop, hi, [](T a, T v) { return std::min(a, v); }));
    CHECK(flat<uint8_t>(any) ==
          naive<T, uint8_t>(x, drop, 0, [](uint8_t a, T v) -> uint8_t { return a | (v != 0); }));
    CHECK(flat<uint8_t>(all) ==
          naive<T, uint8_t>(x, drop, 1, [](uint8_t a, T v) -> uint8_t { return a & (v != 0); }));
  }
}

TEST_CASE("integer and bool reductions are exact") {
  check_integers<int64_t>(DType::I64);
  check_integers<int32_t>(DType::I32);
  check_integers<uint8_t>(DType::Bool);
}

TEST_CASE("i32 sums do not overflow") {
  Buffer x(DType::I32, {1000}), out(DType::I64, {});
  for (int i = 0; i < 1000; ++i) x.data<int32_t>()[i] = 2000000000;
  run_both(make_reduce, step(Op::Sum, {Arg::operand(0), Arg::ints({}), Arg::boolean(false)}), {&x},
           {&out});
  CHECK(out.data<int64_t>()[0] == 2000000000000);
}

TEST_CASE("products") {
  Buffer x(DType::F32, {7, 9, 5}), out(DType::F32, {7, 5});
  x.randn(3);
  run_both(make_reduce, step(Op::Prod, {Arg::operand(0), Arg::integer(1), Arg::boolean(false)}),
           {&x}, {&out});
  const auto want =
      naive<float, double>(x, {false, true, false}, 1.0, [](double a, float v) { return a * v; });
  const auto got = flat<float>(out);
  for (size_t i = 0; i < got.size(); ++i) CHECK(got[i] == doctest::Approx(want[i]).epsilon(1e-6));
}

template <typename T>
void check_arg(DType dtype, int distinct, bool nan) {
  for (const Case& k : cases()) {
    if (k.dims.size() > 1) continue;
    CAPTURE(k.shape);
    CAPTURE(k.dims);
    Buffer x(dtype, k.shape, strides_of_order(k.shape, k.order));
    std::mt19937 gen(9);
    for (int64_t i = 0; i < x.ref.count(); ++i) x.data<T>()[i] = T(gen() % unsigned(distinct));
    if constexpr (std::is_same_v<T, float>)
      if (nan)
        for (int64_t i = 50; i < x.ref.count(); i += 331) x.data<T>()[i] = NAN;
    const auto drop = drops(k);
    Buffer out(DType::I64, reduced(k.shape, drop, k.keepdim));
    const Arg dim = k.dims.empty() ? Arg::none() : Arg::integer(k.dims[0]);
    for (bool largest : {true, false}) {
      run_both(
          make_reduce,
          step(largest ? Op::Argmax : Op::Argmin, {Arg::operand(0), dim, Arg::boolean(k.keepdim)}),
          {&x}, {&out});
      struct Best {
        int64_t at = -1, seen = 0;
        T value{};
      };
      const auto want = naive<T, Best>(x, drop, Best{}, [=](Best b, T v) {
        const bool better = b.at < 0 || (v != v    ? b.value == b.value
                                         : largest ? v > b.value
                                                   : v < b.value);
        if (better) b.at = b.seen, b.value = v;
        ++b.seen;
        return b;
      });
      const auto got = flat<int64_t>(out);
      for (size_t i = 0; i < got.size(); ++i) REQUIRE(got[i] == want[i].at);
    }
  }
}

TEST_CASE("argmax and argmin give the first of equals, NaN beyond all") {
  check_arg<float>(DType::F32, 1000, false);
  check_arg<float>(DType::F32, 5, true);
  check_arg<int64_t>(DType::I64, 20, false);
  check_arg<int32_t>(DType::I32, 1000000, false);
}

TEST_CASE("views with gaps and broadcast dims reduce too") {
  Buffer x(DType::F32, {50, 60});
  x.randn(4);
  // Every second column of rows 10.., and a dim of stride zero.
  Buffer v = x;
  v.ref.shape = {40, 30, 4};
  v.ref.strides = {60, 2, 0};
  v.ref.offset = 10 * 60 * 4;
  for (const auto& dims : std::vector<std::vector<int64_t>>{{0}, {1}, {2}, {0, 2}, {}}) {
    Case k{v.ref.shape, {}, dims, false};
    Buffer out(DType::F32, reduced(v.ref.shape, drops(k), false));
    run_both(make_reduce, step(Op::Sum, call(k)), {&v}, {&out});
    Buffer shifted = v;
    shifted.memory.erase(shifted.memory.begin(), shifted.memory.begin() + 10 * 60 * 4);
    const auto want =
        naive<float, double>(shifted, drops(k), 0.0, [](double a, float e) { return a + e; });
    const auto got = flat<float>(out);
    for (size_t i = 0; i < got.size(); ++i) REQUIRE(std::abs(got[i] - want[i]) < 1e-4);
  }
}

TEST_CASE("types of reductions follow ATen") {
  auto type = [](Op op, DType in, std::vector<Arg> rest) {
    std::vector<Arg> args = {Arg::operand(0)};
    for (Arg& a : rest) args.push_back(a);
    return infer_call(infer_reduce, op, {{in, {2, 3}, {}}}, args)[0];
  };
  CHECK(type(Op::Sum, DType::Bool, {}).dtype == DType::I64);
  CHECK(type(Op::Sum, DType::I32, {Arg::ints({0}), Arg::boolean(true)}) ==
        TensorType{DType::I64, {1, 3}, {}});
  CHECK(type(Op::Sum, DType::I32, {Arg::ints({0}), Arg::boolean(false), Arg::dtype(DType::F32)})
            .dtype == DType::F32);
  CHECK(type(Op::Sum, DType::F32, {Arg::dtype(DType::F64)}) == TensorType{DType::F64, {}, {}});
  CHECK(type(Op::Any, DType::F32, {Arg::integer(1)}) == TensorType{DType::Bool, {2}, {}});
  CHECK(type(Op::Any, DType::U8, {}).dtype == DType::U8);
  CHECK(type(Op::Argmax, DType::F32, {Arg::none(), Arg::boolean(true)}) ==
        TensorType{DType::I64, {1, 1}, {}});
  CHECK_THROWS_AS(type(Op::Sum, DType::F32, {Arg::ints({0, 0})}), UserError);
  CHECK_THROWS_AS(type(Op::Sum, DType::F32, {Arg::ints({2})}), UserError);
}

TEST_CASE("a sum over nothing is zero") {
  Buffer x(DType::F32, {3, 0}), out(DType::F32, {3});
  run_both(make_reduce, step(Op::Sum, {Arg::operand(0), Arg::ints({1}), Arg::boolean(false)}), {&x},
           {&out});
  for (int i = 0; i < 3; ++i) CHECK(out.data<float>()[i] == 0.0f);
}

}  // namespace
}  // namespace tessera::test
