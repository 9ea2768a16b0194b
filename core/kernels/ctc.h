// SPDX-License-Identifier: Apache-2.0
// Connectionist temporal classification of one sample in log space. States are the labels with a
// blank before, between and after them; vectors run along the states.
#pragma once

#include <cstdint>

#include "kernels/dispatch.h"

namespace tessera::kernels {

struct CtcSample {
  const float* logp = nullptr;  // [steps][classes], unit stride along the classes
  int64_t logp_step = 0, steps = 0, classes = 0;
  const int32_t* labels = nullptr;  // [states]: blank, first label, blank, ...
  int64_t states = 0;
};

// Floats of scratch that the functions below need for up to `states` states.
inline int64_t ctc_scratch_floats(int64_t states) {
  return 4 * ((states + 63) / 16 * 16);
}

struct CtcKernels {
  // Writes the log probabilities of all beginnings, alpha[step][state]; gives the loss.
  float (*forward)(const CtcSample&, float* alpha, int64_t alpha_step, float* scratch);
  // out[step][class] = grad * (exp(logp) - expected share of the class); needs a finite loss.
  void (*backward)(const CtcSample&, const float* alpha, int64_t alpha_step, float loss, float grad,
                   float* out, int64_t out_step, float* scratch);
};
TESSERA_KERNELS(CtcKernels, ctc)

}  // namespace tessera::kernels
