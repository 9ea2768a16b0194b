// SPDX-License-Identifier: Apache-2.0
// Matrix products of every storage order, shape class and thread count against plain loops in
// double.
#include "kernels/gemm.h"

#include <doctest/doctest.h>

#include <cmath>

#include "kernel_harness.h"
#include "kernels/random.h"
#include "kernels/simd.h"
#include "ops/epilogue.h"
#include "ops/registry.h"

namespace tessera::test {

namespace {

struct Shape {
  int64_t batch, m, n, k;
};

Buffer matrix(int64_t batch, int64_t rows, int64_t cols, bool by_column, DType dtype = DType::F32) {
  return by_column ? Buffer(dtype, {batch, rows, cols}, {rows * cols, 1, rows})
                   : Buffer(dtype, {batch, rows, cols});
}

void drop_batch(Buffer& b) {
  b.ref.shape.erase(b.ref.shape.begin());
  b.ref.strides.erase(b.ref.strides.begin());
}

std::vector<double> reference(Buffer& a, Buffer& b, const Shape& s) {
  std::vector<double> c(s.batch * s.m * s.n);
  const float *pa = a.data<float>(), *pb = b.data<float>();
  const Dims &as = a.ref.strides, &bs = b.ref.strides;
  for (int64_t q = 0; q < s.batch; ++q)
    for (int64_t i = 0; i < s.m; ++i)
      for (int64_t k = 0; k < s.k; ++k) {
        const double x = pa[q * as[0] + i * as[1] + k * as[2]];
        for (int64_t j = 0; j < s.n; ++j)
          c[(q * s.m + i) * s.n + j] += x * pb[q * bs[0] + k * bs[1] + j * bs[2]];
      }
  return c;
}

// Rounding of one chain of k additions of unit normals.
double tolerance(int64_t k) {
  return 3e-7 * static_cast<double>(k + 10);
}

void check_product(const Shape& s, int form, int threads) {
  CAPTURE(s.batch);
  CAPTURE(s.m);
  CAPTURE(s.n);
  CAPTURE(s.k);
  CAPTURE(form);
  CAPTURE(threads);
  Buffer a = matrix(s.batch, s.m, s.k, form & 1), b = matrix(s.batch, s.k, s.n, form & 2),
         c = matrix(s.batch, s.m, s.n, form & 4);
  a.randn(1);
  b.randn(2);
  c.randn(3);
  const std::vector<double> want = reference(a, b, s);
  Buffer ra = a, rb = b, rc = c;
  StepDesc desc;
  desc.op = s.batch == 1 ? Op::Mm : Op::Bmm;
  if (s.batch == 1) {
    drop_batch(ra);
    drop_batch(rb);
    drop_batch(rc);
  }
  run_step(make_matmul, desc, {&ra, &rb}, {&rc}, threads);
  c.memory = rc.memory;
  double worst = 0;
  for (int64_t q = 0; q < s.batch; ++q)
    for (int64_t i = 0; i < s.m; ++i)
      for (int64_t j = 0; j < s.n; ++j)
        worst = std::max(worst, std::abs(c.at<float>({q, i, j}) - want[(q * s.m + i) * s.n + j]));
  CHECK(worst <= tolerance(s.k));
}

}  // namespace

TEST_CASE("gemm: storage orders, edge tiles and thread counts") {
  const Shape shapes[] = {
      {1, 1, 1, 1},     {1, 3, 5, 7},    {1, 16, 10, 100},  {1, 16, 100, 97},  {1, 17, 33, 65},
      {1, 64, 48, 129}, {1, 12, 32, 16}, {1, 13, 31, 512},  {1, 100, 97, 16},  {1, 130, 150, 70},
      {1, 1, 70, 130},  {1, 70, 1, 130}, {1, 200, 300, 40}, {1, 49, 17, 1024}, {1, 300, 130, 520},
      {2, 33, 20, 40},  {3, 16, 16, 16}, {9, 20, 35, 12},   {1, 5, 4, 0},      {1, 97, 130, 1},
      {1, 2, 90, 300},  {1, 90, 5, 300}, {1, 4, 1000, 77},  {1, 7, 130, 64}};
  for (const Shape& s : shapes)
    for (int form = 0; form < 8; ++form)
      for (int threads : {1, 2, 3}) check_product(s, form, threads);
}

TEST_CASE("gemm: long reductions pack the vector operand in pieces") {
  for (int form = 0; form < 8; ++form)
    for (int threads : {1, 2}) {
      check_product({1, 100, 64, 4000}, form, threads);
      check_product({1, 16, 20, 4000}, form, threads);
    }
}

namespace {

uint16_t narrow(float f, DType dtype) {
  return dtype == DType::F16 ? kernels::v3::f32_to_f16(f) : kernels::v3::f32_to_bf16(f);
}
float wide(uint16_t h, DType dtype) {
  return dtype == DType::F16 ? kernels::v3::f16_to_f32(h) : kernels::v3::bf16_to_f32(h);
}

// Against the f32 product of the same rounded operands.
void check_half(const Shape& s, int form, int threads, DType dtype) {
  CAPTURE(s.m);
  CAPTURE(s.n);
  CAPTURE(s.k);
  CAPTURE(form);
  CAPTURE(threads);
  CAPTURE(name_of(dtype));
  Buffer a = matrix(s.batch, s.m, s.k, form & 1), b = matrix(s.batch, s.k, s.n, form & 2);
  Buffer ha = matrix(s.batch, s.m, s.k, form & 1, dtype),
         hb = matrix(s.batch, s.k, s.n, form & 2, dtype),
         hc = matrix(s.batch, s.m, s.n, form & 4, dtype);
  a.randn(1);
  b.randn(2);
  for (auto [from, to] : {std::pair{&a, &ha}, {&b, &hb}})
    for (int64_t i = 0; i < from->ref.count(); ++i) {
      to->data<uint16_t>()[i] = narrow(from->data<float>()[i], dtype);
      from->data<float>()[i] = wide(to->data<uint16_t>()[i], dtype);
    }
  const std::vector<double> want = reference(a, b, s);
  StepDesc desc;
  desc.op = Op::Bmm;
  run_step(make_matmul, desc, {&ha, &hb}, {&hc}, threads);
  double worst = 0;
  for (int64_t q = 0; q < s.batch; ++q)
    for (int64_t i = 0; i < s.m; ++i)
      for (int64_t j = 0; j < s.n; ++j) {
        const double w = want[(q * s.m + i) * s.n + j];
        const double unit = dtype == DType::F16 ? 4.9e-4 : 3.95e-3;  // half a step of the last bit
        const double got = wide(hc.at<uint16_t>({q, i, j}), dtype);
        worst = std::max(worst, std::abs(got - w) - unit * std::abs(w));
      }
  CHECK(worst <= tolerance(s.k));
}

}  // namespace

TEST_CASE("gemm: half precision computes in f32 and rounds once") {
  const Shape shapes[] = {{1, 1, 1, 1},      {1, 3, 5, 7},    {1, 16, 100, 97}, {1, 17, 33, 65},
                          {1, 13, 31, 512},  {1, 1, 70, 131}, {1, 70, 1, 130},  {1, 300, 130, 521},
                          {3, 16, 16, 17},   {1, 5, 4, 0},    {1, 97, 130, 1},  {1, 90, 5, 300},
                          {1, 20, 40, 1500}, {1, 64, 800, 33}};
  for (DType dtype : {DType::F16, DType::BF16})
    for (const Shape& s : shapes)
      for (int form = 0; form < 8; ++form)
        for (int threads : {1, 2}) check_half(s, form, threads, dtype);
}

TEST_CASE("gemm: the result does not depend on the number of threads") {
  for (const Shape& s : {Shape{1, 64, 130, 784}, Shape{1, 200, 200, 600}, Shape{5, 40, 30, 20}}) {
    std::vector<std::byte> first;
    for (int threads : {1, 2, 3, 4}) {
      Buffer a = matrix(s.batch, s.m, s.k, false), b = matrix(s.batch, s.k, s.n, true),
             c = matrix(s.batch, s.m, s.n, false);
      a.randn(1);
      b.randn(2);
      StepDesc desc;
      desc.op = Op::Bmm;
      run_step(make_matmul, desc, {&a, &b}, {&c}, threads);
      if (threads == 1) first = c.memory;
      CHECK(std::memcmp(first.data(), c.memory.data(), s.batch * s.m * s.n * 4) == 0);
    }
  }
}

TEST_CASE("gemm: strided, expanded and offset views") {
  const int64_t m = 20, n = 37, k = 50;
  // Rows taken out of a wider matrix, and an operand expanded over its rows.
  Buffer wide(DType::F32, {m, k}, {k + 13, 1}), row(DType::F32, {k, n}, {0, 1}),
      c(DType::F32, {m, n});
  wide.randn(1);
  row.randn(2);
  StepDesc desc;
  desc.op = Op::Mm;
  for (int threads : {1, 2}) {
    run_step(make_matmul, desc, {&wide, &row}, {&c}, threads);
    double worst = 0;
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < n; ++j) {
        double sum = 0;
        for (int64_t q = 0; q < k; ++q)
          sum += double(wide.at<float>({i, q})) * row.at<float>({q, j});
        worst = std::max(worst, std::abs(c.at<float>({i, j}) - sum));
      }
    CHECK(worst < 2e-5);
  }
}

TEST_CASE("gemm: bmm whose result is stored head-minor") {
  const Shape s{6, 11, 16, 9};
  for (const std::vector<int>& order : {std::vector<int>{2, 0, 1}, {0, 2, 1}, {1, 0, 2}}) {
    Buffer a(DType::F32, {s.batch, s.m, s.k}), b(DType::F32, {s.batch, s.k, s.n});
    Buffer c(DType::F32, {s.batch, s.m, s.n}, strides_of_order({s.batch, s.m, s.n}, order));
    a.randn(1);
    b.randn(2);
    const std::vector<double> want = reference(a, b, s);
    StepDesc desc;
    desc.op = Op::Bmm;
    run_step(make_matmul, desc, {&a, &b}, {&c}, 2);
    double worst = 0;
    for (int64_t q = 0; q < s.batch; ++q)
      for (int64_t i = 0; i < s.m; ++i)
        for (int64_t j = 0; j < s.n; ++j)
          worst = std::max(worst, std::abs(c.at<float>({q, i, j}) - want[(q * s.m + i) * s.n + j]));
    CHECK(worst < 1e-5);
  }
}

TEST_CASE("gemm: other element types") {
  const int64_t m = 9, n = 35, k = 20;
  StepDesc desc;
  desc.op = Op::Mm;
  SUBCASE("i64") {
    Buffer a(DType::I64, {m, k}), b(DType::I64, {k, n}), c(DType::I64, {m, n});
    for (int64_t i = 0; i < m * k; ++i) a.data<int64_t>()[i] = i * 7919 - 500;
    for (int64_t i = 0; i < k * n; ++i) b.data<int64_t>()[i] = 300 - i * 104729;
    run_step(make_matmul, desc, {&a, &b}, {&c}, 2);
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < n; ++j) {
        int64_t sum = 0;
        for (int64_t q = 0; q < k; ++q) sum += a.at<int64_t>({i, q}) * b.at<int64_t>({q, j});
        CHECK(c.at<int64_t>({i, j}) == sum);
      }
  }
  SUBCASE("f16 computes in f32 and rounds once") {
    for (bool by_column : {false, true})
      for (int threads : {1, 2}) {
        Buffer a(DType::F16, {m, k}), b(DType::F16, {k, n}), c(DType::F16, {m, n});
        if (by_column) b.ref.strides = {1, k};
        // 0x3c00 is 1.0; small steps of the mantissa around it.
        for (int64_t i = 0; i < m * k; ++i)
          a.data<uint16_t>()[i] = static_cast<uint16_t>(0x3c00 + i % 97);
        for (int64_t i = 0; i < k * n; ++i)
          b.data<uint16_t>()[i] =
              static_cast<uint16_t>((0x3a00 + i % 89) | (i % 3 == 0 ? 0x8000 : 0));
        auto value = [](uint16_t h) {
          const double sign = h & 0x8000 ? -1 : 1;
          return sign * std::ldexp(1.0 + (h & 1023) / 1024.0, ((h >> 10) & 31) - 15);
        };
        run_step(make_matmul, desc, {&a, &b}, {&c}, threads);
        double worst = 0;
        for (int64_t i = 0; i < m; ++i)
          for (int64_t j = 0; j < n; ++j) {
            double sum = 0;
            for (int64_t q = 0; q < k; ++q)
              sum += value(a.at<uint16_t>({i, q})) * value(b.at<uint16_t>({q, j}));
            worst = std::max(worst, std::abs(value(c.at<uint16_t>({i, j})) - sum) /
                                        std::max(1.0, std::abs(sum)));
          }
        CHECK(worst < 6e-4);
      }
  }
}

namespace {

// out = product * 2 + bias (per column), and out2 -= product in place, on absolute indices.
struct TestEpilogue final : Epilogue {
  int64_t ld, n;
  TestEpilogue(int64_t ld_in, int64_t n_in) : ld(ld_in), n(n_in) {}
  void run_box(std::byte* const* ptrs, int64_t o0, int64_t o1, int64_t i0,
               int64_t i1) const override {
    const auto *product = reinterpret_cast<const float*>(ptrs[0]),
               *bias = reinterpret_cast<const float*>(ptrs[1]),
               *state = reinterpret_cast<const float*>(ptrs[2]);
    auto *out = reinterpret_cast<float*>(ptrs[3]), *next = reinterpret_cast<float*>(ptrs[4]);
    for (int64_t o = o0; o < o1; ++o)
      for (int64_t i = i0; i < i1; ++i) {
        out[o * n + i] = product[o * ld + i] * 2 + bias[i];
        next[o * n + i] = state[o * n + i] - product[o * ld + i];
      }
  }
};

KernelPtr make_test_epilogue(const StepDesc& desc) {
  const TensorRef product = matmul_epilogue_product(desc);
  return make_matmul_with_epilogue(
      desc, std::make_unique<TestEpilogue>(product.strides[0], product.shape[1]));
}

}  // namespace

TEST_CASE("gemm: epilogue runs once on every element, also in place") {
  for (const Shape& s :
       {Shape{1, 16, 100, 972}, Shape{1, 100, 972, 16}, Shape{1, 200, 300, 500},
        Shape{4, 30, 50, 20}, Shape{1, 100, 64, 4000}, Shape{1, 1, 1, 1}, Shape{1, 3, 600, 100}})
    for (int form = 0; form < 4; ++form)
      for (int threads : {1, 2}) {
        CAPTURE(s.m);
        CAPTURE(s.n);
        CAPTURE(s.k);
        CAPTURE(form);
        CAPTURE(threads);
        Buffer a = matrix(s.batch, s.m, s.k, form & 1), b = matrix(s.batch, s.k, s.n, form & 2);
        Buffer bias(DType::F32, {s.n}), state(DType::F32, {s.batch * s.m, s.n}),
            out(DType::F32, {s.batch * s.m, s.n});
        a.randn(1);
        b.randn(2);
        bias.randn(3);
        state.randn(4);
        Buffer before = state;
        const std::vector<double> want = reference(a, b, s);
        StepDesc desc;
        desc.op = Op::Bmm;
        // The harness gives every buffer a region of its own; passing `state` twice makes it
        // in-place.
        run_step(make_test_epilogue, desc, {&a, &b, &bias, &state}, {&out, &state}, threads);
        double worst = 0;
        for (int64_t i = 0; i < s.batch * s.m; ++i)
          for (int64_t j = 0; j < s.n; ++j) {
            worst = std::max(worst, std::abs(out.at<float>({i, j}) -
                                             (2 * want[i * s.n + j] + bias.at<float>({j}))));
            worst = std::max(worst, std::abs(state.at<float>({i, j}) -
                                             (before.at<float>({i, j}) - want[i * s.n + j])));
          }
        CHECK(worst <= 2 * tolerance(s.k));
      }
}

// Integers wrap around, which any order of additions does alike.
template <typename T>
void check_integers(DType dtype) {
  for (const Shape& s : {Shape{1, 1, 1, 1},
                         {2, 5, 7, 3},
                         {3, 33, 70, 40},
                         {1, 1, 129, 64},
                         {1, 200, 1, 9},
                         {2, 4, 5, 0}})
    for (int form = 0; form < 8; ++form)
      for (int threads : {1, 2}) {
        CAPTURE(name_of(dtype));
        CAPTURE(s.m);
        CAPTURE(s.n);
        CAPTURE(form);
        Buffer a = matrix(s.batch, s.m, s.k, form & 1, dtype),
               b = matrix(s.batch, s.k, s.n, form & 2, dtype),
               c = matrix(s.batch, s.m, s.n, form & 4, dtype);
        std::mt19937_64 gen(7);
        for (Buffer* t : {&a, &b})
          for (std::byte& byte : t->memory) byte = static_cast<std::byte>(gen());
        StepDesc desc;
        desc.op = Op::Bmm;
        run_step(make_matmul, desc, {&a, &b}, {&c}, threads);
        bool equal = true;
        for (int64_t q = 0; q < s.batch; ++q)
          for (int64_t i = 0; i < s.m; ++i)
            for (int64_t j = 0; j < s.n; ++j) {
              uint64_t sum = 0;
              for (int64_t k = 0; k < s.k; ++k)
                sum += static_cast<uint64_t>(a.at<T>({q, i, k})) *
                       static_cast<uint64_t>(b.at<T>({q, k, j}));
              equal = equal && c.at<T>({q, i, j}) == static_cast<T>(sum);
            }
        CHECK(equal);
      }
}

TEST_CASE("matmul of integers wraps around as torch's does") {
  check_integers<int64_t>(DType::I64);
  check_integers<int32_t>(DType::I32);
  check_integers<int16_t>(DType::I16);
  check_integers<int8_t>(DType::I8);
  check_integers<uint8_t>(DType::U8);
}

TEST_CASE("random: uniform numbers, independent between keys, streams and neighbours") {
  const int n = 1 << 18;
  bool in_range = true;
  for (uint32_t stream : {0u, 1u, 77u}) {
    double sum = 0, squares = 0, lag = 0, across = 0, keys = 0, previous = 0;
    for (int i = 0; i < n; ++i) {
      const double u = kernels::uniform(42, 3, stream, i) - 0.5;
      in_range = in_range && u >= -0.5 && u < 0.5;
      sum += u;
      squares += u * u;
      lag += u * previous;
      across += u * (kernels::uniform(42, 3, stream + 1, i) - 0.5);
      keys += u * (kernels::uniform(42, 4, stream, i) - 0.5);
      previous = u;
    }
    const double bound = 5.0 / std::sqrt(n);  // five standard deviations of a correlation
    CHECK(std::abs(sum / n) < bound * 0.29);
    CHECK(std::abs(squares / n - 1.0 / 12) < bound * 0.09);
    CHECK(std::abs(lag / n * 12) < bound);
    CHECK(std::abs(across / n * 12) < bound);
    CHECK(std::abs(keys / n * 12) < bound);
  }
  CHECK(in_range);
  // Indices beyond 32 bits are different numbers.
  CHECK(kernels::uniform(1, 2, 3, 5) != kernels::uniform(1, 2, 3, 5 + (uint64_t{1} << 32)));
}

}  // namespace tessera::test
