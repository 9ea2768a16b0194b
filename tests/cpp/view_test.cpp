// SPDX-License-Identifier: Apache-2.0
// Views: result shapes, and that the alias addresses the same elements as a naive copy of the
// operand.
#include "ops/view.h"

#include <doctest/doctest.h>

#include <limits>

#include "kernel_harness.h"
#include "ops/registry.h"

namespace tessera {
namespace {

constexpr int64_t kEnd = std::numeric_limits<int64_t>::max();

Dims infer(Op op, const Dims& in, std::vector<Arg> literals) {
  Graph g;
  Node n;
  n.op = op;
  n.operands = {g.add_source(SourceKind::kInput, "x", {DType::F32, in, {}})};
  n.args.list = {Arg::operand(0)};
  for (Arg& a : literals) n.args.list.push_back(std::move(a));
  return infer_view(g, n)[0].shape;
}

// Addresses of all elements in row-major order of the logical dims.
std::vector<int64_t> addresses(const TensorRef& t) {
  std::vector<int64_t> out;
  Dims index(t.shape.size(), 0);
  for (int64_t k = 0; k < t.count(); ++k) {
    int64_t at = t.offset / size_of(t.dtype);
    for (size_t i = 0; i < index.size(); ++i) at += index[i] * t.strides[i];
    out.push_back(at);
    for (size_t i = index.size(); i-- > 0;) {
      if (++index[i] < t.shape[i]) break;
      index[i] = 0;
    }
  }
  return out;
}

std::optional<TensorRef> alias(Op op, const TensorRef& in, std::vector<Arg> literals) {
  Args args{{Arg::operand(0)}};
  for (const Arg& a : literals) args.list.push_back(a);
  return apply_view(op, args, in, infer(op, in.shape, literals));
}

TensorRef dense(const Dims& shape) {
  return {DType::F32, shape, dense_strides(shape), 0, 64};
}

TEST_CASE("view infers one size and refuses shapes that do not fit") {
  CHECK(infer(Op::View, {4, 6}, {Arg::ints({2, -1})}) == Dims{2, 12});
  CHECK(infer(Op::View, {4, 6}, {Arg::ints({24})}) == Dims{24});
  CHECK(infer(Op::View, {1, 1}, {Arg::ints({})}) == Dims{});
  CHECK(infer(Op::View, {0, 3}, {Arg::ints({3, -1})}) == Dims{3, 0});
  CHECK_THROWS_AS(infer(Op::View, {4, 6}, {Arg::ints({5, -1})}), UserError);
  CHECK_THROWS_AS(infer(Op::View, {4, 6}, {Arg::ints({-1, -1})}), UserError);
  CHECK_THROWS_AS(infer(Op::View, {4, 6}, {Arg::ints({23})}), UserError);
}

TEST_CASE("the other views follow ATen's shape rules") {
  CHECK(infer(Op::Permute, {2, 3, 4}, {Arg::ints({-1, 0, 1})}) == Dims{4, 2, 3});
  CHECK_THROWS_AS(infer(Op::Permute, {2, 3}, {Arg::ints({0, 0})}), UserError);
  CHECK(infer(Op::Transpose, {2, 3, 4}, {Arg::integer(-1), Arg::integer(0)}) == Dims{4, 3, 2});
  CHECK(infer(Op::Select, {2, 3, 4}, {Arg::integer(1), Arg::integer(-3)}) == Dims{2, 4});
  CHECK_THROWS_AS(infer(Op::Select, {2, 3}, {Arg::integer(1), Arg::integer(3)}), UserError);
  CHECK(infer(Op::Squeeze, {1, 3, 1}, {}) == Dims{3});
  CHECK(infer(Op::Squeeze, {1, 3, 1}, {Arg::integer(-1)}) == Dims{1, 3});
  CHECK(infer(Op::Squeeze, {1, 3, 1}, {Arg::ints({0, 1})}) == Dims{3, 1});
  CHECK(infer(Op::Unsqueeze, {2, 3}, {Arg::integer(-1)}) == Dims{2, 3, 1});
  CHECK(infer(Op::Unsqueeze, {}, {Arg::integer(0)}) == Dims{1});
  CHECK(infer(Op::Expand, {3, 1}, {Arg::ints({2, -1, 4})}) == Dims{2, 3, 4});
  CHECK_THROWS_AS(infer(Op::Expand, {3, 2}, {Arg::ints({3, 4})}), UserError);
}

TEST_CASE("slice ends wrap and clamp") {
  auto slice = [](Arg b, Arg e, int64_t step) {
    return infer(Op::Slice, {10, 2}, {Arg::integer(0), b, e, Arg::integer(step)})[0];
  };
  CHECK(slice(Arg::none(), Arg::none(), 1) == 10);
  CHECK(slice(Arg::integer(2), Arg::integer(kEnd), 3) == 3);
  CHECK(slice(Arg::integer(-3), Arg::integer(kEnd), 1) == 3);
  CHECK(slice(Arg::integer(-30), Arg::integer(-8), 1) == 2);
  CHECK(slice(Arg::integer(7), Arg::integer(3), 1) == 0);
  CHECK(slice(Arg::integer(12), Arg::integer(14), 1) == 0);
  CHECK(slice(Arg::integer(0), Arg::integer(10), kEnd) == 1);
  CHECK_THROWS_AS(slice(Arg::none(), Arg::none(), 0), UserError);
  CHECK(infer(Op::Slice, {10}, {}) == Dims{10});
}

TEST_CASE("aliases address the elements of the operand") {
  const TensorRef x = dense({4, 6, 5});
  const auto all = addresses(x);
  auto at = [&](int64_t i, int64_t j, int64_t k) { return all[(i * 6 + j) * 5 + k]; };

  auto s =
      alias(Op::Slice, x, {Arg::integer(1), Arg::integer(1), Arg::integer(-1), Arg::integer(2)});
  std::vector<int64_t> want;
  for (int i = 0; i < 4; ++i)
    for (int j = 1; j < 5; j += 2)
      for (int k = 0; k < 5; ++k) want.push_back(at(i, j, k));
  CHECK(addresses(*s) == want);

  // A select of that slice, then a transpose: offsets add up.
  auto sel = alias(Op::Select, *s, {Arg::integer(1), Arg::integer(-1)});
  auto tr = alias(Op::Transpose, *sel, {Arg::integer(0), Arg::integer(1)});
  want.clear();
  for (int k = 0; k < 5; ++k)
    for (int i = 0; i < 4; ++i) want.push_back(at(i, 3, k));
  CHECK(addresses(*tr) == want);

  auto p = alias(Op::Permute, x, {Arg::ints({2, 0, 1})});
  want.clear();
  for (int k = 0; k < 5; ++k)
    for (int i = 0; i < 4; ++i)
      for (int j = 0; j < 6; ++j) want.push_back(at(i, j, k));
  CHECK(addresses(*p) == want);

  auto u = alias(Op::Unsqueeze, *p, {Arg::integer(1)});
  CHECK(addresses(*u) == want);
  auto q = alias(Op::Squeeze, *u, {});
  CHECK(q->shape == Dims{5, 4, 6});
  CHECK(addresses(*q) == want);

  auto e = alias(Op::Expand, dense({3, 1}), {Arg::ints({2, 3, 2})});
  CHECK(addresses(*e) == std::vector<int64_t>{16, 16, 17, 17, 18, 18, 16, 16, 17, 17, 18, 18});
}

TEST_CASE("view aliases exactly the layouts whose runs it does not cross") {
  const TensorRef x = dense({4, 6, 5});
  auto v = alias(Op::View, x, {Arg::ints({2, 1, 3, 20, 1})});
  REQUIRE(v);
  CHECK(addresses(*v) == addresses(x));

  // Dims 0 and 1 of the transposed tensor are not contiguous with each other, but each can be
  // split.
  TensorRef t = x;
  t.shape = {6, 4, 5};
  t.strides = {5, 30, 1};
  auto split = alias(Op::View, t, {Arg::ints({2, 3, 2, 2, 5})});
  REQUIRE(split);
  CHECK(addresses(*split) == addresses(t));
  CHECK_FALSE(alias(Op::View, t, {Arg::ints({24, 5})}));
  CHECK_FALSE(alias(Op::View, t, {Arg::ints({3, 8, 5})}));
  CHECK_FALSE(alias(Op::View, t, {Arg::ints({120})}));

  // A broadcast dim can be split, and dims of size 1 never stand in the way.
  TensorRef b{DType::F32, {4, 1, 3}, {0, 77, 1}, 0, 0};
  auto bs = alias(Op::View, b, {Arg::ints({2, 2, 3})});
  REQUIRE(bs);
  CHECK(addresses(*bs) == addresses(b));
  CHECK_FALSE(alias(Op::View, b, {Arg::ints({12})}));
  auto one = alias(Op::View, TensorRef{DType::F32, {1, 1}, {5, 9}, 0, 0}, {Arg::ints({})});
  REQUIRE(one);
  CHECK(one->shape.empty());
  CHECK(alias(Op::View, TensorRef{DType::F32, {0, 4}, {4, 1}, 0, 0}, {Arg::ints({2, 0})}));
}

TEST_CASE("diagonals, windows and free strides address the elements of the operand") {
  const TensorRef x = dense({4, 6, 5});
  const auto all = addresses(x);
  auto at = [&](int64_t i, int64_t j, int64_t k) { return all[(i * 6 + j) * 5 + k]; };
  for (int64_t offset : {0, 2, -3, 9}) {
    const auto d =
        alias(Op::Diagonal, x, {Arg::integer(offset), Arg::integer(-1), Arg::integer(0)});
    std::vector<int64_t> want;  // rows are dim 2, columns dim 0
    for (int j = 0; j < 6; ++j)
      for (int r = 0; r < 5; ++r)
        if (r + offset >= 0 && r + offset < 4) want.push_back(at(r + offset, j, r));
    CHECK(addresses(*d) == want);
  }
  const auto u = alias(Op::Unfold, x, {Arg::integer(1), Arg::integer(3), Arg::integer(2)});
  CHECK(u->shape == Dims{4, 2, 5, 3});
  std::vector<int64_t> want;
  for (int i = 0; i < 4; ++i)
    for (int w = 0; w < 2; ++w)
      for (int k = 0; k < 5; ++k)
        for (int q = 0; q < 3; ++q) want.push_back(at(i, w * 2 + q, k));
  CHECK(addresses(*u) == want);
  CHECK_THROWS_AS(infer(Op::Unfold, {4}, {Arg::integer(0), Arg::integer(5), Arg::integer(1)}),
                  UserError);

  const std::vector<Arg> free = {Arg::ints({3, 2}), Arg::ints({1, 40}), Arg::integer(7)};
  const auto s = alias(Op::AsStrided, x, free);
  CHECK(addresses(*s) == std::vector<int64_t>{23, 63, 24, 64, 25, 65});
  TensorRef t = x;
  t.strides = {1, 20, 4};
  CHECK_FALSE(alias(Op::AsStrided, t, free));  // needs a copy first
  CHECK_THROWS_AS(
      infer(Op::AsStrided, {4, 6}, {Arg::ints({5, 5}), Arg::ints({5, 1}), Arg::integer(0)}),
      UserError);
}

TEST_CASE("a dtype view keeps the layout") {
  Args args{{Arg::operand(0), Arg::dtype(DType::I32)}};
  auto v = apply_view(Op::View, args, dense({2, 3}), {2, 3});
  REQUIRE(v);
  CHECK(v->dtype == DType::I32);
  CHECK(v->strides == Dims{3, 1});
}

}  // namespace
}  // namespace tessera
