// SPDX-License-Identifier: Apache-2.0
// Gather and scatter ops against index arithmetic; wrong indices must be reported and must not
// touch memory.
#include <doctest/doctest.h>

#include "ops/run_error.h"
#include "row_test_util.h"

namespace tessera::test {
namespace {

Arg op(int i) {
  return Arg::operand(i);
}

Buffer indices(Dims shape, int64_t low, int64_t high, unsigned seed, DType dtype = DType::I64) {
  Buffer b(dtype, std::move(shape));
  std::mt19937 gen(seed);
  for (int64_t i = 0; i < b.ref.count(); ++i) {
    const int64_t v = low + int64_t(gen() % uint64_t(high - low));
    if (dtype == DType::I64)
      b.data<int64_t>()[i] = v;
    else
      b.data<int32_t>()[i] = int32_t(v);
  }
  return b;
}

Buffer randn(Dims shape, unsigned seed) {
  Buffer b(DType::F32, std::move(shape));
  b.randn(seed);
  return b;
}

void check_equal(Buffer& got, const std::function<float(const Dims&)>& want) {
  int64_t bad = 0;
  each_index(got.ref.shape, [&](const Dims& i) { bad += !(got.at<float>(i) == want(i)); });
  CHECK(bad == 0);
}

int64_t wrapped(int64_t i, int64_t n) {
  return i < 0 ? i + n : i;
}

TEST_CASE("embedding copies rows of the table") {
  Buffer w = randn({211, 96}, 1), out(DType::F32, {40, 8, 96});
  for (DType t : {DType::I64, DType::I32}) {
    Buffer idx = indices({40, 8}, 0, 211, 2, t);
    run_both(make_gather, step(Op::Embedding, {op(0), op(1)}), {&w, &idx}, {&out});
    check_equal(out, [&](const Dims& i) {
      const int64_t r =
          t == DType::I64 ? idx.at<int64_t>({i[0], i[1]}) : idx.at<int32_t>({i[0], i[1]});
      return w.at<float>({r, i[2]});
    });
  }
}

TEST_CASE("embedding gradient adds rows in order and is zero elsewhere") {
  for (int64_t rows : {50, 1, 30000}) {
    for (bool by_frequency : {false, true}) {
      CAPTURE(rows);
      Buffer idx = indices({30, 7}, 0, rows, 3), g = randn({30, 7, 40}, 4),
             out(DType::F32, {rows, 40});
      const int64_t padding = rows > 1 ? 5 : -1;
      run_both(make_gather,
               step(Op::EmbeddingGrad, {op(0), op(1), Arg::integer(rows), Arg::integer(padding),
                                        Arg::boolean(by_frequency)}),
               {&g, &idx}, {&out});
      std::vector<double> want(rows * 40, 0), count(rows, 0);
      for (int64_t b = 0; b < 210; ++b) count[idx.data<int64_t>()[b]] += 1;
      for (int64_t b = 0; b < 210; ++b) {
        const int64_t r = idx.data<int64_t>()[b];
        for (int64_t k = 0; k < 40 && r != padding; ++k)
          want[r * 40 + k] += g.data<float>()[b * 40 + k] / (by_frequency ? count[r] : 1.0);
      }
      CHECK(max_error(out, [&](const Dims& i) { return want[i[0] * 40 + i[1]]; }) < 2e-5);
    }
  }
}

TEST_CASE("index_select along every dim") {
  for (int64_t dim : {0, 1, 2, -1}) {
    const size_t d = dim < 0 ? dim + 3 : dim;
    for (bool lanes : {false, true}) {
      const Dims shape = {30, 20, 50};
      Buffer x(
          DType::F32, shape,
          strides_of_order(shape, lanes ? std::vector<int>{0, 2, 1} : std::vector<int>{2, 1, 0}));
      x.randn(1);
      Buffer idx = indices({37}, 0, shape[d], 2);
      Dims out_shape = shape;
      out_shape[d] = 37;
      Buffer out(DType::F32, out_shape);
      run_both(make_gather, step(Op::IndexSelect, {op(0), Arg::integer(dim), op(1)}), {&x, &idx},
               {&out});
      check_equal(out, [&](Dims i) {
        i[d] = idx.data<int64_t>()[i[d]];
        return x.at<float>(i);
      });
    }
  }
  Buffer x = randn({}, 1), idx = indices({}, 0, 1, 1), out(DType::F32, {});
  run_both(make_gather, step(Op::IndexSelect, {op(0), Arg::integer(0), op(1)}), {&x, &idx}, {&out});
  CHECK(out.data<float>()[0] == x.data<float>()[0]);
}

TEST_CASE("gather and scatter along every dim") {
  for (int64_t dim : {0, 1, 2, -1}) {
    CAPTURE(dim);
    const size_t d = dim < 0 ? dim + 3 : dim;
    const Dims shape = {20, 31, 24}, index_shape = {20, 17, 24};
    Dims s = index_shape;
    s[1] = d == 1 ? 45 : 17;
    Buffer x = randn(shape, 1), idx = indices(s, 0, shape[d], 2), src = randn(s, 3),
           out(DType::F32, s), sum(DType::F32, shape), put(DType::F32, shape);
    run_both(make_gather, step(Op::Gather, {op(0), Arg::integer(dim), op(1), Arg::boolean(false)}),
             {&x, &idx}, {&out});
    check_equal(out, [&](Dims i) {
      i[d] = idx.at<int64_t>(i);
      return x.at<float>(i);
    });
    run_both(make_gather, step(Op::ScatterAdd, {op(0), Arg::integer(dim), op(1), op(2)}),
             {&x, &idx, &src}, {&sum});
    run_both(make_gather, step(Op::ScatterValue, {op(0), Arg::integer(dim), op(1), Arg::real(2.5)}),
             {&x, &idx}, {&put});
    Buffer want = x, want_put = x;
    each_index(s, [&](const Dims& i) {
      Dims o = i;
      o[d] = idx.at<int64_t>(i);
      want.at<float>(o) += src.at<float>(i);
      want_put.at<float>(o) = 2.5f;
    });
    check_equal(sum, [&](const Dims& i) { return want.at<float>(i); });
    check_equal(put, [&](const Dims& i) { return want_put.at<float>(i); });
  }
}

double combined(const std::string& how, double a, double b) {
  if (how == "sum") return a + b;
  if (how == "prod") return a * b;
  if (how == "amax") return std::isnan(a) || std::isnan(b) ? NAN : std::max(a, b);
  if (how == "amin") return std::isnan(a) || std::isnan(b) ? NAN : std::min(a, b);
  return b;
}

template <typename T>
void check_scatter(DType dtype, const std::string& how, bool one_index_per_row) {
  CAPTURE(how);
  const Dims shape = {40, 70}, s = {55, 64};
  Buffer x(dtype, shape), src(dtype, {60, 64}), out(dtype, shape);
  // The same index along a row, as after an expand.
  Buffer idx = one_index_per_row ? Buffer(DType::I64, s, {1, 0}) : indices(s, 0, 40, 2);
  for (int64_t i = 0; i < (one_index_per_row ? 55 : 0); ++i) idx.data<int64_t>()[i] = i * 7 % 40;
  for (int64_t i = 0; i < x.ref.count(); ++i) x.data<T>()[i] = static_cast<T>(i % 11 - 5);
  for (int64_t i = 0; i < src.ref.count(); ++i) src.data<T>()[i] = static_cast<T>(i % 3 - 1);
  if constexpr (std::is_same_v<T, float>)
    if (how != "sum" && how != "prod") x.data<T>()[90] = src.data<T>()[77] = NAN;
  const bool sets = how.empty();
  std::vector<Arg> args = {op(0), Arg::integer(0), op(1), op(2)};
  if (!sets) args.push_back(Arg::string(how));
  run_both(make_gather, step(sets ? Op::ScatterSrc : Op::ScatterReduce, args), {&x, &idx, &src},
           {&out});
  Buffer want = x;
  each_index(s, [&](const Dims& i) {
    T& o = want.at<T>({idx.at<int64_t>(i), i[1]});
    o = static_cast<T>(combined(how, double(o), double(src.at<T>(i))));
  });
  int64_t bad = 0;
  each_index(shape, [&](const Dims& i) {
    const T g = out.at<T>(i), w = want.at<T>(i);
    bad += !(g == w || (g != g && w != w));
  });
  CHECK(bad == 0);
}

TEST_CASE("scatter sets and combines in the order of the index") {
  for (const char* how : {"", "sum", "prod", "amax", "amin"})
    for (bool row : {false, true}) {
      check_scatter<float>(DType::F32, how, row);
      check_scatter<double>(DType::F64, how, row);
      check_scatter<int64_t>(DType::I64, how, row);
      check_scatter<int32_t>(DType::I32, how, row);
      check_scatter<int16_t>(DType::I16, how, row);
      check_scatter<int8_t>(DType::I8, how, row);
    }
}

TEST_CASE("index_add, index_copy, index_fill and index_reduce along every dim") {
  for (int64_t d : {0, 1, 2}) {
    CAPTURE(d);
    const Dims shape = {30, 21, 18};
    Dims s = shape;
    s[d] = 50;
    Buffer x = randn(shape, 1), v = randn(s, 2), one = randn({}, 3), out(DType::F32, shape);
    Buffer idx = indices({50}, 0, shape[d], 4);
    auto check = [&](Op what, Buffer& values, const std::string& how) {
      std::vector<Arg> args = {op(0), Arg::integer(d - 3), op(1), op(2)};
      if (what == Op::IndexReduce) args.push_back(Arg::string(how));
      run_both(make_gather, step(what, args), {&x, &idx, &values}, {&out});
      Buffer want = x;
      each_index(s, [&](const Dims& i) {
        Dims o = i;
        o[d] = idx.data<int64_t>()[i[d]];
        const float b = values.ref.shape.empty() ? values.data<float>()[0] : values.at<float>(i);
        want.at<float>(o) = how == "sum"    ? want.at<float>(o) + b
                            : how == "prod" ? want.at<float>(o) * b
                                            : float(combined(how, want.at<float>(o), b));
      });
      check_equal(out, [&](const Dims& i) { return want.at<float>(i); });
    };
    check(Op::IndexAdd, v, "sum");
    check(Op::IndexCopy, v, "");
    check(Op::IndexFill, one, "");
    check(Op::IndexReduce, v, "prod");
    check(Op::IndexReduce, v, "amin");
  }
}

TEST_CASE("take and put count elements of the flat tensor") {
  Buffer x = randn({900}, 1), idx = indices({70, 30}, -900, 900, 2), v = randn({70, 30}, 3),
         got(DType::F32, {70, 30}), out(DType::F32, {900});
  run_both(make_gather, step(Op::Take, {op(0), op(1)}), {&x, &idx}, {&got});
  check_equal(got,
              [&](const Dims& i) { return x.data<float>()[wrapped(idx.at<int64_t>(i), 900)]; });
  for (bool adds : {false, true}) {
    run_both(make_gather, step(Op::Put, {op(0), op(1), op(2), Arg::boolean(adds)}), {&x, &idx, &v},
             {&out});
    Buffer want = x;
    each_index({70, 30}, [&](const Dims& i) {
      float& o = want.data<float>()[wrapped(idx.at<int64_t>(i), 900)];
      o = adds ? o + v.at<float>(i) : v.at<float>(i);
    });
    check_equal(out, [&](const Dims& i) { return want.at<float>(i); });
  }
}

TEST_CASE("a scatter whose result lies in its operand changes only what it names") {
  Buffer x = randn({3000, 16}, 1), v = randn({5, 16}, 2), idx = indices({5}, 0, 3000, 3);
  Buffer want = x;
  for (int64_t k = 0; k < 5; ++k)
    for (int64_t j = 0; j < 16; ++j)
      want.at<float>({idx.data<int64_t>()[k], j}) += v.at<float>({k, j});
  StepDesc d = step(Op::IndexAdd, {op(0), Arg::integer(0), op(1), op(2)});
  std::vector<std::byte*> bases = {x.memory.data(), idx.memory.data(), v.memory.data()};
  d.inputs = {x.ref, idx.ref, v.ref};
  for (int i = 0; i < 3; ++i) d.inputs[size_t(i)].region = i;
  d.outputs = {d.inputs[0]};
  const KernelPtr kernel = make_gather(d);
  std::vector<int64_t> scratch(size_t(kernel->scratch_bytes(1) / 8 + 1));
  RunCtx c{0, 1, bases.data(), reinterpret_cast<std::byte*>(scratch.data())};
  kernel->run(c);
  check_equal(x, [&](const Dims& i) { return want.at<float>(i); });
}

TEST_CASE("scatter_add of integers and scalars") {
  Buffer x(DType::I64, {5}), idx = indices({9}, 0, 5, 2), src = indices({9}, -50, 50, 3),
                             out(DType::I64, {5});
  for (int i = 0; i < 5; ++i) x.data<int64_t>()[i] = i;
  run_both(make_gather, step(Op::ScatterAdd, {op(0), Arg::integer(0), op(1), op(2)}),
           {&x, &idx, &src}, {&out});
  for (int i = 0; i < 5; ++i) {
    int64_t want = i;
    for (int k = 0; k < 9; ++k) want += idx.data<int64_t>()[k] == i ? src.data<int64_t>()[k] : 0;
    CHECK(out.data<int64_t>()[i] == want);
  }
  Buffer s = randn({}, 1), zero = indices({}, 0, 1, 1), got(DType::F32, {});
  run_both(make_gather, step(Op::Gather, {op(0), Arg::integer(0), op(1), Arg::boolean(false)}),
           {&s, &zero}, {&got});
  CHECK(got.data<float>()[0] == s.data<float>()[0]);
}

// Advanced indexing, the slow way: which element of x the result element `i` is.
struct IndexCase {
  Dims shape;
  std::vector<Dims> index;  // empty entry {-1}: none
};

Dims source_of(const Dims& i, const IndexCase& k, std::vector<Buffer>& idx, const Dims& common,
               bool adjacent, size_t first) {
  const size_t at = adjacent ? first : 0;
  Dims src(k.shape.size());
  size_t o = 0, t = 0;
  for (size_t d = 0; d < k.shape.size(); ++d) {
    const bool indexed = d < k.index.size() && k.index[d] != Dims{-1};
    if (!indexed) {
      if (o == at) o += common.size();
      src[d] = i[o++];
      continue;
    }
    Buffer& b = idx[t++];
    Dims j;
    const size_t lead = common.size() - b.ref.shape.size();
    for (size_t q = 0; q < b.ref.shape.size(); ++q)
      j.push_back(b.ref.shape[q] == 1 ? 0 : i[at + lead + q]);
    src[d] = wrapped(b.at<int64_t>(j), k.shape[d]);
  }
  return src;
}

TEST_CASE("index and index_put follow the rules of advanced indexing") {
  const Dims none = {-1};
  const std::vector<IndexCase> cases = {
      {{12, 10, 9}, {{40}}},
      {{12, 10, 9}, {none, {5, 8}}},
      {{12, 10, 9}, {{30}, {30}}},
      {{12, 10, 9}, {{4, 1}, none, {6}}},
      {{12, 10, 9}, {none, {4, 1}, {6}}},
      {{12, 10, 9}, {{7}, {7}, {7}}},
      {{200, 300}, {{}}},
      {{50, 3, 40, 20}, {none, none, {3, 1, 2}, {5, 1}}},
  };
  for (const IndexCase& k : cases) {
    CAPTURE(k.shape);
    std::vector<Buffer> idx;
    std::vector<Arg> list;
    std::vector<size_t> dims;
    Dims common;
    for (size_t d = 0; d < k.index.size(); ++d) {
      if (k.index[d] == none) {
        list.push_back(Arg::none());
        continue;
      }
      idx.push_back(indices(k.index[d], -k.shape[d], k.shape[d], unsigned(d + 11)));
      list.push_back(op(int(idx.size())));
      dims.push_back(d);
      const Dims& s = k.index[d];
      if (s.size() > common.size()) common.insert(common.begin(), s.size() - common.size(), 1);
      for (size_t q = 0; q < s.size(); ++q)
        common[common.size() - s.size() + q] = std::max(common[common.size() - s.size() + q], s[q]);
    }
    bool adjacent = true;
    for (size_t q = 1; q < dims.size(); ++q) adjacent = adjacent && dims[q] == dims[q - 1] + 1;
    Buffer x = randn(k.shape, 5);
    std::vector<TensorType> types = {{DType::F32, k.shape, {}}};
    std::vector<Buffer*> in = {&x};
    for (Buffer& b : idx) {
      types.push_back({DType::I64, b.ref.shape, {}});
      in.push_back(&b);
    }
    const Dims shape = infer_call(infer_gather, Op::Index, types, {op(0), Arg::of(list)})[0].shape;
    Buffer out(DType::F32, shape);
    run_both(make_gather, step(Op::Index, {op(0), Arg::of(list)}), in, {&out});
    check_equal(out, [&](const Dims& i) {
      return x.at<float>(source_of(i, k, idx, common, adjacent, dims[0]));
    });

    Buffer v = randn(shape, 6), put(DType::F32, k.shape);
    in.push_back(&v);
    for (bool accumulate : {true, false}) {
      run_both(make_gather,
               step(Op::IndexPut,
                    {op(0), Arg::of(list), op(int(in.size()) - 1), Arg::boolean(accumulate)}),
               in, {&put});
      Buffer want = x;
      each_index(shape, [&](const Dims& i) {
        float& o = want.at<float>(source_of(i, k, idx, common, adjacent, dims[0]));
        o = accumulate ? o + v.at<float>(i) : v.at<float>(i);
      });
      check_equal(put, [&](const Dims& i) { return want.at<float>(i); });
    }
    // A scalar broadcasts.
    Buffer one = randn({}, 7);
    in.back() = &one;
    run_both(
        make_gather,
        step(Op::IndexPut, {op(0), Arg::of(list), op(int(in.size()) - 1), Arg::boolean(false)}), in,
        {&put});
    Buffer want = x;
    each_index(shape, [&](const Dims& i) {
      want.at<float>(source_of(i, k, idx, common, adjacent, dims[0])) = one.data<float>()[0];
    });
    check_equal(put, [&](const Dims& i) { return want.at<float>(i); });
  }
}

TEST_CASE("indices out of range are reported by every op") {
  Buffer x = randn({50, 60}, 1), row = randn({300, 60}, 2);
  for (int64_t bad : {int64_t{50}, int64_t{-51}, int64_t{1} << 40}) {
    Buffer idx = indices({300}, 0, 50, 3), wide = indices({300, 60}, 0, 50, 3);
    idx.data<int64_t>()[170] = bad;
    wide.data<int64_t>()[9000] = bad;
    Buffer out(DType::F32, {300, 60}), same(DType::F32, {50, 60});
    struct Call {
      StepDesc d;
      std::vector<Buffer*> in;
      Buffer* out;
    };
    const std::vector<Call> calls = {
        {step(Op::Embedding, {op(0), op(1)}), {&x, &idx}, &out},
        {step(Op::ScatterSrc, {op(0), Arg::integer(0), op(1), op(2)}), {&x, &wide, &row}, &same},
        {step(Op::ScatterReduce, {op(0), Arg::integer(0), op(1), op(2), Arg::string("amax")}),
         {&x, &wide, &row},
         &same},
        {step(Op::IndexAdd, {op(0), Arg::integer(0), op(1), op(2)}), {&x, &idx, &row}, &same},
        {step(Op::IndexCopy, {op(0), Arg::integer(0), op(1), op(2)}), {&x, &idx, &row}, &same},
        {step(Op::IndexFill, {op(0), Arg::integer(0), op(1), op(2)}), {&x, &idx, &row}, &same},
        {step(Op::IndexReduce, {op(0), Arg::integer(0), op(1), op(2), Arg::string("prod")}),
         {&x, &idx, &row},
         &same},
        {step(Op::EmbeddingGrad,
              {op(0), op(1), Arg::integer(50), Arg::integer(-1), Arg::boolean(false)}),
         {&row, &idx},
         &same},
        {step(Op::IndexSelect, {op(0), Arg::integer(0), op(1)}), {&x, &idx}, &out},
        {step(Op::Gather, {op(0), Arg::integer(0), op(1), Arg::boolean(false)}), {&x, &wide}, &out},
        {step(Op::ScatterAdd, {op(0), Arg::integer(0), op(1), op(2)}), {&x, &wide, &row}, &same},
        {step(Op::ScatterValue, {op(0), Arg::integer(0), op(1), Arg::real(1)}), {&x, &wide}, &same},
        {step(Op::Index, {op(0), Arg::of({op(1)})}), {&x, &idx}, &out},
        {step(Op::IndexPut, {op(0), Arg::of({op(1)}), op(2), Arg::boolean(true)}),
         {&x, &idx, &row},
         &same},
    };
    for (const Call& k : calls) {
      CHECK_FALSE(harness_errors().take());
      run_both(make_gather, k.d, k.in, {k.out});
      const auto error = harness_errors().take();
      REQUIRE(error);
      const std::string_view name = op_text(k.d.op).substr(0, op_text(k.d.op).find('.'));
      CHECK(error->message.find(fmt::format("[{}] index {} ", name, bad)) != std::string::npos);
    }
  }
  // Only index, index_put, index_fill, take and put have negative indices.
  Buffer idx = indices({300}, 0, 50, 3), wide = indices({300, 60}, 0, 50, 3);
  Buffer out(DType::F32, {300, 60}), same(DType::F32, {50, 60});
  idx.data<int64_t>()[0] = wide.data<int64_t>()[5] = -1;
  auto fails = [&](Op what, Buffer& index, Buffer& result) {
    std::vector<Arg> args = {op(0), Arg::integer(0), op(1), op(2)};
    run_both(make_gather, step(what, args), {&x, &index, &row}, {&result});
    return harness_errors().take().has_value();
  };
  CHECK(fails(Op::IndexSelect, idx, out));
  CHECK(fails(Op::Gather, wide, out));
  CHECK(fails(Op::ScatterSrc, wide, same));
  CHECK(fails(Op::ScatterAdd, wide, same));
  CHECK(fails(Op::IndexAdd, idx, same));
  CHECK(fails(Op::IndexCopy, idx, same));
  CHECK_FALSE(fails(Op::IndexFill, idx, same));
}

}  // namespace
}  // namespace tessera::test
