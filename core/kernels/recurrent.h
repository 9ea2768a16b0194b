// SPDX-License-Identifier: Apache-2.0
// The element-wise part of one time step of a recurrent layer, forward and backward, on some rows
// and a range of hidden units. Gates of a row stand side by side, `hidden` elements apart; every
// pointer is at the first row and the first unit of the range.
#pragma once

#include <cstdint>

#include "kernels/dispatch.h"

namespace tessera::kernels {

enum class Cell { kLstm, kGru, kTanh, kRelu };

struct CellForward {
  int64_t rows = 0, units = 0, hidden = 0;
  const float* x = nullptr;  // projected input with all biases but GRU's `bias`
  int64_t x_row = 0;
  // In: the product of the last state with its weights, if `product`. Out: gates i f g o of an
  // LSTM; r z n of a GRU and as the fourth the state's part of n. For the plain cells not written.
  float* gates = nullptr;
  int64_t gates_row = 0;
  bool product = false;
  const float* bias = nullptr;   // GRU: added to the state's part of n
  const float* state = nullptr;  // last cell (LSTM) or last hidden state (GRU); null: zeros
  int64_t state_row = 0;
  float* c = nullptr;  // LSTM: new cell; may be `state`
  float* h = nullptr;
  int64_t c_row = 0, h_row = 0;
  float* copy = nullptr;  // where h is also written, if not null
  int64_t copy_row = 0;
};

struct CellBackward {
  int64_t rows = 0, units = 0, hidden = 0;
  float* dh = nullptr;  // gradient from later steps; GRU: becomes the part that bypasses the gates
  int64_t dh_row = 0;
  const float* gy = nullptr;  // gradient of the output of this step, null: zeros
  int64_t gy_row = 0;
  const float* gates = nullptr;  // as CellForward leaves them; plain cells: the output
  int64_t gates_row = 0;
  const float* state = nullptr;  // as in CellForward
  int64_t state_row = 0;
  const float* c = nullptr;  // LSTM
  float* dc = nullptr;
  int64_t c_row = 0, dc_row = 0;
  float* dx = nullptr;  // gradient of the projected input
  int64_t dx_row = 0;
  float* dp = nullptr;  // GRU: gradient of the product with the state
  int64_t dp_row = 0;
  float* copy = nullptr;  // what is multiplied with the weights next: dp of a GRU, else dx
  int64_t copy_row = 0;
};

struct RecurrentKernels {
  void (*forward[4])(const CellForward&);  // by Cell
  void (*backward[4])(const CellBackward&);
};
TESSERA_KERNELS(RecurrentKernels, recurrent)

}  // namespace tessera::kernels
