// SPDX-License-Identifier: Apache-2.0
// Beam search over the label sequences that the output of a CTC-trained model stands for.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tessera::kernels {

struct BeamSearch {
  int64_t steps = 0, classes = 0, blank = 0, width = 0;

  // Bytes of scratch that run() needs.
  int64_t scratch_bytes() const;

  // The `top` likeliest sequences of the first `length` steps of logp[step][class], best first:
  // their log probabilities, their lengths, and labels[top][steps] filled up with blanks. False if
  // a step has a NaN or an infinite probability; then nothing is found.
  bool run(const float* logp, int64_t logp_step, int64_t length, int64_t top, float* score,
           int32_t* lengths, int32_t* labels, std::byte* scratch) const;
};

}  // namespace tessera::kernels
