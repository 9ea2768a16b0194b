// SPDX-License-Identifier: Apache-2.0
// Fused regions: the compiled code against the reference interpreter, and its functions against the
// C library in double; broadcasting, strides, types, reductions, tails, and the same bits for one
// and two threads.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "codegen/region.h"
#include "codegen/scalar_value.h"
#include "kernel_harness.h"
#include "kernels/random.h"

using namespace tessera;
using test::Buffer;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// What is under test; without LLVM the interpreter itself, against the C library and for equal bits
// over threads.
CodegenBackend best_backend() {
  return codegen_has_llvm() ? CodegenBackend::kLlvm : CodegenBackend::kReference;
}

std::string shape_text(DType t, const Dims& shape) {
  return to_string(TensorType{t, shape, {}});
}

std::string graph_text(const std::string& lines) {
  return "tessera 1\ngraph \"body\" {\n" + lines + "}\n";
}

double value_at(Buffer& b, int64_t flat) {
  int64_t offset = 0;
  for (size_t d = b.ref.shape.size(); d-- > 0;) {
    offset += flat % b.ref.shape[d] * b.ref.strides[d];
    flat /= b.ref.shape[d];
  }
  auto x = codegen::load_scalar(b.ref.dtype, b.memory.data() + offset * size_of(b.ref.dtype));
  return is_float(b.ref.dtype) ? x.f : static_cast<double>(x.i);
}

void set_at(Buffer& b, int64_t flat, double v) {
  int64_t offset = 0;
  for (size_t d = b.ref.shape.size(); d-- > 0;) {
    offset += flat % b.ref.shape[d] * b.ref.strides[d];
    flat /= b.ref.shape[d];
  }
  codegen::store_scalar(b.ref.dtype, b.memory.data() + offset * size_of(b.ref.dtype),
                        codegen::of_float(DType::F64, v));
}

// Random values that suit the type: normal floats, small integers, coin flips.
void fill(Buffer& b, unsigned seed) {
  std::mt19937 gen(seed);
  std::normal_distribution<double> normal;
  std::uniform_int_distribution<int> whole(b.ref.dtype == DType::U8 ? 0 : -9, 9);
  for (int64_t i = 0; i < b.ref.count(); ++i)
    set_at(b, i,
           is_float(b.ref.dtype)        ? normal(gen)
           : b.ref.dtype == DType::Bool ? whole(gen) > 0
                                        : whole(gen));
}

void run_with(CodegenBackend backend, const std::string& body, const std::vector<Buffer*>& in,
              const std::vector<Buffer*>& out, int threads) {
  set_codegen_backend(backend);
  StepDesc desc;
  desc.op = Op::Fused;
  desc.body = body;
  test::run_step(make_fused, desc, in, out, threads);
  set_codegen_backend(best_backend());
}

bool close(double got, double want, double relative, double absolute) {
  if (std::isnan(want) || std::isnan(got)) return std::isnan(want) && std::isnan(got);
  if (std::isinf(want) || std::isinf(got)) return got == want;
  return std::fabs(got - want) <= absolute + relative * std::fabs(want);
}

// Runs a body compiled (1, 2 and 3 threads: equal bits) and interpreted, and compares all outputs.
// What lies between the elements of a strided output must stay untouched.
void check_body(const std::string& lines, std::vector<Buffer*> in, std::vector<Buffer*> out,
                double relative = 1e-6, double absolute = 1e-6) {
  const std::string body = graph_text(lines);
  INFO(body);
  for (Buffer* b : out) std::memset(b->memory.data(), 0x5a, b->memory.size());
  run_with(CodegenBackend::kReference, body, in, out, 1);
  std::vector<std::vector<std::byte>> want, one;
  for (Buffer* b : out) want.push_back(b->memory);
  for (int threads : {1, 2, 3}) {
    for (Buffer* b : out) std::memset(b->memory.data(), 0x5a, b->memory.size());
    run_with(best_backend(), body, in, out, threads);
    for (size_t k = 0; k < out.size(); ++k) {
      if (threads == 1)
        one.push_back(out[k]->memory);
      else
        CHECK(std::memcmp(one[k].data(), out[k]->memory.data(), one[k].size()) == 0);
    }
  }
  for (size_t k = 0; k < out.size(); ++k) {
    Buffer expected = *out[k];
    expected.memory = want[k];
    for (int64_t i = 0; i < out[k]->ref.count(); ++i) {
      const double g = value_at(*out[k], i), w = value_at(expected, i);
      INFO("output ", k, " element ", i, ": got ", g, " want ", w);
      if (!close(g, w, relative, absolute)) {
        CHECK(close(g, w, relative, absolute));
        return;
      }
    }
    // Make all elements equal; whatever still differs was written outside the tensor.
    for (int64_t i = 0; i < out[k]->ref.count(); ++i) set_at(*out[k], i, 0), set_at(expected, i, 0);
    CHECK(std::memcmp(out[k]->memory.data(), expected.memory.data(), expected.memory.size()) == 0);
  }
}

const float kSpecial[] = {0.0f,  -0.0f,   1.0f,   -1.0f,  0.5f,   -0.5f, 2.0f,   -2.0f, 3.0f,
                          -3.0f, 1e-3f,   -1e-3f, 1e-10f, 10.0f,  -10.f, 20.5f,  -88.f, 88.5f,
                          100.f, -110.0f, 1e4f,   1e-38f, 1e-40f, 1e20f, -1e20f, kInf,  -kInf,
                          kNan,  0.9999f, 3.14f,  6.28f,  -1.57f, 127.0f};
constexpr int kSpecials = sizeof(kSpecial) / sizeof(kSpecial[0]);

struct Row {
  Op op;
  std::string_view text = op_text(op);
  int arity = pointwise_arity(op);
  DTypeRule rule = pointwise_rule(op);
};
const std::vector<Row> kRows = [] {
  std::vector<Row> out;
  for (int i = 0; i < static_cast<int>(Op::kCount); ++i)
    if (auto op = static_cast<Op>(i); is_pointwise(op)) out.push_back({op});
  return out;
}();

bool integer_only(const Row& r) {
  return r.rule == DTypeRule::kInt || r.rule == DTypeRule::kWhole;
}
bool stands_alone(Op op) {
  return op == Op::Iota || op == Op::Uniform || op == Op::Fill ||
         op == Op::NextAfter;  // its last operand is no free number: vector_math_test
}

std::string row_lines(const Row& r, DType in, DType out, int64_t n, int tensors) {
  std::string lines, args;
  for (int k = 0; k < tensors; ++k)
    lines += fmt::format("  input %{} \"x{}\" : {}\n", k, k, shape_text(in, {n}));
  for (int k = 0; k < r.arity; ++k) args += fmt::format("{}%{}", k ? ", " : "", k);
  lines += fmt::format("  %{} = {}({}) : {}\n  output %{}\n", tensors, r.text, args,
                       shape_text(out, {n}), tensors);
  return lines;
}

}  // namespace

TEST_CASE("codegen: every float row agrees with the reference, special values included") {
  for (const Row& r : kRows) {
    if (integer_only(r) || stands_alone(r.op)) continue;
    CAPTURE(std::string(r.text));
    // Each special value against each other one, and random numbers.
    const int64_t n = kSpecials * kSpecials + 500;
    std::vector<Buffer> x;
    for (int k = 0; k < r.arity; ++k) {
      x.emplace_back(DType::F32, Dims{n});
      x[k].randn(7u + static_cast<unsigned>(k), 2.0f);
      for (int i = 0; i < kSpecials * kSpecials; ++i)
        if (k < 2) x[k].data<float>()[i] = kSpecial[k == 0 ? i % kSpecials : i / kSpecials];
    }
    Buffer y(r.rule == DTypeRule::kBool ? DType::Bool : DType::F32, {n});
    std::vector<Buffer*> in;
    for (Buffer& b : x) in.push_back(&b);
    const bool products = r.op == Op::Mul || r.op == Op::Square || r.op == Op::Hypot;
    check_body(row_lines(r, DType::F32, y.ref.dtype, n, r.arity), in, {&y}, products ? 1e-6 : 4e-6,
               2e-6);
  }
}

TEST_CASE("codegen: integer and bool rows agree with the reference") {
  for (DType t : {DType::I64, DType::I32, DType::I16, DType::I8, DType::U8, DType::Bool}) {
    for (const Row& r : kRows) {
      if (r.rule == DTypeRule::kFloat || r.rule == DTypeRule::kReal || stands_alone(r.op) ||
          r.op == Op::HardTanhGrad)
        continue;
      if (t == DType::Bool && (r.rule == DTypeRule::kInt || r.rule == DTypeRule::kNumber ||
                               r.op == Op::Sign || r.op == Op::Sgn))
        continue;  // nor these
      CAPTURE(std::string(r.text));
      CAPTURE(std::string(name_of(t)));
      const int64_t n = 333;
      std::vector<Buffer> x;
      for (int k = 0; k < r.arity; ++k) {
        x.emplace_back(t, Dims{n});
        fill(x[k], 20u + static_cast<unsigned>(k));
      }
      Buffer y(r.rule == DTypeRule::kBool ? DType::Bool : t, {n});
      std::vector<Buffer*> in;
      for (Buffer& b : x) in.push_back(&b);
      check_body(row_lines(r, t, y.ref.dtype, n, r.arity), in, {&y}, 0, 0);
    }
  }
}

TEST_CASE("codegen: double rows agree with the reference") {
  for (const Row& r : kRows) {
    if (integer_only(r) || stands_alone(r.op)) continue;
    CAPTURE(std::string(r.text));
    const int64_t n = 100;
    std::vector<Buffer> x;
    for (int k = 0; k < r.arity; ++k) {
      x.emplace_back(DType::F64, Dims{n});
      fill(x[k], 40u + static_cast<unsigned>(k));
    }
    Buffer y(r.rule == DTypeRule::kBool ? DType::Bool : DType::F64, {n});
    std::vector<Buffer*> in;
    for (Buffer& b : x) in.push_back(&b);
    check_body(row_lines(r, DType::F64, y.ref.dtype, n, r.arity), in, {&y}, 1e-14, 1e-14);
  }
}

TEST_CASE("codegen: tails of every length, around the unrolled step") {
  for (int64_t n : {1, 2, 15, 16, 17, 31, 33, 63, 64, 65, 127, 130, 200}) {
    Buffer a(DType::F32, {n}), b(DType::F32, {n}), y(DType::F32, {n});
    a.randn(1), b.randn(2);
    check_body(
        fmt::format("  input %0 \"a\" : f32[{0}]\n  input %1 \"b\" : f32[{0}]\n"
                    "  %2 = mul(%0, %1) : f32[{0}]\n  %3 = add(%2, 1.5) : f32[{0}]\n  output %3\n",
                    n),
        {&a, &b}, {&y});
  }
}

TEST_CASE("codegen: broadcasting as in PyTorch") {
  Buffer x(DType::F32, {4, 3, 37}), row(DType::F32, {37}), column(DType::F32, {3, 1}),
      batch(DType::F32, {4, 1, 1}), scalar(DType::F32, {}), y(DType::F32, {4, 3, 37});
  unsigned seed = 1;
  for (Buffer* b : {&x, &row, &column, &batch, &scalar}) fill(*b, seed++);
  check_body(
      "  input %0 \"x\" : f32[4,3,37]\n  input %1 \"r\" : f32[37]\n  input %2 \"c\" : f32[3,1]\n"
      "  input %3 \"b\" : f32[4,1,1]\n  input %4 \"s\" : f32[]\n"
      "  %5 = add(%0, %1) : f32[4,3,37]\n  %6 = exp(%2) : f32[3,1]\n  %7 = mul(%5, %6) : "
      "f32[4,3,37]\n"
      "  %8 = sub(%7, %3) : f32[4,3,37]\n  %9 = sqrt(%4) : f32[]\n  %10 = abs(%4) : f32[]\n"
      "  %11 = add(%10, 1.0) : f32[]\n  %12 = div(%8, %11) : f32[4,3,37]\n  output %12\n",
      {&x, &row, &column, &batch, &scalar}, {&y});
}

TEST_CASE("codegen: scalars and empty tensors") {
  Buffer a(DType::F32, {}), y(DType::F32, {});
  a.data<float>()[0] = 3;
  check_body("  input %0 \"a\" : f32[]\n  %1 = mul(%0, %0) : f32[]\n  output %1\n", {&a}, {&y});
  Buffer e(DType::F32, {0, 5}), z(DType::F32, {0, 5});
  check_body("  input %0 \"a\" : f32[0,5]\n  %1 = neg(%0) : f32[0,5]\n  output %1\n", {&e}, {&z});
}

TEST_CASE("codegen: memory orders and views") {
  const Dims shape{6, 5, 7, 9};
  const std::vector<std::vector<int>> orders = {
      {3, 2, 1, 0}, {1, 3, 2, 0}, {0, 3, 2, 1}, {2, 0, 3, 1}};
  for (const auto& from : orders)
    for (const auto& to : orders) {
      Buffer a(DType::F32, shape, test::strides_of_order(shape, from));
      Buffer bias(DType::F32, {5, 1, 1});
      Buffer y(DType::F32, shape, test::strides_of_order(shape, to));
      a.randn(3), bias.randn(4);
      check_body(
          "  input %0 \"a\" : f32[6,5,7,9]\n  input %1 \"b\" : f32[5,1,1]\n"
          "  %2 = add(%0, %1) : f32[6,5,7,9]\n  output %2\n",
          {&a, &bias}, {&y}, 0, 0);
    }
}

TEST_CASE("codegen: transposing copies of every element size") {
  for (DType t : {DType::F32, DType::F16, DType::BF16, DType::F64, DType::I64, DType::I32,
                  DType::I8, DType::Bool})
    for (Dims shape :
         {Dims{2, 40, 35}, Dims{3, 16, 16}, Dims{1, 5, 130}, Dims{2, 130, 3}, Dims{3, 500, 4}}) {
      Buffer a(t, shape, {shape[1] * shape[2], 1, shape[1]});
      Buffer y(t, shape);
      fill(a, 5);
      const std::string type = shape_text(t, shape);
      check_body("  input %0 \"a\" : " + type + "\n  %1 = clone(%0) : " + type + "\n  output %1\n",
                 {&a}, {&y}, 0, 0);
    }
}

TEST_CASE("codegen: gaps, negative steps and odd strides of operands, gaps in outputs") {
  Buffer a(DType::F32, {10, 33}, {80, 2}), b(DType::F32, {10, 33}, {0, 3}),
      y(DType::F32, {10, 33}, {50, 1}), z(DType::F32, {10, 33}, {1, 10});
  a.randn(1), b.randn(2);
  check_body(
      "  input %0 \"a\" : f32[10,33]\n  input %1 \"b\" : f32[10,33]\n  %2 = maximum(%0, %1) : "
      "f32[10,33]\n"
      "  %3 = minimum(%0, %1) : f32[10,33]\n  output %2, %3\n",
      {&a, &b}, {&y, &z}, 0, 0);
}

TEST_CASE("codegen: half types load, round at every op and store") {
  for (DType t : {DType::F16, DType::BF16}) {
    const std::string type = shape_text(t, {3, 77});
    Buffer a(t, {3, 77}), b(t, {3, 77}), y(t, {3, 77}), wide(DType::F32, {3, 77});
    fill(a, 1), fill(b, 2);
    set_at(a, 0, kNan), set_at(a, 1, kInf), set_at(a, 2, 65504), set_at(a, 3, 1e-7),
        set_at(b, 2, 65504);
    check_body("  input %0 \"a\" : " + type + "\n  input %1 \"b\" : " + type +
                   "\n  %2 = mul(%0, %1) : " + type + "\n  %3 = add(%2, %0) : " + type +
                   "\n  %4 = _to_copy(%2) : f32[3,77]\n  output %3, %4\n",
               {&a, &b}, {&y, &wide}, 0, 0);
  }
}

TEST_CASE("codegen: casts between all types") {
  const DType types[] = {DType::F32, DType::F16, DType::BF16, DType::F64, DType::I64,
                         DType::I32, DType::I16, DType::I8,   DType::U8,  DType::Bool};
  for (DType from : types)
    for (DType to : types) {
      Buffer a(from, {100}), y(to, {100});
      for (int i = 0; i < 100; ++i)
        set_at(a, i,
               from == DType::Bool ? i % 2
               : from == DType::U8 ? i
               : to == DType::U8   ? i * 0.7
                                   : i * 1.3 - 60);
      check_body("  input %0 \"a\" : " + shape_text(from, {100}) +
                     "\n  %1 = _to_copy(%0) : " + shape_text(to, {100}) + "\n  output %1\n",
                 {&a}, {&y}, 0, 0);
    }
}

TEST_CASE("codegen: mixed types promote, literals do not") {
  Buffer a(DType::I32, {50}), m(DType::Bool, {50}), f(DType::F32, {50}), k(DType::I64, {50}),
      y0(DType::F32, {50}), y1(DType::Bool, {50}), y2(DType::F32, {50}), y3(DType::I64, {50});
  fill(a, 1), fill(m, 2), fill(f, 3), fill(k, 4);
  check_body(
      "  input %0 \"a\" : i32[50]\n  input %1 \"m\" : bool[50]\n  input %2 \"f\" : f32[50]\n"
      "  input %3 \"k\" : i64[50]\n"
      "  %4 = mul(%1, %2) : f32[50]\n  %5 = lt(%0, 1.5) : bool[50]\n  %6 = where(%5, %2, -inf) : "
      "f32[50]\n"
      "  %7 = add(%3, %0) : i64[50]\n  %8 = div(%0, 4) : f32[50]\n  %9 = add(%8, %4) : f32[50]\n"
      "  output %9, %5, %6, %7\n",
      {&a, &m, &f, &k}, {&y0, &y1, &y2, &y3}, 0, 0);
}

TEST_CASE("codegen: integer division never traps") {
  Buffer a(DType::I64, {40}), b(DType::I64, {40}), q(DType::I64, {40}), r(DType::I64, {40});
  for (int i = 0; i < 40; ++i) {
    a.data<int64_t>()[i] = i < 4 ? std::numeric_limits<int64_t>::min() : i - 20;
    b.data<int64_t>()[i] = i % 7 - 3;
  }
  check_body(
      "  input %0 \"a\" : i64[40]\n  input %1 \"b\" : i64[40]\n  %2 = floor_divide(%0, %1) : "
      "i64[40]\n"
      "  %3 = remainder(%0, %1) : i64[40]\n  output %2, %3\n",
      {&a, &b}, {&q, &r}, 0, 0);
}

TEST_CASE("codegen: integer division by zero is reported, and only that") {
  // 41: a tail of nine lanes, whose other lanes hold zeros.
  for (const char* op : {"div_trunc", "floor_divide", "fmod", "remainder"})
    for (DType t : {DType::I64, DType::I32, DType::I16, DType::I8, DType::U8})
      for (int zero_at : {-1, 0, 17, 40}) {
        CAPTURE(std::string(op));
        CAPTURE(zero_at);
        Buffer a(t, {41}), b(t, {41}), q(t, {41});
        for (int i = 0; i < 41; ++i) set_at(a, i, i), set_at(b, i, i == zero_at ? 0 : 3);
        const std::string type = shape_text(t, {41});
        const std::string body =
            graph_text(fmt::format("  input %0 \"a\" : {0}\n  input %1 \"b\" : {0}\n"
                                   "  %2 = {1}(%0, %1) : {0}\n  output %2\n",
                                   type, op));
        for (CodegenBackend backend : {best_backend(), CodegenBackend::kReference}) {
          test::harness_errors().take();
          run_with(backend, body, {&a, &b}, {&q}, 2);
          CHECK(test::harness_errors().take().has_value() == (zero_at >= 0));
        }
      }
}

TEST_CASE("codegen: fills, indices and random numbers, in any memory order") {
  const Dims shape{6, 5, 40};
  for (const std::vector<int>& order : {std::vector<int>{2, 1, 0}, {0, 1, 2}, {1, 2, 0}}) {
    const Dims strides = test::strides_of_order(shape, order);
    Buffer key(DType::I64, {2}), f(DType::F32, shape, strides), i(DType::I64, shape, strides),
        g(DType::F32, shape, strides), u(DType::F32, shape, strides), h(DType::I32, shape, strides);
    key.data<int64_t>()[0] = 0x123456789abcdef;
    key.data<int64_t>()[1] = -5;
    check_body(
        "  input %0 \"key\" : i64[2]\n  %1 = full(2.5) : f32[6,5,40]\n  %2 = iota(1, 3, 2) : "
        "i64[6,5,40]\n"
        "  %3 = iota(-1, 0.5, 0.25) : f32[40]\n  %4 = add(%3, %1) : f32[6,5,40]\n"
        "  %5 = uniform(%0, 17) : f32[6,5,40]\n  %6 = iota(0) : i32[6,5,40]\n"
        "  output %1, %2, %4, %5, %6\n",
        {&key}, {&f, &i, &g, &u, &h}, 0, 0);
    const uint32_t k0 = kernels::random_fold(key.data<int64_t>()[0]), k1 = kernels::random_fold(-5);
    run_with(
        best_backend(),
        graph_text(
            "  input %0 \"key\" : i64[2]\n  %1 = uniform(%0, 17) : f32[6,5,40]\n  output %1\n"),
        {&key}, {&u}, 2);
    for (int64_t n = 0; n < 6 * 5 * 40; ++n)
      CHECK(value_at(u, n) == kernels::uniform(k0, k1, 17, n));
  }
}

TEST_CASE("codegen: an update in place") {
  const int64_t n = 1003;
  Buffer p(DType::F32, {n}), g(DType::F32, {n}), m(DType::F32, {n}), lr(DType::F32, {});
  p.randn(1), g.randn(2), m.randn(3);
  lr.data<float>()[0] = 0.1f;
  std::vector<float> want_p(n), want_m(n);
  for (int64_t i = 0; i < n; ++i) {
    want_m[i] = m.data<float>()[i] * 0.9f + g.data<float>()[i];
    want_p[i] = p.data<float>()[i] - want_m[i] * 0.1f;
  }
  run_with(
      best_backend(),
      graph_text(fmt::format(
          "  input %0 \"p\" : f32[{0}]\n  input %1 \"g\" : f32[{0}]\n  input %2 \"m\" : f32[{0}]\n"
          "  input %3 \"lr\" : f32[]\n  %4 = mul(%2, 0.9) : f32[{0}]\n  %5 = add(%4, %1) : "
          "f32[{0}]\n"
          "  %6 = mul(%5, %3) : f32[{0}]\n  %7 = sub(%0, %6) : f32[{0}]\n  output %7, %5\n",
          n)),
      {&p, &g, &m, &lr}, {&p, &m}, 2);
  // The harness gave each buffer two regions over the same memory, as a plan does for an update in
  // place.
  for (int64_t i = 0; i < n; ++i) {
    CHECK(p.data<float>()[i] == doctest::Approx(want_p[i]).epsilon(1e-6));
    CHECK(m.data<float>()[i] == doctest::Approx(want_m[i]).epsilon(1e-6));
  }
}

TEST_CASE("codegen: results too large for the cache, at any address, with a tail") {
  const int64_t n = (int64_t{25} << 18) + 5;  // 25 MB and a bit
  Buffer x(DType::F32, {n});
  x.randn(9);
  for (int64_t shift : {0, 16, 48}) {
    Buffer y(DType::F32, {n});
    // Stores past the cache need whole lines: one of these begins a line, the others do not.
    const auto at = reinterpret_cast<uintptr_t>(y.memory.data());
    y.ref.offset = static_cast<int64_t>((64 - at % 64) % 64 + static_cast<uintptr_t>(shift)) % 64;
    CAPTURE(y.ref.offset);
    for (int threads : {1, 2}) {
      std::memset(y.memory.data(), 0, y.memory.size());
      run_with(
          best_backend(),
          graph_text(fmt::format("  input %0 \"x\" : f32[{0}]\n  %1 = mul(%0, 2.0) : f32[{0}]\n"
                                 "  output %1\n",
                                 n)),
          {&x}, {&y}, threads);
      const auto* got = reinterpret_cast<const float*>(y.memory.data() + y.ref.offset);
      int64_t wrong = 0;
      for (int64_t i = 0; i < n; ++i) wrong += got[i] != 2 * x.data<float>()[i];
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("codegen: one opaque number is copied") {
  for (DType t : {DType::C64, DType::C128}) {
    for (CodegenBackend backend : {best_backend(), CodegenBackend::kReference}) {
      Buffer x(t, {}), y(t, {});
      for (int64_t k = 0; k < size_of(t); ++k) x.memory[k] = static_cast<std::byte>(17 * k + 1);
      const std::string type(name_of(t));
      run_with(backend,
               graph_text(fmt::format("  input %0 \"x\" : {0}[]\n  %1 = clone(%0) : {0}[]\n"
                                      "  output %1\n",
                                      type)),
               {&x}, {&y}, 1);
      CHECK(std::memcmp(x.memory.data(), y.memory.data(), size_of(t)) == 0);
    }
  }
}

TEST_CASE("codegen: reductions over any dims, in any memory order, with their prologue") {
  const Dims shape{5, 6, 70};
  const std::vector<std::string> dims = {"[0]",    "[1]",    "[2]", "[0, 1]",
                                         "[0, 2]", "[1, 2]", "[]",  "[-1]"};
  const std::vector<Dims> kept = {{6, 70}, {5, 70}, {5, 6}, {70}, {6}, {5}, {}, {5, 6}};
  for (size_t k = 0; k < dims.size(); ++k)
    for (const std::vector<int>& order : {std::vector<int>{2, 1, 0}, {0, 1, 2}, {1, 2, 0}}) {
      Buffer x(DType::F32, shape, test::strides_of_order(shape, order)), scale(DType::F32, {6, 1});
      x.randn(9), scale.randn(8);
      Buffer s(DType::F32, kept[k]), top(DType::F32, kept[k]), low(DType::F32, kept[k]);
      const std::string type = shape_text(DType::F32, kept[k]);
      check_body(
          "  input %0 \"x\" : f32[5,6,70]\n  input %1 \"s\" : f32[6,1]\n  %2 = mul(%0, %1) : "
          "f32[5,6,70]\n"
          "  %3 = sum(%2, " +
              dims[k] + ", false) : " + type + "\n  %4 = amax(%0, " + dims[k] +
              ", false) : " + type + "\n  %5 = amin(%2, " + dims[k] + ", false) : " + type +
              "\n  output %3, %4, %5\n",
          {&x, &scale}, {&s, &top, &low}, 1e-6, 2e-5);
    }
}

TEST_CASE("codegen: reductions beside a stored value, keepdim, result in another order") {
  const Dims shape{8, 33, 6, 6};
  for (const std::vector<int>& order : {std::vector<int>{3, 2, 1, 0}, {1, 3, 2, 0}, {0, 3, 2, 1}}) {
    const Dims strides = test::strides_of_order(shape, order);
    Buffer dy(DType::F32, shape, strides), x(DType::F32, shape, strides),
        mean(DType::F32, {1, 33, 1, 1}), g(DType::F32, shape, strides),
        s1(DType::F32, {1, 33, 1, 1}), s2(DType::F32, {33});
    dy.randn(1), x.randn(2), mean.randn(3);
    check_body(
        "  input %0 \"dy\" : f32[8,33,6,6]\n  input %1 \"x\" : f32[8,33,6,6]\n  input %2 \"m\" : "
        "f32[1,33,1,1]\n"
        "  %3 = threshold_backward(%0, %1, 0) : f32[8,33,6,6]\n  %4 = sub(%1, %2) : f32[8,33,6,6]\n"
        "  %5 = mul(%3, %4) : f32[8,33,6,6]\n  %6 = sum(%3, [0, 2, 3], true) : f32[1,33,1,1]\n"
        "  %7 = sum(%5, [0, 2, 3], false) : f32[33]\n  output %3, %6, %7\n",
        {&dy, &x, &mean}, {&g, &s1, &s2}, 1e-6, 1e-4);
  }
  Buffer a(DType::F32, {20, 30, 40}), t(DType::F32, {20, 30}, {1, 20});
  a.randn(4);
  check_body(
      "  input %0 \"a\" : f32[20,30,40]\n  %1 = sum(%0, [2], false) : f32[20,30]\n  output %1\n",
      {&a}, {&t}, 1e-6, 1e-5);
}

TEST_CASE("codegen: large sums are accurate and do not depend on the threads") {
  struct Case {
    Dims shape;
    std::string dims;
    Dims kept;
  };
  for (const Case& c :
       {Case{{300007}, "[]", {}}, Case{{70000, 7}, "[0]", {7}}, Case{{7, 70000}, "[1]", {7}},
        Case{{3, 5000, 16}, "[1]", {3, 16}}, Case{{2, 9001}, "[0]", {9001}},
        Case{{64, 12, 49}, "[0, 2]", {12}}, Case{{100, 3, 100}, "[0, 2]", {3}}}) {
    Buffer x(DType::F32, c.shape), s(DType::F32, c.kept);
    x.randn(11);
    for (int64_t i = 0; i < x.ref.count(); ++i) x.data<float>()[i] += 1.0f;  // a sum far from zero
    check_body("  input %0 \"x\" : " + shape_text(DType::F32, c.shape) + "\n  %1 = sum(%0, " +
                   c.dims + ", false) : " + shape_text(DType::F32, c.kept) + "\n  output %1\n",
               {&x}, {&s}, 5e-7, 1e-5);
  }
}

TEST_CASE("codegen: reductions of other types, NaN and empty sums") {
  Buffer h(DType::F16, {30, 40}), hs(DType::F16, {30}), b(DType::Bool, {30, 40}),
      bs(DType::I64, {40}), k(DType::I32, {30, 40}), km(DType::I32, {40}), d(DType::F64, {30, 40}),
      ds(DType::F64, {});
  fill(h, 1), fill(b, 2), fill(k, 3), fill(d, 4);
  check_body("  input %0 \"h\" : f16[30,40]\n  %1 = sum(%0, [1], false) : f16[30]\n  output %1\n",
             {&h}, {&hs}, 1e-3, 1e-3);
  check_body("  input %0 \"b\" : bool[30,40]\n  %1 = sum(%0, [0], false) : i64[40]\n  output %1\n",
             {&b}, {&bs}, 0, 0);
  check_body("  input %0 \"k\" : i32[30,40]\n  %1 = amin(%0, [0], false) : i32[40]\n  output %1\n",
             {&k}, {&km}, 0, 0);
  check_body("  input %0 \"d\" : f64[30,40]\n  %1 = sum(%0, [], false) : f64[]\n  output %1\n",
             {&d}, {&ds}, 1e-13, 1e-12);
  Buffer f(DType::F32, {4, 50}), top(DType::F32, {4}), down(DType::F32, {50});
  f.randn(5);
  f.data<float>()[60] = kNan;
  check_body("  input %0 \"f\" : f32[4,50]\n  %1 = amax(%0, [1], false) : f32[4]\n  output %1\n",
             {&f}, {&top}, 0, 0);
  check_body("  input %0 \"f\" : f32[4,50]\n  %1 = amin(%0, [0], false) : f32[50]\n  output %1\n",
             {&f}, {&down}, 0, 0);
  Buffer none(DType::F32, {0, 5}), zero(DType::F32, {5});
  check_body("  input %0 \"f\" : f32[0,5]\n  %1 = sum(%0, [0], false) : f32[5]\n  output %1\n",
             {&none}, {&zero}, 0, 0);
}

TEST_CASE("codegen: random bodies agree with the reference") {
  const char* unary[] = {"relu", "tanh", "neg", "abs", "sigmoid"};
  const char* binary[] = {"add", "mul", "sub", "maximum"};
  std::mt19937 gen(123);
  auto pick = [&](int n) { return static_cast<int>(gen() % static_cast<unsigned>(n)); };
  for (int round = 0; round < 60; ++round) {
    Dims shape;
    for (int d = pick(4) + 1; d > 0; --d) shape.push_back(pick(3) ? 1 + pick(20) : 1);
    std::vector<Buffer> in;
    std::string lines;
    int values = 0;
    std::vector<Dims> shapes;
    for (int k = pick(4) + 1; k > 0; --k) {
      Dims s = shape;
      for (int64_t& d : s)
        if (pick(4) == 0) d = 1;
      if (pick(3) == 0) s.erase(s.begin(), s.begin() + pick(static_cast<int>(s.size()) + 1));
      std::vector<int> order;
      for (size_t d = 0; d < s.size(); ++d)
        order.insert(order.begin() + pick(static_cast<int>(d) + 1), static_cast<int>(d));
      in.emplace_back(DType::F32, s, test::strides_of_order(s, order));
      in.back().randn(gen());
      shapes.push_back(s);
      lines += fmt::format("  input %{} \"x{}\" : {}\n", values, values, shape_text(DType::F32, s));
      ++values;
    }
    lines += fmt::format("  %{} = full(0.25) : {}\n", values++, shape_text(DType::F32, shape));
    shapes.push_back(shape);
    for (int k = pick(6) + 1; k > 0; --k) {
      const int a = pick(values);
      if (pick(2)) {
        lines += fmt::format("  %{} = {}(%{}) : {}\n", values, unary[pick(5)], a,
                             shape_text(DType::F32, shapes[a]));
        shapes.push_back(shapes[a]);
      } else {
        const int b = static_cast<int>(in.size());  // the fill, which has the full shape
        lines += fmt::format("  %{} = {}(%{}, %{}) : {}\n", values, binary[pick(4)], a, b,
                             shape_text(DType::F32, shape));
        shapes.push_back(shape);
      }
      ++values;
    }
    lines += fmt::format("  %{} = add(%{}, %{}) : {}\n", values, values - 1, in.size(),
                         shape_text(DType::F32, shape));
    const int last = values++;
    std::vector<int> order;
    for (size_t d = 0; d < shape.size(); ++d)
      order.insert(order.begin() + pick(static_cast<int>(d) + 1), static_cast<int>(d));
    std::vector<Buffer> out;
    out.emplace_back(DType::F32, shape, test::strides_of_order(shape, order));
    std::string outputs = fmt::format("%{}", last);
    if (pick(2)) {
      std::string dims;
      Dims kept;
      for (size_t d = 0; d < shape.size(); ++d) {
        if (pick(2))
          dims += fmt::format("{}{}", dims.empty() ? "" : ", ", d);
        else
          kept.push_back(shape[d]);
      }
      if (dims.empty()) kept.clear();
      lines += fmt::format("  %{} = sum(%{}, [{}], false) : {}\n", values, last, dims,
                           shape_text(DType::F32, kept));
      outputs += fmt::format(", %{}", values);
      out.emplace_back(DType::F32, kept);
    }
    lines += "  output " + outputs + "\n";
    std::vector<Buffer*> ins, outs;
    for (Buffer& b : in) ins.push_back(&b);
    for (Buffer& b : out) outs.push_back(&b);
    check_body(lines, ins, outs, 4e-6, 2e-4);
  }
}

TEST_CASE("codegen: equal structure of another size compiles nothing new") {
  if (!codegen_has_llvm()) return;
  auto run = [](int64_t n) {
    Buffer a(DType::F32, {n, 3}), y(DType::F32, {n, 3});
    a.randn(1);
    run_with(best_backend(),
             graph_text(
                 fmt::format("  input %0 \"a\" : f32[{0},3]\n  %1 = mul(%0, 1.2345) : f32[{0},3]\n"
                             "  %2 = sin(%1) : f32[{0},3]\n  output %2\n",
                             n)),
             {&a}, {&y}, 1);
  };
  run(10);
  const CodegenStats before = codegen_stats();
  run(77);
  run(1000);
  CHECK(codegen_stats().compiled == before.compiled);
  CHECK(codegen_stats().reused == before.reused + 2);
}

TEST_CASE("codegen: threads may compile at the same time") {
  auto work = [](int from, bool* ok) {
    for (int k = from; k < from + 6; ++k) {
      // Half of the bodies are the other thread's as well.
      auto body = parse_graph(graph_text(fmt::format(
          "  input %0 \"x\" : f32[40]\n  %1 = add(%0, {}.125) : f32[40]\n  output %1\n", k)));
      Buffer x(DType::F32, {40}), y(DType::F32, {40});
      x.randn(static_cast<unsigned>(k));
      auto region = compile_region(*body, {x.ref}, {y.ref});
      std::byte* ptrs[] = {x.memory.data(), y.memory.data()};
      region->run_box(ptrs, 0, region->outer(), 0, region->inner());
      for (int i = 0; i < 40; ++i)
        *ok = *ok && y.data<float>()[i] == x.data<float>()[i] + (static_cast<float>(k) + 0.125f);
    }
  };
  bool ok[2] = {true, true};
  std::thread other(work, 1003, &ok[1]);
  work(1000, &ok[0]);
  other.join();
  CHECK(ok[0]);
  CHECK(ok[1]);
}

TEST_CASE("codegen: run_box covers exactly its box") {
  for (CodegenBackend backend : {CodegenBackend::kLlvm, CodegenBackend::kReference}) {
    if (backend == CodegenBackend::kLlvm && !codegen_has_llvm()) continue;
    set_codegen_backend(backend);
    Buffer x(DType::F32, {20, 50}), bias(DType::F32, {50}), y(DType::F32, {20, 50});
    x.randn(1), bias.randn(2);
    auto body =
        parse_graph(graph_text("  input %0 \"x\" : f32[20,50]\n  input %1 \"b\" : f32[50]\n"
                               "  %2 = add(%0, %1) : f32[20,50]\n  output %2\n"));
    RegionOptions options;
    options.keep_inner = true;
    auto region = compile_region(*body, {x.ref, bias.ref}, {y.ref}, options);
    CHECK(region->outer() == 20);
    CHECK(region->inner() == 50);
    std::fill(y.data<float>(), y.data<float>() + 1000, -7.0f);
    std::byte* ptrs[] = {x.memory.data(), bias.memory.data(), y.memory.data()};
    region->run_box(ptrs, 3, 9, 16, 40);
    for (int64_t r = 0; r < 20; ++r)
      for (int64_t c = 0; c < 50; ++c) {
        const bool inside = r >= 3 && r < 9 && c >= 16 && c < 40;
        CHECK(y.at<float>({r, c}) == (inside ? x.at<float>({r, c}) + bias.at<float>({c}) : -7.0f));
      }
  }
  set_codegen_backend(best_backend());
}

TEST_CASE("codegen: a wrong body is an internal error that says what is wrong") {
  Buffer x(DType::F32, {4}), y(DType::F32, {4});
  auto compile = [&](const std::string& lines) {
    auto body = parse_graph(graph_text(lines));
    compile_region(*body, {x.ref}, {y.ref});
  };
  CHECK_THROWS_WITH_AS(compile("  input %0 \"x\" : f32[5]\n  %1 = neg(%0) : f32[5]\n  output %1\n"),
                       doctest::Contains("the body expects f32[5]"), InternalError);
  CHECK_THROWS_WITH_AS(compile("  input %0 \"x\" : f32[4]\n  %1 = sum(%0, [0], true) : f32[1]\n"
                               "  %2 = add(%0, %1) : f32[4]\n  output %2\n"),
                       doctest::Contains("result of a reduction"), InternalError);
  CHECK_THROWS_WITH_AS(
      compile("  input %0 \"x\" : f32[4]\n  %1 = _softmax(%0, 0, false) : f32[4]\n  output %1\n"),
      doctest::Contains("not pointwise"), InternalError);
}
