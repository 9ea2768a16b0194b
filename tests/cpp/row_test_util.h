// SPDX-License-Identifier: Apache-2.0
// What the tests of the row kernels share: walking logical indices, running with one and two
// threads, and comparing with a reference computed in double.
#pragma once

#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "kernel_harness.h"
#include "ops/registry.h"

namespace tessera::test {

// Calls f for every index of the shape, row-major.
inline void each_index(const Dims& shape, const std::function<void(const Dims&)>& f) {
  Dims index(shape.size(), 0);
  for (int64_t k = 0, n = product(shape); k < n; ++k) {
    f(index);
    for (size_t i = index.size(); i-- > 0;) {
      if (++index[i] < shape[i]) break;
      index[i] = 0;
    }
  }
}

// Overwrites all memory with a pattern that no result has.
inline void poison(Buffer& b) {
  std::memset(b.memory.data(), 0xcd, b.memory.size());
}

// Runs with one and with two threads from poisoned outputs; the bits must agree. Leaves the result
// in `outputs`.
inline void run_both(KernelPtr (*make)(const StepDesc&), const StepDesc& d,
                     const std::vector<Buffer*>& inputs, const std::vector<Buffer*>& outputs) {
  for (Buffer* b : outputs) poison(*b);
  run_step(make, d, inputs, outputs, 1);
  std::vector<std::vector<std::byte>> first;
  for (Buffer* b : outputs) {
    first.push_back(b->memory);
    poison(*b);
  }
  run_step(make, d, inputs, outputs, 2);
  for (size_t i = 0; i < outputs.size(); ++i) CHECK(outputs[i]->memory == first[i]);
}

// Largest error of the f32 buffer against want(index), relative to max(1, |want|).
inline double max_error(Buffer& got, const std::function<double(const Dims&)>& want) {
  double worst = 0;
  each_index(got.ref.shape, [&](const Dims& i) {
    const double w = want(i), g = got.at<float>(i);
    if (std::isnan(w) && std::isnan(g)) return;
    if (std::isinf(w) && w == g) return;
    const double e = std::abs(g - w) / std::max(1.0, std::abs(w));
    worst = std::isnan(e) ? std::numeric_limits<double>::infinity() : std::max(worst, e);
  });
  return worst;
}

inline StepDesc step(Op op, std::vector<Arg> args) {
  StepDesc d;
  d.op = op;
  d.args.list = std::move(args);
  return d;
}

// Result types of a call on operands of these types.
inline std::vector<TensorType> infer_call(std::vector<TensorType> (*infer)(const Graph&,
                                                                           const Node&),
                                          Op op, const std::vector<TensorType>& operands,
                                          std::vector<Arg> args) {
  Graph g;
  Node n;
  n.op = op;
  for (const TensorType& t : operands)
    n.operands.push_back(g.add_source(SourceKind::kInput, "x", t));
  n.args.list = std::move(args);
  return infer(g, n);
}

}  // namespace tessera::test
