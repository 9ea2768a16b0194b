// SPDX-License-Identifier: Apache-2.0
// cat, slice_scatter and constant_pad_nd against index arithmetic, for several types and memory
// orders.
#include <doctest/doctest.h>

#include "row_test_util.h"

namespace tessera::test {
namespace {

Arg op(int i) {
  return Arg::operand(i);
}

template <typename T>
void number(Buffer& b, int start) {
  for (size_t i = 0; i < (b.memory.size() - 64) / sizeof(T); ++i)
    b.data<T>()[i] = T(start + int(i));
}

template <typename T>
void check_cat(DType dtype, const std::vector<int>& order, const std::vector<int>& out_order,
               int64_t dim) {
  CAPTURE(dim);
  const size_t d = dim < 0 ? dim + 3 : dim;
  std::vector<Buffer> xs;
  Dims shape = {30, 20, 33};
  shape[d] = 0;
  for (int64_t size : {7, 1, 40}) {
    Dims s = {30, 20, 33};
    s[d] = size;
    xs.emplace_back(dtype, s, strides_of_order(s, order));
    number<T>(xs.back(), int(xs.size()) * 37);
    shape[d] += size;
  }
  Buffer empty(dtype, {0}), out(dtype, shape, strides_of_order(shape, out_order));
  run_both(make_join, step(Op::Cat, {Arg::of({op(0), op(1), op(2), op(3)}), Arg::integer(dim)}),
           {&xs[0], &empty, &xs[1], &xs[2]}, {&out});
  int64_t bad = 0;
  each_index(shape, [&](Dims i) {
    const T got = out.at<T>(i);
    size_t k = 0;
    while (i[d] >= xs[k].ref.shape[d]) i[d] -= xs[k++].ref.shape[d];
    bad += got != xs[k].at<T>(i);
  });
  CHECK(bad == 0);
}

TEST_CASE("cat along every dim, in every order") {
  for (int64_t dim : {0, 1, 2, -1}) {
    check_cat<float>(DType::F32, {2, 1, 0}, {2, 1, 0}, dim);
    check_cat<float>(DType::F32, {1, 2, 0}, {2, 1, 0}, dim);
    check_cat<int64_t>(DType::I64, {0, 2, 1}, {0, 2, 1}, dim);
    check_cat<uint8_t>(DType::Bool, {2, 1, 0}, {0, 1, 2}, dim);
  }
}

TEST_CASE("cat checks its tensors") {
  auto call = [](Dims a, Dims b, int64_t dim) {
    return infer_call(infer_join, Op::Cat, {{DType::F32, a, {}}, {DType::F32, b, {}}},
                      {Arg::of({op(0), op(1)}), Arg::integer(dim)})[0]
        .shape;
  };
  CHECK(call({2, 3}, {2, 4}, -1) == Dims{2, 7});
  CHECK(call({0}, {2, 4}, 0) == Dims{2, 4});
  CHECK_THROWS_AS(call({2, 3}, {3, 4}, 1), UserError);
  CHECK_THROWS_AS(call({2, 3}, {2, 3, 1}, 1), UserError);
}

TEST_CASE("slice_scatter replaces exactly the slice") {
  struct Case {
    int64_t dim, start, end, step;
  };
  for (const Case& k : {Case{0, 2, 9, 1},
                        {1, 0, 1000, 1},
                        {1, -30, -3, 1},
                        {2, 1, 60, 7},
                        {0, 3, 20, 4},
                        {1, 5, 5, 1},
                        {-1, 60, 65, 1},
                        {2, 63, 66, 4}}) {
    CAPTURE(k.dim);
    CAPTURE(k.step);
    const Dims shape = {20, 40, 65};
    const size_t d = k.dim < 0 ? k.dim + 3 : k.dim;
    const int64_t b = std::clamp<int64_t>(k.start < 0 ? k.start + shape[d] : k.start, 0, shape[d]);
    const int64_t e = std::clamp<int64_t>(k.end < 0 ? k.end + shape[d] : k.end, b, shape[d]);
    Dims part = shape;
    part[d] = (e - b + k.step - 1) / k.step;
    Buffer dst(DType::F32, shape), src(DType::F32, part, strides_of_order(part, {0, 1, 2})),
        out(DType::F32, shape);
    number<float>(dst, 0);
    number<float>(src, 500000);
    const std::vector<Arg> args = {op(0),
                                   op(1),
                                   Arg::integer(k.dim),
                                   Arg::integer(k.start),
                                   Arg::integer(k.end),
                                   Arg::integer(k.step)};
    CHECK(infer_call(infer_join, Op::SliceScatter,
                     {{DType::F32, shape, {}}, {DType::F32, part, {}}}, args)[0]
              .shape == shape);
    run_both(make_join, step(Op::SliceScatter, args), {&dst, &src}, {&out});
    int64_t bad = 0;
    each_index(shape, [&](Dims i) {
      const float got = out.at<float>(i);
      if (i[d] >= b && i[d] < e && (i[d] - b) % k.step == 0) {
        i[d] = (i[d] - b) / k.step;
        bad += got != src.at<float>(i);
      } else {
        bad += got != dst.at<float>(i);
      }
    });
    CHECK(bad == 0);
  }
}

template <typename T>
void check_pad(DType dtype, const Dims& shape, const std::vector<int64_t>& pad, double value,
               bool lanes) {
  CAPTURE(pad);
  const size_t rank = shape.size();
  Dims low(rank, 0), out_shape = shape;
  for (size_t i = 0; i < pad.size() / 2; ++i) {
    low[rank - 1 - i] = pad[2 * i];
    out_shape[rank - 1 - i] += pad[2 * i] + pad[2 * i + 1];
  }
  std::vector<Arg> args = {op(0), Arg::ints(pad), Arg::real(value)};
  CHECK(infer_call(infer_join, Op::ConstantPad, {{dtype, shape, {}}}, args)[0].shape == out_shape);
  std::vector<int> order;
  for (int i = int(rank); i-- > 0;) order.push_back(lanes ? int(rank) - 1 - i : i);
  Buffer x(dtype, shape, strides_of_order(shape, order)),
      out(dtype, out_shape, strides_of_order(out_shape, order));
  number<T>(x, 3);
  run_both(make_join, step(Op::ConstantPad, args), {&x}, {&out});
  int64_t bad = 0;
  each_index(out_shape, [&](Dims i) {
    const T got = out.at<T>(i);
    bool inside = true;
    for (size_t d = 0; d < rank; ++d) {
      i[d] -= low[d];
      inside = inside && i[d] >= 0 && i[d] < shape[d];
    }
    bad += got != (inside ? x.at<T>(i) : T(value));
  });
  CHECK(bad == 0);
}

TEST_CASE("constant_pad_nd pads, crops and does both") {
  for (bool lanes : {false, true}) {
    check_pad<float>(DType::F32, {4, 3, 50, 60}, {1, 2, 3, 4}, 0.5, lanes);
    check_pad<float>(DType::F32, {4, 3, 50, 60}, {-1, 2, 3, -4, 0, 1, 1, 0}, -INFINITY, lanes);
    check_pad<float>(DType::F32, {4, 3, 5, 6}, {-3, -3}, 1.0, lanes);
    check_pad<float>(DType::F32, {4, 7}, {-9, 5}, 2.0, lanes);
    check_pad<float>(DType::F32, {4, 7}, {5, -9}, 2.0, lanes);
    check_pad<int64_t>(DType::I64, {40, 30}, {2, 2, 2, 2}, 7, lanes);
    check_pad<uint8_t>(DType::Bool, {40, 30}, {0, 3}, 1, lanes);
  }
  CHECK_THROWS_AS(infer_call(infer_join, Op::ConstantPad, {{DType::F32, {4}, {}}},
                             {op(0), Arg::ints({-3, -3}), Arg::real(0)}),
                  UserError);
}

bool equal_elements(Buffer& a, Buffer& b) {
  return std::equal(a.data<float>(), a.data<float>() + a.ref.count(), b.data<float>());
}

TEST_CASE("flip reverses dims of any type") {
  for (const std::vector<int64_t>& dims :
       {std::vector<int64_t>{0}, std::vector<int64_t>{-1}, std::vector<int64_t>{0, 2}}) {
    const Dims shape = {9, 40, 77};
    Buffer x(DType::F32, shape, strides_of_order(shape, {1, 2, 0})), out(DType::F32, shape);
    Buffer b(DType::I8, shape), out_b(DType::I8, shape);
    number<float>(x, 0);
    number<int8_t>(b, 0);
    run_both(make_join, step(Op::Flip, {op(0), Arg::ints(dims)}), {&x}, {&out});
    run_both(make_join, step(Op::Flip, {op(0), Arg::ints(dims)}), {&b}, {&out_b});
    int64_t bad = 0;
    each_index(shape, [&](const Dims& i) {
      Dims j = i;
      for (int64_t d : dims)
        j[d < 0 ? d + 3 : d] = shape[d < 0 ? d + 3 : d] - 1 - i[d < 0 ? d + 3 : d];
      bad += out.at<float>(i) != x.at<float>(j);
      bad += out_b.at<int8_t>(i) != b.at<int8_t>(j);
    });
    CHECK(bad == 0);
  }
}

TEST_CASE("diagonal_scatter and as_strided_scatter write through the view") {
  const Dims shape = {90, 50, 30};
  for (int64_t offset : {0, 7, -60}) {
    const int64_t row = std::max<int64_t>(-offset, 0), column = std::max<int64_t>(offset, 0);
    const int64_t n = std::min<int64_t>(90 - row, 30 - column);
    Buffer x(DType::F32, shape), src(DType::F32, {50, n}), out(DType::F32, shape);
    number<float>(x, 0);
    number<float>(src, 500000);
    run_both(make_join,
             step(Op::DiagonalScatter,
                  {op(0), op(1), Arg::integer(offset), Arg::integer(0), Arg::integer(-1)}),
             {&x, &src}, {&out});
    Buffer want = x;
    each_index({50, n}, [&](const Dims& i) {
      want.at<float>({row + i[1], i[0], column + i[1]}) = src.at<float>(i);
    });
    CHECK(equal_elements(want, out));
  }
  Buffer x(DType::F32, shape), src(DType::F32, {20, 6}, {1, 20}), out(DType::F32, shape);
  number<float>(x, 0);
  number<float>(src, 500000);
  run_both(make_join,
           step(Op::AsStridedScatter,
                {op(0), op(1), Arg::ints({20, 6}), Arg::ints({300, 7}), Arg::integer(11)}),
           {&x, &src}, {&out});
  Buffer want = x;
  each_index({20, 6}, [&](const Dims& i) {
    want.data<float>()[11 + i[0] * 300 + i[1] * 7] = src.at<float>(i);
  });
  CHECK(equal_elements(want, out));
}

TEST_CASE("unfold_backward adds the windows up") {
  struct Case {
    int64_t dim, size, step;
  };
  for (const Case& k : {Case{0, 3, 2}, {1, 5, 1}, {2, 4, 4}, {-1, 9, 3}, {2, 2, 5}}) {
    CAPTURE(k.dim);
    const Dims shape = {20, 30, 40};
    const size_t d = size_t(k.dim < 0 ? k.dim + 3 : k.dim);
    Dims s = shape;
    s[d] = (shape[d] - k.size) / k.step + 1;
    s.push_back(k.size);
    Buffer g(DType::F32, s), out(DType::F32, shape);
    g.randn(1);
    run_both(make_join,
             step(Op::UnfoldGrad, {op(0), Arg::ints(shape), Arg::integer(k.dim),
                                   Arg::integer(k.size), Arg::integer(k.step)}),
             {&g}, {&out});
    std::vector<double> want(size_t(product(shape)), 0);
    const Dims strides = dense_strides(shape);
    each_index(s, [&](const Dims& i) {
      Dims o(i.begin(), i.end() - 1);
      o[d] = i[d] * k.step + i[3];
      want[size_t(o[0] * strides[0] + o[1] * strides[1] + o[2])] += g.at<float>(i);
    });
    CHECK(max_error(out, [&](const Dims& i) {
            return want[size_t(i[0] * strides[0] + i[1] * strides[1] + i[2])];
          }) < 1e-5);
  }
}

}  // namespace
}  // namespace tessera::test
