// SPDX-License-Identifier: Apache-2.0
// The tensors of one call: where each micro-batch of each replica reads its inputs and writes its
// outputs, by the rules of what is returned.
#pragma once

#include <cstddef>
#include <vector>

#include "base/arena.h"
#include "plan/program.h"
#include "runtime/run_config.h"

namespace tessera {

class CallPorts {
 public:
  CallPorts(const Program& program, const RunConfig& config);

  // For the run that begins; both vectors must outlive it.
  void bind(const std::vector<const void*>& inputs, const std::vector<void*>& outputs);

  std::byte* input_at(int64_t input, int64_t step, int64_t replica) const;
  // Where an output of a micro-batch is written.
  std::byte* output_at(size_t output, int64_t step, int64_t replica) const;
  // After the micro-batch, for outputs that are summed.
  void add_to_sum(size_t output, int64_t step, int64_t replica, const std::byte* from);

  // What the caller holds for all outputs of a call; may be more than an integer can say.
  static double output_bytes(const Program& program, const RunConfig& config);

 private:
  std::byte* kept(size_t output, int64_t at, int64_t replica) const;

  const std::vector<PortDesc>& inputs_;
  const std::vector<PortDesc>& outputs_;
  std::vector<int64_t> input_bytes_, output_bytes_;  // of one micro-batch
  std::vector<int64_t> input_groups_;                // by replica
  int64_t groups_, replicas_, accumulation_;
  std::vector<OutputRule> rules_;  // by output
  std::vector<int64_t> unkept_;    // by output: where in unkept_memory_ what is not returned goes
  Arena unkept_memory_;
  const std::vector<const void*>* given_ = nullptr;
  const std::vector<void*>* results_ = nullptr;
};

}  // namespace tessera
