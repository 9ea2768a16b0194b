// SPDX-License-Identifier: Apache-2.0
// Random ops that are not elementwise: randperm(key, stream) and multinomial(key, stream, weights,
// samples, replacement). Their numbers come from the same counter-based generator as `uniform`.
// probability(p) hands on numbers that are compared with it, and reports those that are none.
#include "kernels/random.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "ops/registry.h"
#include "ops/run_error.h"
#include "ops/widened.h"

namespace tessera {
namespace {

// One stream of 64-bit words by index.
class Words {
 public:
  Words(const RunCtx& c, const StepDesc& d)
      : key_(c.ptr<int64_t>(d.inputs[d.args.operand(0)])),
        stream_(static_cast<uint32_t>(d.args.integer(1))),
        low_(kernels::random_key(kernels::random_fold(key_[0]), kernels::random_fold(key_[1]),
                                 stream_)) {}
  uint64_t operator()(int64_t index) const {
    const auto at = static_cast<uint64_t>(index);
    if (at < (uint64_t{1} << 31)) [[likely]]
      return kernels::random_word(low_, static_cast<uint32_t>(at));
    return kernels::random_word(key_[0], key_[1], stream_, at);
  }
  // In [0, 1).
  double uniform(int64_t index) const {
    return static_cast<double>((*this)(index) >> 11) * 0x1p-53;
  }

 private:
  const int64_t* key_;
  uint32_t stream_;
  kernels::RandomKey low_;  // of indices below 2^31
};

KernelPtr make_randperm(const StepDesc& d) {
  return make_kernel(
      [d](const RunCtx& c) {
        if (c.thread != 0) return;
        const Words words(c, d);
        auto* out = c.ptr<int64_t>(d.outputs[0]);
        const int64_t n = d.outputs[0].count();
        std::iota(out, out + n, int64_t{0});
        for (int64_t i = n - 1; i > 0; --i) {
          const auto below =
              static_cast<unsigned __int128>(words(i)) * static_cast<uint64_t>(i + 1);
          std::swap(out[i], out[static_cast<int64_t>(below >> 64)]);
        }
      },
      0, true);
}

// Rows of weights are independent; each thread has room for one row.
class MultinomialKernel final : public Kernel {
 public:
  explicit MultinomialKernel(const StepDesc& d)
      : d_(d), weights_(d.inputs[d.args.operand(2)]), out_(d.outputs[0]) {
    classes_ = weights_.shape.back();
    rows_ = weights_.shape.size() == 2 ? weights_.shape[0] : 1;
    samples_ = d.args.integer(3);
    replacement_ = d.args.boolean(4);
  }
  bool single_thread() const override { return rows_ * (classes_ + samples_) < 4096; }
  bool may_fail() const override { return true; }
  int64_t scratch_bytes(int threads) const override { return threads * row_bytes(); }

  void run(const RunCtx& c) const override {
    const Words words(c, d_);
    auto* number = reinterpret_cast<double*>(c.scratch + c.thread * row_bytes());
    auto* order = reinterpret_cast<int64_t*>(number + classes_);
    const auto [begin, end] = thread_range(c, rows_);
    for (int64_t r = begin; r < end; ++r) {
      const float* w = c.ptr<float>(weights_) + r * classes_;
      int64_t* out = c.ptr<int64_t>(out_) + r * samples_;
      std::fill_n(out, samples_, 0);
      if (!usable(c, w)) continue;
      if (replacement_)
        draw_each(words, w, r, number, out);
      else
        draw_distinct(words, w, r, number, order, out);
    }
  }

 private:
  int64_t row_bytes() const { return whole_lines(classes_ * 16); }

  bool usable(const RunCtx& c, const float* w) const {
    int wrong = 0, positive = 0;
    for (int64_t i = 0; i < classes_; ++i) {
      wrong |= !(w[i] >= 0) | !(w[i] <= std::numeric_limits<float>::max());
      positive |= w[i] > 0;
    }
    if (wrong)
      fail_run(c, "[multinomial] probability tensor contains either `inf`, `nan` or element < 0");
    else if (!positive)
      fail_run(c, "[multinomial] invalid multinomial distribution (sum of probabilities <= 0)");
    return !wrong && positive;
  }

  // The first running total above a uniform share of the whole; classes of weight 0 have none.
  void draw_each(const Words& words, const float* w, int64_t row, double* total,
                 int64_t* out) const {
    int64_t last = classes_ - 1;
    while (!(w[last] > 0)) --last;
    double sum = 0;
    for (int64_t i = 0; i < classes_; ++i) total[i] = sum += w[i];
    for (int64_t k = 0; k < samples_; ++k) {
      const double x = words.uniform(row * samples_ + k) * sum;
      out[k] = std::min<int64_t>(std::upper_bound(total, total + classes_, x) - total, last);
    }
  }

  // Exponential waiting times with the weights as rates: the first ones to come.
  void draw_distinct(const Words& words, const float* w, int64_t row, double* time, int64_t* order,
                     int64_t* out) const {
    for (int64_t i = 0; i < classes_; ++i)
      time[i] = -std::log1p(-words.uniform(row * classes_ + i)) / w[i];
    // A waiting time of zero over a weight of zero.
    for (int64_t i = 0; i < classes_; ++i)
      if (!(w[i] > 0)) time[i] = INFINITY;
    std::iota(order, order + classes_, int64_t{0});
    std::partial_sort(order, order + samples_, order + classes_, [&](int64_t a, int64_t b) {
      return time[a] < time[b] || (time[a] == time[b] && a < b);
    });
    std::copy_n(order, samples_, out);
  }

  StepDesc d_;
  TensorRef weights_, out_;
  int64_t rows_ = 0, classes_ = 0, samples_ = 0;
  bool replacement_ = false;
};

class ProbabilityKernel final : public Kernel {
 public:
  explicit ProbabilityKernel(const StepDesc& d)
      : p_(d.inputs[d.args.operand(0)]), out_(d.outputs[0]) {}
  bool single_thread() const override { return p_.count() < 4096; }
  bool may_fail() const override { return true; }

  void run(const RunCtx& c) const override {
    const auto [begin, end] = thread_range(c, p_.count(), 16);
    const auto* p = c.ptr<const float>(p_);
    auto* out = c.ptr<float>(out_);
    int wrong = 0;
    for (int64_t i = begin; i < end; ++i) {
      wrong |= !(p[i] >= 0) | !(p[i] <= 1);
      out[i] = p[i];
    }
    if (wrong) fail_run(c, "[bernoulli] expects all elements of p to be in [0, 1]");
  }

 private:
  TensorRef p_, out_;
};

}  // namespace

std::vector<TensorType> infer_random(const Graph& g, const Node& n) {
  if (n.op == Op::Probability) {
    const TensorType& p = g.type(n.arg_value(0));
    user_check(p.dtype == DType::F32, "[probability] needs f32, got {}", name_of(p.dtype));
    return {{p.dtype, p.shape, {}}};
  }
  user_check(g.type(n.arg_value(0)).same_logical({DType::I64, {2}, {}}),
             "{}: the key is not i64[2]", op_text(n.op));
  if (n.op == Op::RandPerm) {
    user_check(g.type(n.results[0]).rank() == 1, "randperm: the result has {} dims",
               g.type(n.results[0]).rank());
    return {{DType::I64, g.type(n.results[0]).shape, {}}};
  }
  Dims shape = g.type(n.arg_value(2)).shape;
  user_check(shape.size() == 1 || shape.size() == 2,
             "multinomial: prob_dist must be 1 or 2 dim, it has {}", shape.size());
  const int64_t samples = n.args.integer(3);
  user_check(samples > 0, "multinomial: cannot sample n_sample <= 0 samples");
  user_check(
      n.args.boolean(4) || samples <= shape.back(),
      "multinomial: cannot sample n_sample > prob_dist.size(-1) samples without replacement");
  shape.back() = samples;
  return {{DType::I64, shape, {}}};
}

Work work_random(const Graph& g, const Node& n) {
  constexpr int64_t kFlopsPerWord = 40;
  Work w;
  w.kind = WorkKind::kRandom;
  for (ValueId v : n.operands) w.bytes += g.type(v).bytes();
  for (ValueId v : n.results) w.bytes += g.type(v).bytes();
  if (n.op == Op::Probability) return w;
  int64_t words = g.type(n.results[0]).count();
  if (n.op == Op::Multinomial && !n.args.boolean(4)) words = g.type(n.arg_value(2)).count();
  w.flops = kFlopsPerWord * words;
  return w;
}

KernelPtr make_random(const StepDesc& d) {
  if (d.op == Op::RandPerm) return make_randperm(d);
  if (d.op == Op::Probability) return std::make_unique<ProbabilityKernel>(d);
  return make_widened(
      d, [](const StepDesc& f) -> KernelPtr { return std::make_unique<MultinomialKernel>(f); });
}

bool accepts_random(Op, int, const TensorRef& physical) {
  return physical.contiguous();
}

}  // namespace tessera
