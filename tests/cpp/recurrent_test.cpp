// SPDX-License-Identifier: Apache-2.0
// Recurrent layers against loops in double: dense and packed, both directions, projection, absent
// states; the backward kernel against the derivative of the same loops.
#include <doctest/doctest.h>

#include "row_test_util.h"

namespace tessera::test {
namespace {

enum class Kind { kLstm, kGru, kTanh, kRelu };

double sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

struct Case {
  Kind kind;
  std::vector<int64_t> sizes;
  int64_t hidden, width;
  bool packed, reverse, start;

  int64_t gates() const { return kind == Kind::kLstm ? 4 : kind == Kind::kGru ? 3 : 1; }
  int64_t batch() const { return sizes[0]; }
  bool projected() const { return width != hidden; }
  int64_t steps() const { return static_cast<int64_t>(sizes.size()); }
  int64_t rows() const {
    int64_t n = 0;
    for (int64_t s : sizes) n += s;
    return n;
  }
  int64_t first(int64_t t) const {
    int64_t n = 0;
    for (int64_t i = 0; i < t; ++i) n += sizes[i];
    return n;
  }
  Dims shape(int64_t last) const {
    return packed ? Dims{rows(), last} : Dims{steps(), batch(), last};
  }
  Arg sizes_arg() const { return packed ? Arg::ints(sizes) : Arg::ints({}); }
};

// All numbers of a layer in double, forward and backward, one row and unit at a time.
struct Reference {
  Case k;
  std::vector<double> x, h0, c0, w, r, bias;  // inputs
  std::vector<double> y, hn, cn, cells, gates, raw;
  std::vector<double> dx, dh0, dc0, dy, dp;

  // The row of step t that sample b had in the step before, or -1.
  int64_t last_row(int64_t t, int64_t b) const {
    const int64_t p = k.reverse ? t + 1 : t - 1;
    return p < 0 || p >= k.steps() || b >= k.sizes[p] ? -1 : k.first(p) + b;
  }
  double state(int64_t t, int64_t b, int64_t i) const {
    const int64_t p = last_row(t, b);
    return p >= 0 ? y[p * k.width + i] : k.start ? h0[b * k.width + i] : 0.0;
  }
  double cell(int64_t t, int64_t b, int64_t j) const {
    const int64_t p = last_row(t, b);
    return p >= 0 ? cells[p * k.hidden + j] : k.start ? c0[b * k.hidden + j] : 0.0;
  }
  double product(int64_t t, int64_t b, int64_t gate, int64_t j) const {
    double s = 0;
    for (int64_t i = 0; i < k.width; ++i)
      s += w[(gate * k.hidden + j) * k.width + i] * state(t, b, i);
    return s;
  }

  void forward() {
    const int64_t h = k.hidden, wide = k.gates() * h;
    y.resize(k.rows() * k.width), hn.resize(k.batch() * k.width), cn.resize(k.batch() * h);
    cells.resize(k.rows() * h), gates.resize(k.rows() * 4 * h), raw.resize(k.rows() * h);
    for (int64_t s = 0; s < k.steps(); ++s) {
      const int64_t t = k.reverse ? k.steps() - 1 - s : s;
      for (int64_t b = 0; b < k.sizes[t]; ++b) {
        const int64_t row = k.first(t) + b;
        for (int64_t j = 0; j < h; ++j) {
          double *g = &gates[row * 4 * h + j], *out = &raw[row * h + j];
          auto in = [&](int64_t gate) { return x[row * wide + gate * h + j]; };
          auto all = [&](int64_t gate) { return in(gate) + product(t, b, gate, j); };
          if (k.kind == Kind::kLstm) {
            g[0] = sigmoid(all(0)), g[h] = sigmoid(all(1));
            g[2 * h] = std::tanh(all(2)), g[3 * h] = sigmoid(all(3));
            cells[row * h + j] = g[h] * cell(t, b, j) + g[0] * g[2 * h];
            *out = g[3 * h] * std::tanh(cells[row * h + j]);
            cn[b * h + j] = cells[row * h + j];
          } else if (k.kind == Kind::kGru) {
            g[0] = sigmoid(all(0)), g[h] = sigmoid(all(1));
            g[3 * h] = product(t, b, 2, j) + bias[j];
            g[2 * h] = std::tanh(in(2) + g[0] * g[3 * h]);
            *out = (1 - g[h]) * g[2 * h] + g[h] * state(t, b, j);
          } else {
            *out = k.kind == Kind::kTanh ? std::tanh(all(0)) : std::max(0.0, all(0));
          }
        }
        for (int64_t i = 0; i < k.width; ++i) {
          double s_out = k.projected() ? 0 : raw[row * h + i];
          if (k.projected())
            for (int64_t j = 0; j < h; ++j) s_out += r[i * h + j] * raw[row * h + j];
          y[row * k.width + i] = hn[b * k.width + i] = s_out;
        }
      }
    }
  }

  void backward(const std::vector<double>& gy, const std::vector<double>& ghn,
                const std::vector<double>& gcn) {
    const int64_t h = k.hidden, wide = k.gates() * h;
    dh0 = ghn, dc0 = gcn;
    dx.resize(k.rows() * wide), dp.resize(k.rows() * wide), dy.resize(k.rows() * k.width);
    for (int64_t s = k.steps() - 1; s >= 0; --s) {
      const int64_t t = k.reverse ? k.steps() - 1 - s : s;
      for (int64_t b = 0; b < k.sizes[t]; ++b) {
        const int64_t row = k.first(t) + b;
        for (int64_t i = 0; i < k.width; ++i)
          dy[row * k.width + i] = dh0[b * k.width + i] + gy[row * k.width + i];
        std::vector<double> direct(k.width, 0.0);
        for (int64_t j = 0; j < h; ++j) {
          double dh = k.projected() ? 0 : dy[row * k.width + j];
          if (k.projected())
            for (int64_t i = 0; i < k.width; ++i) dh += r[i * h + j] * dy[row * k.width + i];
          const double* g = &gates[row * 4 * h + j];
          double *d = &dx[row * wide + j], *p = &dp[row * wide + j];
          if (k.kind == Kind::kLstm) {
            const double i = g[0], f = g[h], n = g[2 * h], o = g[3 * h];
            const double tc = std::tanh(cells[row * h + j]);
            double& dc = dc0[b * h + j];
            dc += dh * o * (1 - tc * tc);
            d[0] = dc * n * i * (1 - i), d[h] = dc * cell(t, b, j) * f * (1 - f);
            d[2 * h] = dc * i * (1 - n * n), d[3 * h] = dh * tc * o * (1 - o);
            dc *= f;
            for (int q = 0; q < 4; ++q) p[q * h] = d[q * h];
          } else if (k.kind == Kind::kGru) {
            const double reset = g[0], z = g[h], n = g[2 * h];
            d[2 * h] = dh * (1 - z) * (1 - n * n);
            d[h] = dh * (state(t, b, j) - n) * z * (1 - z);
            d[0] = d[2 * h] * g[3 * h] * reset * (1 - reset);
            p[0] = d[0], p[h] = d[h], p[2 * h] = d[2 * h] * reset;
            direct[j] = dh * z;
          } else {
            const double out = raw[row * h + j];
            d[0] = k.kind == Kind::kTanh ? dh * (1 - out * out) : out > 0 ? dh : 0.0;
            p[0] = d[0];
          }
        }
        for (int64_t i = 0; i < k.width; ++i) {
          double sum = direct[i];
          for (int64_t q = 0; q < wide; ++q) sum += dp[row * wide + q] * w[q * k.width + i];
          dh0[b * k.width + i] = sum;
        }
      }
    }
  }
};

std::vector<double> numbers(Buffer& b) {
  std::vector<double> out;
  each_index(b.ref.shape, [&](const Dims& i) { out.push_back(b.at<float>(i)); });
  return out;
}

double error(Buffer& got, const std::vector<double>& want) {
  size_t n = 0;
  CHECK(want.size() == static_cast<size_t>(product(got.ref.shape)));
  return max_error(got, [&](const Dims&) { return want[n++]; });
}

// A tensor [steps, batch, last] with the batch outermost in memory.
Buffer rows_buffer(const Case& k, int64_t last, bool batch_major) {
  const Dims shape = k.shape(last);
  if (!batch_major || k.packed) return Buffer(DType::F32, shape);
  return Buffer(DType::F32, shape, {last, k.steps() * last, 1});
}

void check_case(const Case& k, bool batch_major, bool save) {
  CAPTURE(static_cast<int>(k.kind));
  CAPTURE(k.batch());
  CAPTURE(k.hidden);
  CAPTURE(k.width);
  CAPTURE(k.packed);
  CAPTURE(k.reverse);
  CAPTURE(k.start);
  const int64_t h = k.hidden, wide = k.gates() * h, b = k.batch();
  const bool lstm = k.kind == Kind::kLstm, gru = k.kind == Kind::kGru;
  const Dims none{0};
  Buffer x = rows_buffer(k, wide, batch_major);
  Buffer h0(DType::F32, {b, k.width}), c0(DType::F32, {b, h}), w(DType::F32, {wide, k.width}),
      r(DType::F32, {k.width, h}), bias(DType::F32, {h});
  x.randn(1), h0.randn(2), c0.randn(3), w.randn(4, 0.2f), r.randn(5, 0.2f), bias.randn(6);
  Reference ref{k,  numbers(x), numbers(h0), numbers(c0), numbers(w), numbers(r), numbers(bias),
                {}, {},         {},          {},          {},         {},         {},
                {}, {},         {},          {}};
  ref.forward();

  std::vector<Buffer*> in;
  auto operand = [&](Buffer& buffer, bool given) {
    if (!given) return Arg::none();
    in.push_back(&buffer);
    return Arg::operand(static_cast<int64_t>(in.size()) - 1);
  };
  Buffer y(DType::F32, k.shape(k.width)), hn(DType::F32, {b, k.width}), cn(DType::F32, {b, h});
  Buffer cells(DType::F32, save ? k.shape(h) : none),
      gates(DType::F32, save ? k.shape(4 * h) : none);
  std::vector<Arg> args{operand(x, true), operand(h0, k.start)};
  std::vector<Buffer*> out{&y, &hn};
  if (lstm) args.push_back(operand(c0, k.start));
  args.push_back(operand(w, true));
  if (lstm) args.push_back(operand(r, k.projected()));
  if (gru) args.push_back(operand(bias, true));
  if (k.gates() == 1) args.push_back(Arg::boolean(k.kind == Kind::kRelu));
  args.push_back(k.sizes_arg());
  args.push_back(Arg::boolean(k.reverse));
  if (k.gates() > 1) args.push_back(Arg::boolean(save)), out.push_back(&gates);
  if (lstm) out = {&y, &hn, &cn, &cells, &gates};
  run_both(make_recurrent,
           step(lstm  ? Op::LstmLayer
                : gru ? Op::GruLayer
                      : Op::RnnLayer,
                args),
           in, out);
  CHECK(error(y, ref.y) < 1e-5);
  CHECK(error(hn, ref.hn) < 1e-5);
  if (lstm) CHECK(error(cn, ref.cn) < 1e-5);
  if (!save) return;
  if (lstm) CHECK(error(cells, ref.cells) < 1e-5);
  if (k.gates() > 1) CHECK(error(gates, ref.gates) < 1e-5);

  Buffer gy = rows_buffer(k, k.width, batch_major);
  Buffer ghn(DType::F32, {b, k.width}), gcn(DType::F32, {b, h});
  gy.randn(7), ghn.randn(8), gcn.randn(9);
  ref.backward(numbers(gy), numbers(ghn), numbers(gcn));
  Buffer dx(DType::F32, k.shape(wide)), dh0(DType::F32, {b, k.width}), dc0(DType::F32, {b, h}),
      dy(DType::F32, k.projected() ? k.shape(k.width) : none), dp(DType::F32, k.shape(wide));
  in.clear();
  args = {operand(gy, true), operand(ghn, true)};
  out = {&dx, &dh0};
  if (lstm) {
    for (Arg a : {operand(gcn, true), operand(c0, k.start), operand(w, true),
                  operand(r, k.projected()), operand(cells, true), operand(gates, true)})
      args.push_back(a);
    out = {&dx, &dh0, &dc0, &dy};
  } else {
    args.push_back(operand(y, true));
    if (gru) args.push_back(operand(h0, k.start));
    args.push_back(operand(w, true));
    args.push_back(gru ? operand(gates, true) : Arg::boolean(k.kind == Kind::kRelu));
    if (gru) out = {&dx, &dh0, &dp};
  }
  args.push_back(k.sizes_arg());
  args.push_back(Arg::boolean(k.reverse));
  run_both(make_recurrent,
           step(lstm  ? Op::LstmLayerGrad
                : gru ? Op::GruLayerGrad
                      : Op::RnnLayerGrad,
                args),
           in, out);
  CHECK(error(dx, ref.dx) < 2e-5);
  CHECK(error(dh0, ref.dh0) < 2e-5);
  if (lstm) CHECK(error(dc0, ref.dc0) < 2e-5);
  if (gru) CHECK(error(dp, ref.dp) < 2e-5);
  if (k.projected()) CHECK(error(dy, ref.dy) < 2e-5);
}

TEST_CASE("recurrent layers match their definition, forward and backward") {
  const std::vector<int64_t> few{5, 5, 5}, many(4, 19), one{1}, falling{21, 17, 17, 3, 1};
  for (Kind kind : {Kind::kLstm, Kind::kGru, Kind::kTanh, Kind::kRelu})
    for (bool reverse : {false, true})
      for (bool start : {false, true}) {
        check_case({kind, few, 110, 110, false, reverse, start}, false, true);  // units shared
        check_case({kind, many, 75, 75, false, reverse, start}, true, true);    // rows shared
        check_case({kind, one, 1, 1, false, reverse, start}, false, true);
        check_case({kind, falling, 75, 75, true, reverse, start}, false, true);
        check_case({kind, {5, 3, 3, 1}, 110, 110, true, reverse, start}, false, true);
        check_case({kind, few, 110, 110, false, reverse, start}, false, false);
        check_case({kind, falling, 75, 75, true, reverse, start}, false, false);
      }
}

TEST_CASE("an LSTM with projection matches its definition") {
  for (bool reverse : {false, true})
    for (bool start : {false, true}) {
      check_case({Kind::kLstm, {7, 7, 7}, 100, 40, false, reverse, start}, false, true);
      check_case({Kind::kLstm, {19, 19, 6, 2}, 75, 33, true, reverse, start}, false, true);
      check_case({Kind::kLstm, {19, 19}, 75, 33, false, reverse, start}, true, false);
    }
}

TEST_CASE("recurrent layers check their shapes") {
  auto call = [](Dims x, Dims h0, Dims w, std::vector<int64_t> sizes) {
    return infer_call(infer_recurrent, Op::GruLayer,
                      {{DType::F32, x, {}}, {DType::F32, h0, {}}, {DType::F32, w, {}}},
                      {Arg::operand(0), Arg::operand(1), Arg::operand(2), Arg::none(),
                       Arg::ints(sizes), Arg::boolean(false), Arg::boolean(true)});
  };
  CHECK(call({4, 2, 15}, {2, 5}, {15, 5}, {})[2].shape == Dims{4, 2, 20});
  CHECK(call({7, 15}, {4, 5}, {15, 5}, {4, 2, 1})[1].shape == Dims{4, 5});
  CHECK_THROWS_AS(call({4, 2, 15}, {3, 5}, {15, 5}, {}), UserError);
  CHECK_THROWS_AS(call({4, 2, 14}, {2, 5}, {15, 5}, {}), UserError);
  CHECK_THROWS_AS(call({4, 2, 15}, {2, 5}, {15, 4}, {}), UserError);
  CHECK_THROWS_AS(call({7, 15}, {2, 5}, {15, 5}, {2, 4, 1}), UserError);
  CHECK_THROWS_AS(call({8, 15}, {4, 5}, {15, 5}, {4, 2, 1}), UserError);
}

}  // namespace
}  // namespace tessera::test
