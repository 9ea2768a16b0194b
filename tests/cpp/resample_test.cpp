// SPDX-License-Identifier: Apache-2.0
// Resampling and index padding against the definition of each mode in double precision, in all
// memory orders and element types; sampling by grids and columns of windows against plain loops.
#include "kernels/resample.h"

#include <algorithm>

#include "kernels/grid.h"
#include "kernels/simd.h"
#include "row_test_util.h"

namespace tessera {
namespace {

using test::Buffer;

// Weight of input i in output o along one axis.
using Weight = std::function<double(int64_t o, int64_t i)>;

double hat(double x) {
  return std::max(0.0, 1.0 - std::abs(x));
}
double keys(double x, double a) {
  x = std::abs(x);
  if (x < 1) return (a + 2) * x * x * x - (a + 3) * x * x + 1;
  return x < 2 ? a * (x * x * x - 5 * x * x + 8 * x - 4) : 0.0;
}

Weight weight_of(const std::string& mode, int64_t in, int64_t out, bool align, int64_t low) {
  const double step =
      align ? (out > 1 ? double(in - 1) / double(out - 1) : 0.0) : double(in) / double(out);
  auto at = [=](int64_t o) { return align ? o * step : (o + 0.5) * step - 0.5; };
  if (mode == "nearest") return [=](int64_t o, int64_t i) { return o * in / out == i ? 1.0 : 0.0; };
  if (mode == "nearest-exact")
    return [=](int64_t o, int64_t i) { return (2 * o + 1) * in / (2 * out) == i ? 1.0 : 0.0; };
  if (mode == "linear")
    return [=](int64_t o, int64_t i) {
      return hat(std::clamp(at(o), 0.0, double(in - 1)) - double(i));
    };
  if (mode == "cubic")
    return [=](int64_t o, int64_t i) {
      const double x = at(o);
      double sum = 0;
      for (int64_t t = int64_t(std::floor(x)) - 1; t <= int64_t(std::floor(x)) + 2; ++t)
        if (std::clamp<int64_t>(t, 0, in - 1) == i) sum += keys(x - double(t), -0.75);
      return sum;
    };
  if (mode == "linear-aa" || mode == "cubic-aa") {
    const double wide = std::max(step, 1.0);
    auto raw = [=](int64_t o, int64_t i) {
      const double x = (double(i) + 0.5 - (o + 0.5) * step) / wide;
      return mode == "linear-aa" ? hat(x) : keys(x, -0.5);
    };
    return [=](int64_t o, int64_t i) {
      double total = 0;
      for (int64_t k = 0; k < in; ++k) total += raw(o, k);
      return raw(o, i) / total;
    };
  }
  return [=](int64_t o, int64_t i) {
    int64_t from = o - low;
    if (mode == "replicate") from = std::clamp<int64_t>(from, 0, in - 1);
    if (mode == "circular") from = (from + 4 * in) % in;
    if (mode == "reflect") from = from < 0 ? -from : from >= in ? 2 * in - 2 - from : from;
    return from == i ? 1.0 : 0.0;
  };
}

struct Case {
  std::string mode;
  Dims in, size;
  bool align = false;
  Dims low{};
};

const Case kCases[] = {
    {"nearest", {2, 3, 40}, {80}},
    {"nearest", {2, 19, 7, 9}, {14, 18}},
    {"nearest", {1, 3, 9, 40}, {5, 17}},
    {"nearest-exact", {2, 17, 4, 5, 6}, {8, 7, 15}},
    {"linear", {2, 3, 33}, {71}},
    {"linear", {2, 18, 9, 21}, {18, 42}},
    {"linear", {2, 18, 9, 21}, {20, 50}, true},
    {"linear", {1, 2, 30, 90}, {11, 13}},
    {"linear", {2, 16, 5, 4, 6}, {9, 8, 11}, true},
    {"cubic", {2, 17, 8, 11}, {15, 37}},
    {"cubic", {2, 3, 20, 40}, {7, 11}, true},
    {"linear-aa", {2, 3, 20, 50}, {9, 14}},
    {"cubic-aa", {2, 3, 20, 50}, {9, 63}},
    {"reflect", {2, 3, 9}, {16}, false, {3}},
    {"reflect", {2, 17, 8, 40}, {12, 50}, false, {3, 4}},
    {"replicate", {2, 17, 3, 4, 5}, {6, 7, 20}, false, {2, 0, 7}},
    {"replicate", {2, 3, 8, 30}, {7, 28}, false, {-3, 2}},  // crops
    {"circular", {2, 3, 8, 30}, {12, 47}, false, {3, 9}},
};

std::vector<Arg> arguments(const Case& c, const Dims& size) {
  std::vector<Arg> numbers;
  for (size_t i = 0; i < c.size.size(); ++i)
    numbers.push_back(Arg::real(c.low.empty() ? 0.0 : double(c.low[i])));
  return {Arg::operand(0), Arg::string(c.mode), Arg::ints(size), Arg::boolean(c.align),
          Arg::of(numbers)};
}

Dims with_size(const Dims& shape, const Dims& size) {
  Dims out = shape;
  std::copy(size.begin(), size.end(), out.end() - int64_t(size.size()));
  return out;
}

// The definition as one dense matrix [outputs][inputs] per axis, applied tap by tap.
class Definition {
 public:
  explicit Definition(const Case& c) : lead_(c.in.size() - c.size.size()) {
    for (size_t a = 0; a < c.size.size(); ++a) {
      const int64_t in = c.in[lead_ + a];
      const Weight w = weight_of(c.mode, in, c.size[a], c.align, c.low.empty() ? 0 : c.low[a]);
      in_.push_back(in), out_.push_back(c.size[a]);
      matrix_.emplace_back();
      for (int64_t o = 0; o < c.size[a]; ++o)
        for (int64_t i = 0; i < in; ++i) matrix_.back().push_back(w(o, i));
    }
  }
  // An element of the result; `back` applies the transposed matrices.
  double operator()(Buffer& x, const Dims& at, bool back) const {
    int64_t offset = 0;
    for (size_t d = 0; d < lead_; ++d) offset += at[d] * x.ref.strides[d];
    return sum(x, at, back, 0, offset);
  }

 private:
  double sum(Buffer& x, const Dims& at, bool back, size_t axis, int64_t offset) const {
    if (axis == in_.size()) return x.data<float>()[offset];
    const int64_t me = at[lead_ + axis];
    double total = 0;
    for (int64_t k = 0; k < (back ? out_ : in_)[axis]; ++k) {
      const double w = matrix_[axis][size_t(back ? k * in_[axis] + me : me * in_[axis] + k)];
      if (w != 0) total += w * sum(x, at, back, axis + 1, offset + k * x.ref.strides[lead_ + axis]);
    }
    return total;
  }
  size_t lead_;
  Dims in_, out_;
  std::vector<std::vector<double>> matrix_;
};

TEST_CASE("every mode and its gradient equal their definition in all orders") {
  for (const Case& c : kCases) {
    const int rank = int(c.in.size());
    const Definition mapped(c);
    for (int inner : {-1, 1, 0}) {
      if (inner >= 0 && rank < 4) continue;
      CAPTURE(c.mode);
      CAPTURE(c.in);
      CAPTURE(inner);
      std::vector<int> order;
      if (inner >= 0) order.push_back(inner);
      for (int d = rank - 1; d >= 0; --d)
        if (d != inner) order.push_back(d);
      const Dims out = with_size(c.in, c.size);
      const Dims spatial(c.in.end() - int64_t(c.size.size()), c.in.end());
      Buffer x(DType::F32, c.in, test::strides_of_order(c.in, order));
      Buffer y(DType::F32, out, test::strides_of_order(out, order));
      x.randn(1);
      test::run_both(make_resample, test::step(Op::Resample, arguments(c, c.size)), {&x}, {&y});
      CHECK(test::max_error(y, [&](const Dims& i) { return mapped(x, i, false); }) < 2e-5);
      Buffer gy = y, gx = x;
      gy.randn(2);
      test::run_both(make_resample, test::step(Op::ResampleGrad, arguments(c, spatial)), {&gy},
                     {&gx});
      CHECK(test::max_error(gx, [&](const Dims& i) { return mapped(gy, i, true); }) < 5e-5);
    }
  }
}

TEST_CASE("resampling between different orders") {
  const Case c{"linear", {2, 3, 5, 6}, {9, 7}};
  const Definition mapped(c);
  Buffer x(DType::F32, c.in), y(DType::F32, {2, 3, 9, 7}, {189, 1, 21, 3});
  x.randn(1);
  test::run_both(make_resample, test::step(Op::Resample, arguments(c, c.size)), {&x}, {&y});
  CHECK(test::max_error(y, [&](const Dims& i) { return mapped(x, i, false); }) < 2e-5);
}

TEST_CASE("half precision is rounded once, integers are moved") {
  using kernels::v3::bf16_to_f32;
  using kernels::v3::f16_to_f32;
  using kernels::v3::f32_to_bf16;
  using kernels::v3::f32_to_f16;
  const Case c{"linear", {2, 3, 9, 21}, {13, 40}};
  const Dims out = with_size(c.in, c.size);
  for (DType t : {DType::F16, DType::BF16}) {
    Buffer x(DType::F32, c.in), y(DType::F32, out), small(t, c.in), got(t, out);
    x.randn(1);
    for (int64_t i = 0; i < x.ref.count(); ++i) {
      float& v = x.data<float>()[i];
      uint16_t& h = small.data<uint16_t>()[i];
      h = t == DType::F16 ? f32_to_f16(v) : f32_to_bf16(v);
      v = t == DType::F16 ? f16_to_f32(h) : bf16_to_f32(h);
    }
    test::run_both(make_resample, test::step(Op::Resample, arguments(c, c.size)), {&x}, {&y});
    test::run_both(make_resample, test::step(Op::Resample, arguments(c, c.size)), {&small}, {&got});
    bool equal = true;
    for (int64_t i = 0; i < y.ref.count(); ++i) {
      const float v = y.data<float>()[i];
      equal &= got.data<uint16_t>()[i] == (t == DType::F16 ? f32_to_f16(v) : f32_to_bf16(v));
    }
    CHECK(equal);
  }
  const Case pad{"reflect", {2, 3, 8, 40}, {12, 50}, false, {3, 4}};
  for (DType t : {DType::I64, DType::I32, DType::I16, DType::U8}) {
    Buffer x(t, pad.in), y(t, with_size(pad.in, pad.size));
    for (int64_t i = 0; i < x.ref.bytes(); ++i) x.memory[size_t(i)] = std::byte(i * 7 % 251);
    test::run_both(make_resample, test::step(Op::Resample, arguments(pad, pad.size)), {&x}, {&y});
    const int64_t size = size_of(t);
    bool equal = true;
    test::each_index(y.ref.shape, [&](const Dims& o) {
      Dims i = o;
      for (int d : {0, 1}) {
        const int64_t n = pad.in[2 + d], from = o[2 + d] - pad.low[d];
        i[2 + d] = from < 0 ? -from : from >= n ? 2 * n - 2 - from : from;
      }
      auto place = [&](Buffer& b, const Dims& at) {
        int64_t offset = 0;
        for (size_t k = 0; k < at.size(); ++k) offset += at[k] * b.ref.strides[k];
        return b.memory.data() + offset * size;
      };
      equal &= std::memcmp(place(y, o), place(x, i), size_t(size)) == 0;
    });
    CHECK(equal);
  }
}

TEST_CASE("both instruction sets agree on rows") {
  const kernels::AxisMap maps[] = {
      kernels::axis_map(kernels::MapMode::kCubic, 37, 90, false, 0, false),
      kernels::transposed(kernels::axis_map(kernels::MapMode::kLinear, 37, 90, false, 0, true)),
      kernels::axis_map(kernels::MapMode::kNearest, 200, 31, false, 0, false)};
  for (const kernels::AxisMap& m : maps) {
    Buffer row(DType::F32, {m.in}), a(DType::F32, {m.out}), b(DType::F32, {m.out});
    row.randn(4);
    const kernels::RowPlan plan = kernels::row_plan(m);
    const int64_t start = 0;
    kernels::resample_kernels().spread(DType::F32, plan, row.data<float>(), &start, 1,
                                       a.data<float>());
    kernels::resample_kernels(kernels::Isa::kV3)
        .spread(DType::F32, plan, row.data<float>(), &start, 1, b.data<float>());
    for (int64_t i = 0; i < m.out; ++i)
      CHECK(a.data<float>()[i] == doctest::Approx(b.data<float>()[i]).epsilon(1e-6));
  }
}

TEST_CASE("columns of windows, and back") {
  struct Windows {
    Dims in, kernel, dilation, padding, stride;
  };
  const Windows cases[] = {{{2, 3, 40, 36}, {3, 3}, {1, 1}, {1, 1}, {1, 1}},
                           {{2, 3, 11, 12}, {3, 2}, {2, 1}, {1, 0}, {2, 3}},
                           {{1, 1, 3, 3}, {5, 5}, {1, 1}, {2, 3}, {1, 2}}};
  for (const Windows& c : cases) {
    CAPTURE(c.in);
    Dims out;
    for (int d : {0, 1})
      out.push_back((c.in[2 + d] + 2 * c.padding[d] - c.dilation[d] * (c.kernel[d] - 1) - 1) /
                        c.stride[d] +
                    1);
    const int64_t taps = c.kernel[0] * c.kernel[1];
    Buffer x(DType::F32, c.in), y(DType::F32, {c.in[0], c.in[1] * taps, out[0] * out[1]});
    x.randn(1);
    const std::vector<Arg> window{Arg::ints(c.kernel), Arg::ints(c.dilation), Arg::ints(c.padding),
                                  Arg::ints(c.stride)};
    std::vector<Arg> into{Arg::operand(0)}, from{Arg::operand(0), Arg::ints({c.in[2], c.in[3]})};
    into.insert(into.end(), window.begin(), window.end());
    from.insert(from.end(), window.begin(), window.end());
    // Pixel of a column's element, or nothing in the padding.
    auto pixel = [&](const Dims& i) -> std::pair<int64_t, int64_t> {
      const int64_t tap = i[1] % taps;
      return {i[2] / out[1] * c.stride[0] + tap / c.kernel[1] * c.dilation[0] - c.padding[0],
              i[2] % out[1] * c.stride[1] + tap % c.kernel[1] * c.dilation[1] - c.padding[1]};
    };
    auto inside = [&](std::pair<int64_t, int64_t> p) {
      return p.first >= 0 && p.first < c.in[2] && p.second >= 0 && p.second < c.in[3];
    };
    test::run_both(make_columns, test::step(Op::Im2Col, into), {&x}, {&y});
    CHECK(test::max_error(y, [&](const Dims& i) {
            const auto p = pixel(i);
            return inside(p) ? x.at<float>({i[0], i[1] / taps, p.first, p.second}) : 0.0;
          }) == 0);
    Buffer back = x, want = x;
    std::fill_n(want.data<float>(), want.ref.count(), 0.0f);
    test::each_index(y.ref.shape, [&](const Dims& i) {
      const auto p = pixel(i);
      if (inside(p)) want.at<float>({i[0], i[1] / taps, p.first, p.second}) += y.at<float>(i);
    });
    test::run_both(make_columns, test::step(Op::Col2Im, from), {&y}, {&back});
    CHECK(test::max_error(back, [&](const Dims& i) { return want.at<float>(i); }) < 1e-5);
  }
}

// Linear sampling with zeros outside, in double.
double sampled(Buffer& x, const Dims& head, const std::vector<double>& place, size_t axis) {
  if (axis == place.size()) return x.at<float>(head);
  const double at = place[axis], first = std::floor(at);
  double sum = 0;
  for (int k : {0, 1}) {
    const auto i = int64_t(first) + k;
    if (i < 0 || i >= x.ref.shape[2 + axis]) continue;
    Dims next = head;
    next.push_back(i);
    sum += (k ? at - first : 1 - (at - first)) * sampled(x, next, place, axis + 1);
  }
  return sum;
}

TEST_CASE("grid sampling of images and volumes, and its gradients by differences") {
  for (const Dims& in : {Dims{2, 5, 7, 9}, Dims{2, 3, 4, 5, 6}}) {
    const size_t axes = in.size() - 2;
    CAPTURE(axes);
    Dims grid_shape{in[0], 3, 11, int64_t(axes)}, out{in[0], in[1], 3, 11};
    if (axes == 3) grid_shape = {in[0], 3, 2, 11, 3}, out = {in[0], in[1], 3, 2, 11};
    Buffer x(DType::F32, in), grid(DType::F32, grid_shape), y(DType::F32, out);
    x.randn(1), grid.randn(2, 0.7f);
    auto value = [&](const Dims& o) {
      std::vector<double> place;
      for (size_t a = 0; a < axes; ++a) {
        Dims g{o[0]};
        g.insert(g.end(), o.begin() + 2, o.end());
        g.push_back(int64_t(axes - 1 - a));  // width comes first
        place.push_back(((grid.at<float>(g) + 1.0) * double(in[2 + a]) - 1) / 2);
      }
      return sampled(x, {o[0], o[1]}, place, 0);
    };
    const std::vector<Arg> tail{Arg::integer(0), Arg::integer(0), Arg::boolean(false)};
    std::vector<Arg> args{Arg::operand(0), Arg::operand(1)};
    std::vector<Arg> grad_args{Arg::operand(0), Arg::operand(1), Arg::operand(2)};
    args.insert(args.end(), tail.begin(), tail.end());
    grad_args.insert(grad_args.end(), tail.begin(), tail.end());
    test::run_both(make_grid, test::step(Op::GridSampler, args), {&x, &grid}, {&y});
    CHECK(test::max_error(y, value) < 2e-5);

    Buffer gy = y, gx = x, ggrid = grid;
    gy.randn(3);
    test::run_both(make_grid, test::step(Op::GridSamplerGrad, grad_args), {&gy, &x, &grid},
                   {&gx, &ggrid});
    // The map is linear in x, so <gy, y(x)> = <gx, x>.
    auto dot = [](Buffer& a, Buffer& b) {
      double sum = 0;
      for (int64_t i = 0; i < a.ref.count(); ++i)
        sum += double(a.data<float>()[i]) * b.data<float>()[i];
      return sum;
    };
    CHECK(dot(gy, y) == doctest::Approx(dot(gx, x)).epsilon(1e-4));
    int checked = 0;
    for (int64_t i = 0; i < grid.ref.count(); ++i) {
      const float old = grid.data<float>()[i];
      const size_t a = axes - 1 - size_t(i % int64_t(axes));
      const double at = ((old + 1.0) * double(in[2 + a]) - 1) / 2;
      if (std::abs(at - std::round(at)) < 0.02) continue;  // the derivative jumps there
      double slope = 0;
      for (int sign : {1, -1}) {
        grid.data<float>()[i] = old + float(sign) * 1e-3f;
        const double h = 2 * 1e-3;
        const int64_t point = i / int64_t(axes), points = grid.ref.count() / int64_t(axes) / in[0];
        test::each_index(out, [&](const Dims& o) {
          int64_t flat = 0;
          for (size_t d = 2; d < o.size(); ++d) flat = flat * out[d] + o[d];
          if (o[0] == point / points && flat == point % points)
            slope += sign * gy.at<float>(o) * value(o) / h;
        });
      }
      grid.data<float>()[i] = old;
      CHECK(ggrid.data<float>()[i] == doctest::Approx(slope).epsilon(0.01));
      ++checked;
    }
    CHECK(checked > 20);
  }
}

TEST_CASE("calls that make no sense are refused") {
  const TensorType x{DType::F32, {1, 2, 4, 4}, {}};
  auto call = [&](const std::string& mode, Dims size) {
    return test::infer_call(infer_resample, Op::Resample, {x},
                            {Arg::operand(0), Arg::string(mode), Arg::ints(size),
                             Arg::boolean(false), Arg::of({Arg::real(0), Arg::real(0)})});
  };
  CHECK(call("linear", {8, 8})[0].shape == Dims{1, 2, 8, 8});
  CHECK_THROWS_AS(call("linear", {8, -1}), UserError);
  CHECK_THROWS_AS(kernels::map_mode("wavelet"), UserError);
  CHECK_THROWS_AS(kernels::axis_map(kernels::MapMode::kReflect, 3, 9, false, 3, false), UserError);
}

}  // namespace
}  // namespace tessera
