// SPDX-License-Identifier: Apache-2.0
// What masks and counts select, and bags of table rows, against plain loops.
#include <doctest/doctest.h>

#include "ops/run_error.h"
#include "row_test_util.h"

namespace tessera::test {
namespace {

Arg op(int i) {
  return Arg::operand(i);
}

Buffer mask_of(Dims shape, Dims strides, int one_in) {
  Buffer m(DType::Bool, std::move(shape), std::move(strides));
  std::mt19937 gen(5);
  for (size_t i = 0; i + 64 < m.memory.size(); ++i) m.data<uint8_t>()[i] = gen() % one_in == 0;
  return m;
}

TEST_CASE("masked_scatter and its gradient follow the order of the mask") {
  const Dims shape = {150, 210};
  for (const Dims& strides : {Dims{210, 1}, Dims{1, 150}, Dims{0, 1}})
    for (int one_in : {1, 3, 1000000}) {
      Buffer mask = mask_of(shape, strides, one_in);
      Buffer x(DType::F32, shape, {1, 150}), src(DType::F32, {31500}), out(DType::F32, shape),
          back(DType::F32, {20000});
      x.randn(1);
      src.randn(2);
      run_both(make_gather, step(Op::MaskedScatter, {op(0), op(1), op(2)}), {&x, &mask, &src},
               {&out});
      run_both(make_gather, step(Op::MaskedCompact, {op(0), op(1), Arg::integer(20000)}),
               {&x, &mask}, {&back});
      int64_t k = 0, bad = 0;
      each_index(shape, [&](const Dims& i) {
        const bool on = mask.at<uint8_t>(i);
        bad += out.at<float>(i) != (on ? src.data<float>()[k] : x.at<float>(i));
        if (on && k < 20000) bad += back.data<float>()[k] != x.at<float>(i);
        k += on;
      });
      for (; k < 20000; ++k) bad += back.data<float>()[k] != 0;
      CHECK(bad == 0);
    }
  Buffer mask = mask_of({300}, {1}, 1), x(DType::F32, {300}), src(DType::F32, {299}),
         out(DType::F32, {300});
  run_both(make_gather, step(Op::MaskedScatter, {op(0), op(1), op(2)}), {&x, &mask, &src}, {&out});
  CHECK(harness_errors().take());
}

TEST_CASE("nonzero_static lists coordinates, then the fill value") {
  const Dims shape = {20, 30, 40};
  Buffer mask = mask_of(shape, dense_strides(shape), 7);
  for (int64_t size : {10, 9000}) {
    Buffer out(DType::I64, {size, 3});
    run_both(make_gather, step(Op::NonzeroStatic, {op(0), Arg::integer(size), Arg::integer(-7)}),
             {&mask}, {&out});
    std::vector<int64_t> want;
    each_index(shape, [&](const Dims& i) {
      if (mask.at<uint8_t>(i)) want.insert(want.end(), i.begin(), i.end());
    });
    want.resize(size_t(size) * 3, -7);
    CHECK(std::equal(want.begin(), want.end(), out.data<int64_t>()));
  }
}

TEST_CASE("repeat_interleave repeats each index and checks the sum") {
  Buffer repeats(DType::I64, {20000});
  std::vector<int64_t> want;
  for (int64_t i = 0; i < 20000; ++i) {
    repeats.data<int64_t>()[i] = i % 4;
    want.insert(want.end(), size_t(i % 4), i);
  }
  const auto total = int64_t(want.size());
  Buffer out(DType::I64, {total}), wrong(DType::I64, {total + 1});
  run_both(make_gather, step(Op::RepeatInterleave, {op(0), Arg::integer(total)}), {&repeats},
           {&out});
  CHECK(std::equal(want.begin(), want.end(), out.data<int64_t>()));
  CHECK_FALSE(harness_errors().take());
  run_both(make_gather, step(Op::RepeatInterleave, {op(0), Arg::integer(total + 1)}), {&repeats},
           {&wrong});
  CHECK(harness_errors().take());
}

struct Bag {
  Buffer table{DType::F32, {50, 24}}, indices{DType::I64, {600}}, offsets{DType::I64, {90}},
      weights{DType::F32, {600}}, grad{DType::F32, {90, 24}};
  Bag() {
    table.randn(1);
    weights.randn(2);
    grad.randn(3);
    std::mt19937 gen(4);
    for (int i = 0; i < 600; ++i) indices.data<int64_t>()[i] = int64_t(gen() % 50);
    for (int i = 0; i < 90; ++i) offsets.data<int64_t>()[i] = i < 3 ? 0 : i * 6;  // some are empty
  }
  int64_t begin(int64_t b) { return offsets.data<int64_t>()[b]; }
  int64_t end(int64_t b) { return b + 1 < 90 ? begin(b + 1) : 600; }
  int64_t row(int64_t k) { return indices.data<int64_t>()[k]; }
};

TEST_CASE("bags of rows are summed, averaged or maximised, and have gradients") {
  Bag t;
  constexpr int64_t kPadding = 7;
  for (int64_t mode : {0, 1, 2})
    for (bool weighted : {false, true}) {
      if (weighted && mode != 0) continue;
      CAPTURE(mode);
      CAPTURE(weighted);
      Buffer out(DType::F32, {90, 24}), bag_of(DType::I64, {600}), sizes(DType::I64, {90}),
          rows(DType::I64, {mode == 2 ? 90 : 0, 24}), back(DType::F32, {50, 24});
      const Arg weights = weighted ? op(3) : Arg::none();
      run_both(make_gather,
               step(Op::EmbeddingBag, {op(0), op(1), op(2), Arg::integer(mode), weights,
                                       Arg::integer(kPadding), Arg::boolean(false)}),
               {&t.table, &t.indices, &t.offsets, &t.weights}, {&out, &bag_of, &sizes, &rows});
      run_both(make_gather,
               step(Op::EmbeddingBagGrad,
                    {op(0), op(1), op(2), Arg::integer(50), Arg::integer(mode), weights,
                     Arg::boolean(false), Arg::integer(kPadding), mode == 2 ? op(4) : Arg::none()}),
               {&t.grad, &t.indices, &t.offsets, &t.weights, &rows}, {&back});
      std::vector<double> want(90 * 24, 0), want_back(50 * 24, 0);
      for (int64_t b = 0; b < 90; ++b) {
        int64_t count = 0;
        for (int64_t k = t.begin(b); k < t.end(b); ++k) count += t.row(k) != kPadding;
        CHECK(sizes.data<int64_t>()[b] == count);
        for (int64_t j = 0; j < 24; ++j) {
          double& o = want[size_t(b * 24 + j)];
          int64_t best = -1;
          const double g = t.grad.at<float>({b, j});
          for (int64_t k = t.begin(b); k < t.end(b); ++k) {
            const int64_t r = t.row(k);
            if (r == kPadding) continue;
            const double x = t.table.at<float>({r, j}), w = weighted ? t.weights.at<float>({k}) : 1;
            if (mode == 2) {
              if (best < 0 || x > t.table.at<float>({best, j})) best = r;
            } else {
              const double scale = mode == 1 ? w / double(count) : w;
              o += x * scale;
              want_back[size_t(r * 24 + j)] += g * scale;
            }
          }
          if (best >= 0) {
            o = t.table.at<float>({best, j});
            want_back[size_t(best * 24 + j)] += g;
          }
        }
      }
      CHECK(max_error(out, [&](const Dims& i) { return want[size_t(i[0] * 24 + i[1])]; }) < 1e-5);
      CHECK(max_error(back, [&](const Dims& i) { return want_back[size_t(i[0] * 24 + i[1])]; }) <
            1e-5);
    }
  Buffer of_weights(DType::F32, {600});
  run_both(make_gather,
           step(Op::EmbeddingBagWeightGrad, {op(0), op(1), op(2), op(3), Arg::integer(kPadding)}),
           {&t.grad, &t.table, &t.indices, &t.offsets}, {&of_weights});
  for (int64_t b = 0; b < 90; ++b)
    for (int64_t k = t.begin(b); k < t.end(b); ++k) {
      double want = 0;
      for (int64_t j = 0; j < 24 && t.row(k) != kPadding; ++j)
        want += double(t.grad.at<float>({b, j})) * t.table.at<float>({t.row(k), j});
      CHECK(std::abs(of_weights.at<float>({k}) - want) < 1e-4);
    }
}

TEST_CASE("bags with wrong indices or offsets are reported") {
  for (bool offset : {false, true}) {
    Bag t;
    if (offset)
      t.offsets.data<int64_t>()[40] = 700;
    else
      t.indices.data<int64_t>()[300] = 50;
    Buffer out(DType::F32, {90, 24}), bag_of(DType::I64, {600}), sizes(DType::I64, {90}),
        rows(DType::I64, {0, 24});
    run_step(make_gather,
             step(Op::EmbeddingBag, {op(0), op(1), op(2), Arg::integer(0), Arg::none(),
                                     Arg::integer(-1), Arg::boolean(false)}),
             {&t.table, &t.indices, &t.offsets}, {&out, &bag_of, &sizes, &rows}, 2);
    const auto error = harness_errors().take();
    REQUIRE(error);
    CHECK(error->message.find("[embedding_bag]") == 0);
  }
}

}  // namespace
}  // namespace tessera::test
