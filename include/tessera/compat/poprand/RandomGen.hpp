// SPDX-License-Identifier: Apache-2.0
// Random numbers. With a seed they are those of the seed and the modifier; without one they are
// new in each run, from the random state of the program (Options.randomSeed).
#pragma once

#include <cmath>
#include <vector>

#include "../detail/not_here.h"
#include "../poplar/Graph.hpp"
#include "../poplar/Program.hpp"
#include "../popops/ElementWise.hpp"

namespace poprand {

namespace detail {
inline poplar::Tensor draw(poplar::Graph& graph, const poplar::Tensor* seed, uint32_t modifier,
                           tessera_random what, const poplar::Tensor& reference,
                           const poplar::Type& type, const std::vector<double>& numbers,
                           poplar::program::Sequence& prog) {
  poplar::program::detail::Draft d(TESSERA_DO_RANDOM);
  if (seed) d.in = {seed->handle()};
  const poplar::Tensor out = graph.clone(type, reference);
  d.out = {out.handle()};
  d.reals = numbers;
  d.ints = {what, static_cast<int64_t>(numbers[0]), static_cast<int64_t>(numbers[1]), modifier};
  prog.add(d.make(graph.recorder()));
  return out;
}
inline bool is_real(const poplar::Type& t) {
  return t == poplar::FLOAT || t == poplar::HALF || t == poplar::BFLOAT16;
}
}  // namespace detail

// In [minVal, maxVal); of integers both may come.
inline poplar::Tensor uniform(poplar::Graph& graph, const poplar::Tensor* seed,
                              uint32_t seedModifier, const poplar::Tensor& reference,
                              const poplar::Type& outType, double minVal, double maxVal,
                              poplar::program::Sequence& prog, const poplar::DebugContext& = {}) {
  const tessera_random what =
      detail::is_real(outType) ? TESSERA_RANDOM_UNIFORM : TESSERA_RANDOM_INTEGER;
  return detail::draw(graph, seed, seedModifier, what, reference, outType, {minVal, maxVal, 0.0},
                      prog);
}
inline poplar::Tensor logUniform(poplar::Graph& graph, const poplar::Tensor* seed,
                                 uint32_t seedModifier, const poplar::Tensor& reference,
                                 const poplar::Type& outType, double minVal, double maxVal,
                                 poplar::program::Sequence& prog,
                                 const poplar::DebugContext& = {}) {
  const poplar::Tensor x = uniform(graph, seed, seedModifier, reference, outType, std::log(minVal),
                                   std::log(maxVal), prog);
  popops::expInPlace(graph, x, prog);
  return x;
}
inline poplar::Tensor normal(poplar::Graph& graph, const poplar::Tensor* seed,
                             uint32_t seedModifier, const poplar::Tensor& reference,
                             const poplar::Type& outType, double mean, double stdDev,
                             poplar::program::Sequence& prog, const poplar::DebugContext& = {}) {
  return detail::draw(graph, seed, seedModifier, TESSERA_RANDOM_NORMAL, reference, outType,
                      {mean, stdDev, 0.0}, prog);
}
// No further from the mean than alpha deviations.
inline poplar::Tensor truncatedNormal(poplar::Graph& graph, const poplar::Tensor* seed,
                                      uint32_t seedModifier, const poplar::Tensor& reference,
                                      const poplar::Type& outType, double mean, double stdDev,
                                      double alpha, poplar::program::Sequence& prog,
                                      const poplar::DebugContext& = {}) {
  return detail::draw(graph, seed, seedModifier, TESSERA_RANDOM_TRUNCATED, reference, outType,
                      {mean, stdDev, alpha}, prog);
}
// 1 with probability `prob`, else 0.
inline poplar::Tensor bernoulli(poplar::Graph& graph, const poplar::Tensor* seed,
                                uint32_t seedModifier, const poplar::Tensor& reference,
                                const poplar::Type& outType, double prob,
                                poplar::program::Sequence& prog, const poplar::DebugContext& = {}) {
  const poplar::Tensor u =
      uniform(graph, seed, seedModifier, reference, poplar::FLOAT, 0.0, 1.0, prog);
  return popops::map(graph, popops::expr::Cast(popops::expr::_1 < prob, outType), {u}, prog);
}
// What is kept is multiplied by `scale`; of what `noise` has one of, all is kept or none.
inline poplar::Tensor shapedDropout(poplar::Graph& graph, const poplar::Tensor* seed,
                                    uint32_t seedModifier, const poplar::Tensor& input,
                                    const poplar::Tensor& noise, double keepProbability,
                                    double scale, poplar::program::Sequence& prog,
                                    const poplar::DebugContext& = {}) {
  const poplar::Tensor keep =
      bernoulli(graph, seed, seedModifier, noise, input.elementType(), keepProbability, prog);
  return popops::map(graph, popops::expr::_1 * popops::expr::_2 * scale, {input, keep}, prog);
}
inline poplar::Tensor dropout(poplar::Graph& graph, const poplar::Tensor* seed,
                              uint32_t seedModifier, const poplar::Tensor& input,
                              const poplar::Tensor& reference, double keepProbability, double scale,
                              poplar::program::Sequence& prog, const poplar::DebugContext& = {}) {
  (void)reference;
  return shapedDropout(graph, seed, seedModifier, input, input, keepProbability, scale, prog);
}

TESSERA_NOT_HERE(setSeed)
TESSERA_NOT_HERE(getHwSeeds)
TESSERA_NOT_HERE(setHwSeeds)

}  // namespace poprand
