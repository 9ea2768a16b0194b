// SPDX-License-Identifier: Apache-2.0
// GFLOP/s of our matrix product with one and two threads beside oneDNN's matmul, and of the same
// product of f16 and bf16 with one thread, interleaved in one process and best of many rounds.
// Usage: gemm_bench [filter [rounds]]
#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <dnnl.hpp>
#include <string>
#include <vector>

#include "kernels/gemm.h"

namespace {

using namespace tessera::kernels;

struct Case {
  int64_t m, n, k;
  const char* form;  // NT: B stored [n,k]; NN; TN: A stored [k,m]
};

constexpr Case kCases[] = {
    {512, 768, 768, "NT"},   {512, 3072, 768, "NT"},  {512, 768, 3072, "NT"},
    {512, 768, 768, "NN"},   {512, 768, 3072, "NN"},  {512, 3072, 768, "NN"},
    {768, 768, 512, "TN"},   {3072, 768, 512, "TN"},  {768, 3072, 512, "TN"},
    {128, 768, 768, "NT"},   {128, 3072, 768, "NT"},  {128, 768, 3072, "NN"},
    {768, 768, 128, "TN"},   {256, 50257, 768, "NT"}, {256, 768, 50257, "NN"},
    {50257, 768, 256, "TN"}, {64, 512, 784, "NT"},    {64, 784, 512, "NN"},
    {512, 784, 64, "TN"},    {64, 256, 512, "NT"},    {16, 512, 784, "NT"},
    {16, 784, 512, "NN"},    {512, 784, 16, "TN"},    {16, 100, 972, "NT"},
    {16, 972, 100, "NN"},    {100, 972, 16, "TN"},    {16, 10, 100, "NT"},
    {16, 100, 10, "NN"},     {10, 100, 16, "TN"},     {128, 64, 128, "NN"},
    {128, 128, 64, "NT"},    {1, 1000, 512, "NT"},    {1024, 1024, 1024, "NN"},
    {1024, 1024, 1024, "NT"}};

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

template <typename F>
double best_seconds(F f, double flops, double& best) {
  const int repeat = std::max(1, static_cast<int>(2e8 / flops));
  const double start = now();
  for (int i = 0; i < repeat; ++i) f();
  best = std::min(best, (now() - start) / repeat);
  return best;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string filter = argc > 1 ? argv[1] : "";
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 15;
  std::printf("%-24s %9s %9s %9s %9s %9s %9s %9s   plan\n", "m,n,k", "ours x1", "f16 x1", "bf16 x1",
              "dnnl bf16", "dnnl x1", "ours x2", "dnnl x2");
  for (const Case& c : kCases) {
    const std::string name =
        std::to_string(c.m) + "," + std::to_string(c.n) + "," + std::to_string(c.k) + " " + c.form;
    if (name.find(filter) == std::string::npos) continue;
    const bool ta = c.form[0] == 'T', tb = c.form[1] == 'T';
    auto alloc = [](int64_t n) {
      auto* p = static_cast<float*>(std::aligned_alloc(64, (n * 4 + 127) / 64 * 64));
      for (int64_t i = 0; i < n; ++i) p[i] = static_cast<float>(i % 37) * 0.01f;
      return p;
    };
    float *a = alloc(c.m * c.k), *b = alloc(c.k * c.n), *out = alloc(c.m * c.n);
    GemmShape s{c.m, c.n, c.k, ta ? 1 : c.k, ta ? c.m : 1, tb ? 1 : c.n, tb ? c.k : 1, c.n, 1};
    GemmPlan plan = make_gemm_plan(s);
    const double flops = 2.0 * static_cast<double>(c.m * c.n * c.k);
    std::vector<void*> scratch;
    for (int t = 0; t < 2; ++t)
      scratch.push_back(std::aligned_alloc(
          64, std::max(gemm_scratch_bytes(plan, 1), gemm_scratch_bytes(plan, 2)) + 64));
    dnnl::engine eng(dnnl::engine::kind::cpu, 0);
    dnnl::stream stream(eng);
    using md = dnnl::memory::desc;
    using dt = dnnl::memory::data_type;
    md am({c.m, c.k}, dt::f32, dnnl::memory::dims{s.a_rs, s.a_cs});
    md bm({c.k, c.n}, dt::f32, dnnl::memory::dims{s.b_rs, s.b_cs});
    md cm({c.m, c.n}, dt::f32, dnnl::memory::dims{c.n, 1});
    double ours[2] = {1e9, 1e9}, theirs[2] = {1e9, 1e9}, half[2] = {1e9, 1e9}, their_half = 1e9;
    // Any bits do as operands in half precision; the sums are never looked at.
    GemmPlan half_plan[2];
    void* half_scratch[2];
    for (int i = 0; i < 2; ++i) {
      s.dtype = i == 0 ? tessera::DType::F16 : tessera::DType::BF16;
      half_plan[i] = make_gemm_plan(s);
      half_scratch[i] = std::aligned_alloc(64, gemm_scratch_bytes(half_plan[i], 1) + 64);
    }
    std::vector<uint16_t> ha(c.m * c.k, 0x3c01), hb(c.k * c.n, 0x3c01);
    md ah({c.m, c.k}, dt::bf16, dnnl::memory::dims{s.a_rs, s.a_cs});
    md bh({c.k, c.n}, dt::bf16, dnnl::memory::dims{s.b_rs, s.b_cs});
    for (int threads = 1; threads <= 2; ++threads) {
      omp_set_num_threads(threads);
      dnnl::matmul mm(dnnl::matmul::primitive_desc(dnnl::matmul::desc(am, bm, cm), eng));
      dnnl::memory ma(am, eng, a), mb(bm, eng, b), mc(cm, eng, out);
      dnnl::matmul hm(dnnl::matmul::primitive_desc(dnnl::matmul::desc(ah, bh, cm), eng));
      dnnl::memory mah(ah, eng, ha.data()), mbh(bh, eng, hb.data());
      for (int r = 0; r < rounds; ++r) {
        if (threads == 1) {
          for (int i = 0; i < 2; ++i)
            best_seconds(
                [&] { run_gemm(half_plan[i], ha.data(), hb.data(), out, 0, 1, half_scratch[i]); },
                flops, half[i]);
          best_seconds(
              [&] {
                hm.execute(stream,
                           {{DNNL_ARG_SRC, mah}, {DNNL_ARG_WEIGHTS, mbh}, {DNNL_ARG_DST, mc}});
                stream.wait();
              },
              flops, their_half);
        }
        best_seconds(
            [&] {
              if (threads == 1) {
                run_gemm(plan, a, b, out, 0, 1, scratch[0]);
              } else {
#pragma omp parallel num_threads(2)
                run_gemm(plan, a, b, out, omp_get_thread_num(), 2, scratch[omp_get_thread_num()]);
              }
            },
            flops, ours[threads - 1]);
        best_seconds(
            [&] {
              mm.execute(stream, {{DNNL_ARG_SRC, ma}, {DNNL_ARG_WEIGHTS, mb}, {DNNL_ARG_DST, mc}});
              stream.wait();
            },
            flops, theirs[threads - 1]);
      }
    }
    std::printf("%-24s %9.1f %9.1f %9.1f %9.1f %9.1f %9.1f %9.1f   %s%s%s%s rb %ld lb %ld kb %ld\n",
                name.c_str(), flops / ours[0] / 1e9, flops / half[0] / 1e9, flops / half[1] / 1e9,
                flops / their_half / 1e9, flops / theirs[0] / 1e9, flops / ours[1] / 1e9,
                flops / theirs[1] / 1e9, plan.swapped ? "swapped " : "",
                plan.pack_rows ? "pack_rows " : "", plan.pack_cols ? "pack_cols " : "",
                plan.through_tile ? "tile " : "", plan.row_block, plan.col_block, plan.k_block);
    std::fflush(stdout);
    for (void* p : {static_cast<void*>(a), static_cast<void*>(b), static_cast<void*>(out),
                    scratch[0], scratch[1], half_scratch[0], half_scratch[1]})
      std::free(p);
  }
}
