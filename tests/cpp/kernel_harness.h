// SPDX-License-Identifier: Apache-2.0
// Runs one kernel the way the engine does: every tensor in a region of its own, a team of threads,
// a barrier.
#pragma once

#include <barrier>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "ops/kernel.h"
#include "ops/run_error.h"

namespace tessera::test {

// Memory of one tensor; `ref` gives it to a StepDesc.
struct Buffer {
  std::vector<std::byte> memory;
  TensorRef ref;

  Buffer(DType dtype, Dims shape) : Buffer(dtype, shape, dense_strides(shape)) {}
  Buffer(DType dtype, Dims shape, Dims strides) {
    int64_t last = 0;
    for (size_t i = 0; i < shape.size(); ++i) last += (shape[i] - 1) * strides[i];
    memory.resize((last + 1) * size_of(dtype) + 64);
    ref = {dtype, std::move(shape), std::move(strides), 0, 0};
  }
  template <typename T>
  T* data() {
    return reinterpret_cast<T*>(memory.data());
  }
  template <typename T>
  T& at(const Dims& index) {
    int64_t o = 0;
    for (size_t i = 0; i < index.size(); ++i) o += index[i] * ref.strides[i];
    return data<T>()[o];
  }
  // Normal numbers from a fixed seed over the whole memory.
  Buffer& randn(unsigned seed, float scale = 1.0f) {
    std::mt19937 gen(seed);
    std::normal_distribution<float> normal(0.0f, scale);
    for (size_t i = 0; i < (memory.size() - 64) / 4; ++i) data<float>()[i] = normal(gen);
    return *this;
  }
};

// Strides of a dense tensor whose dims are ordered minor to major by `order`.
inline Dims strides_of_order(const Dims& shape, const std::vector<int>& order) {
  Dims strides(shape.size());
  int64_t step = 1;
  for (int d : order) {
    strides[d] = step;
    step *= shape[d];
  }
  return strides;
}

// What the kernels run by this harness have reported.
inline RunErrors& harness_errors() {
  static RunErrors errors;
  return errors;
}

// Runs the kernel of `desc` on these buffers (regions are assigned here) with a team of `threads`.
inline void run_step(KernelPtr (*make)(const StepDesc&), StepDesc desc, std::vector<Buffer*> inputs,
                     std::vector<Buffer*> outputs, int threads) {
  std::vector<std::byte*> bases;
  for (Buffer* b : inputs) {
    TensorRef r = b->ref;
    r.region = static_cast<int32_t>(bases.size());
    bases.push_back(b->memory.data());
    desc.inputs.push_back(r);
  }
  for (Buffer* b : outputs) {
    TensorRef r = b->ref;
    r.region = static_cast<int32_t>(bases.size());
    bases.push_back(b->memory.data());
    desc.outputs.push_back(r);
  }
  KernelPtr kernel = make(desc);
  if (kernel->top_level() || kernel->single_thread()) threads = 1;
  std::vector<std::byte> scratch(kernel->scratch_bytes(threads) + 64);
  auto* aligned =
      reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(scratch.data()) + 63) / 64 * 64);
  std::barrier barrier(threads);
  auto body = [&](int t) {
    RunCtx c{t,
             threads,
             bases.data(),
             aligned,
             [](void* b) { static_cast<std::barrier<>*>(b)->arrive_and_wait(); },
             &barrier,
             &harness_errors(),
             "somewhere"};
    kernel->run(c);
  };
  std::vector<std::thread> team;
  for (int t = 1; t < threads; ++t) team.emplace_back(body, t);
  body(0);
  for (auto& t : team) t.join();
}

}  // namespace tessera::test
