// SPDX-License-Identifier: Apache-2.0
// Convolution kernels by memory order: CHWN against channels-last (oneDNN), forward and
// both gradients. Prints microseconds, best of many, and the ratio that preferred_conv_order is
// built on. Usage: conv_bench [threads] [tutorial|crossover|resnet]
#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "ops/convolution.h"
#include "ops/registry.h"

namespace {

using namespace tessera;

struct Shape {
  int64_t n, c, k, size, kernel, stride, pad, groups;
};

struct Memory {
  std::unique_ptr<std::byte, decltype(&std::free)> data;
  explicit Memory(int64_t bytes)
      : data(static_cast<std::byte*>(std::aligned_alloc(4096, (bytes + 8191) / 4096 * 4096)),
             &std::free) {
    auto* f = reinterpret_cast<float*>(data.get());
    for (int64_t i = 0; i < bytes / 4; ++i)
      f[i] = static_cast<float>(i * 2654435761u % 1000) * 1e-3f;
  }
};

TensorRef ref(const Dims& shape, const std::vector<int>& order, int region) {
  Dims strides(shape.size());
  int64_t step = 1;
  for (int d : order) {
    strides[d] = step;
    step *= shape[d];
  }
  return {DType::F32, shape, strides, region, 0};
}

// One kernel with its tensors, run as the engine would: by the whole team, or by the library
// itself.
class Runner {
 public:
  Runner(Op op, const Shape& s, const std::vector<int>& order, int threads) : threads_(threads) {
    const int64_t out = (s.size + 2 * s.pad - s.kernel) / s.stride + 1;
    const Dims x{s.n, s.c, s.size, s.size}, y{s.n, s.k, out, out};
    const Dims w{s.k, s.c / s.groups, s.kernel, s.kernel};
    flops = 2.0 * static_cast<double>(product(y)) * static_cast<double>(product(w) / w[0]);
    const TensorRef xr = ref(x, order, 0), yr = ref(y, order, 1), wr = ref(w, {3, 2, 1, 0}, 2);
    StepDesc d;
    d.op = op;
    const Arg stride = Arg::ints({s.stride, s.stride}), pad = Arg::ints({s.pad, s.pad});
    const Arg dilation = Arg::ints({1, 1}), groups = Arg::integer(s.groups);
    const Arg a = Arg::operand(0), b = Arg::operand(1);
    if (op == Op::Convolution) {
      d.inputs = {xr, wr}, d.outputs = {yr};
      d.args.list = {
          a, b, Arg::none(), stride, pad, dilation, Arg::boolean(false), Arg::ints({0, 0}), groups};
    } else if (op == Op::ConvInputGrad) {
      d.inputs = {yr, wr}, d.outputs = {xr};
      d.args.list = {a, b, Arg::ints(x), stride, pad, dilation, groups};
    } else {
      d.inputs = {yr, xr}, d.outputs = {wr};
      d.args.list = {a, b, Arg::ints(w), stride, pad, dilation, groups};
    }
    kernel_ = make_convolution(d);
    for (const TensorRef& t : {xr, yr, wr}) memory_.emplace_back(t.bytes());
    memory_.emplace_back(kernel_->scratch_bytes(threads) + 64);
    for (Memory& m : memory_) bases_.push_back(m.data.get());
  }

  void run() {
    auto part = [&](int thread, int threads) {
      RunCtx c{thread,
               threads,
               bases_.data(),
               bases_[3],
               [](void*) {
#pragma omp barrier
               },
               nullptr};
      kernel_->run(c);
    };
    if (kernel_->top_level() || kernel_->single_thread() || threads_ == 1) return part(0, 1);
#pragma omp parallel num_threads(threads_)
    part(omp_get_thread_num(), threads_);
  }

  double flops = 0;

 private:
  int threads_;
  KernelPtr kernel_;
  std::vector<Memory> memory_;
  std::vector<std::byte*> bases_;
};

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Best microseconds of each runner, rounds interleaved.
std::vector<double> best(std::vector<Runner*> runners, double budget) {
  std::vector<double> times(runners.size(), 1e30);
  const double start = seconds();
  do {
    for (size_t i = 0; i < runners.size(); ++i) {
      runners[i]->run();  // bring this one's data back
      for (int repeat = 0; repeat < 8; ++repeat) {
        const double t = seconds();
        runners[i]->run();
        times[i] = std::min(times[i], (seconds() - t) * 1e6);
      }
    }
  } while (seconds() - start < budget);
  return times;
}

void compare(const Shape& s, int threads, double budget) {
  std::printf("n%-4ld %3ld->%-4ld %3ldx%-3ld k%ld s%ld p%ld g%-3ld", s.n, s.c, s.k, s.size, s.size,
              s.kernel, s.stride, s.pad, s.groups);
  double sum_chwn = 0, sum_last = 0;
  for (Op op : {Op::Convolution, Op::ConvInputGrad, Op::ConvWeightGrad}) {
    Runner chwn(op, s, {0, 3, 2, 1}, threads), last(op, s, {1, 3, 2, 0}, threads);
    const auto t = best({&chwn, &last}, budget);
    std::printf(" | %9.1f (%5.1f GF/s) %9.1f %5.2fx", t[0], chwn.flops / t[0] * 1e-3, t[1],
                t[1] / t[0]);
    sum_chwn += t[0], sum_last += t[1];
  }
  const ConvOrder order =
      preferred_conv_order({s.n, s.c, s.size, s.size}, {s.k, s.c / s.groups, s.kernel, s.kernel},
                           {s.stride, s.stride}, s.groups);
  const bool wins = sum_last > sum_chwn, chosen = order == ConvOrder::kChwn;
  std::printf(" | all %5.2fx %s%s\n", sum_last / sum_chwn, chosen ? "chwn" : "last",
              wins == chosen ? "" : "  <- slower choice");
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 2;
  const std::string what = argc > 2 ? argv[2] : "tutorial";
  omp_set_num_threads(threads);
  std::printf(
      "%d threads; per direction (forward, input gradient, weight gradient): chwn us, "
      "channels-last us, ratio\n",
      threads);
  if (what == "tutorial")
    for (int64_t n : {16, 256})
      for (const Shape& s : {Shape{n, 1, 5, 28, 3, 1, 0, 1}, Shape{n, 5, 12, 13, 5, 1, 0, 1}})
        compare(s, threads, 0.3);
  if (what == "crossover")
    for (int64_t n : {16, 32, 256})
      for (int64_t size : {7, 14, 28, 56})
        for (int64_t c : {1, 3, 5, 8, 12, 16, 32, 64})
          for (int64_t k : {c, int64_t{8}, int64_t{16}, int64_t{64}}) {
            if (k != c && (k < c || (k == 8 && c > 3))) continue;
            if (n * size * size * std::max(c, k) > 16 * 1024 * 1024) continue;
            compare({n, c, k, size, 3, 1, 1, 1}, threads, 0.03);
          }
  if (what == "resnet")
    for (const Shape& s : {Shape{4, 3, 64, 224, 7, 2, 3, 1}, Shape{4, 64, 64, 56, 3, 1, 1, 1},
                           Shape{4, 64, 128, 56, 3, 2, 1, 1}, Shape{4, 64, 128, 56, 1, 2, 0, 1},
                           Shape{4, 128, 128, 28, 3, 1, 1, 1}, Shape{4, 256, 256, 14, 3, 1, 1, 1},
                           Shape{4, 512, 512, 7, 3, 1, 1, 1}})
      compare(s, threads, 0.5);
  return 0;
}
