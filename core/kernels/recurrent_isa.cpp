// SPDX-License-Identifier: Apache-2.0
// Gates of LSTM, GRU and plain recurrent cells, sixteen units at a time.
#include <algorithm>

#include "kernels/recurrent.h"
#include "kernels/simd.h"

namespace tessera::kernels::TESSERA_ISA {

namespace {

TESSERA_INLINE f32x16 sigmoid(f32x16 x) {
  return 1.0f / (1.0f + exp(-x));
}

// A polynomial near zero, where the formula with exp would cancel.
TESSERA_INLINE f32x16 tanh(f32x16 x) {
  const f32x16 a = abs(x), z = x * x;
  f32x16 far = 1.0f - 2.0f / (exp(a + a) + 1.0f);
  far = x < f32x16{} ? -far : far;
  f32x16 p = broadcast(-5.70498872745e-3f);
  p = fma(p, z, broadcast(2.06390887954e-2f));
  p = fma(p, z, broadcast(-5.37397155531e-2f));
  p = fma(p, z, broadcast(1.33314422036e-1f));
  p = fma(p, z, broadcast(-3.33332819422e-1f));
  return a < broadcast(0.625f) ? fma(p * z, x, x) : far;
}

// Whole vectors take the plain loads; the tail is known only once per row.
template <bool Tail>
TESSERA_INLINE f32x16 get(const float* p, int64_t n) {
  return Tail ? load_n(p, n) : load(p);
}
template <bool Tail>
TESSERA_INLINE void put(float* p, f32x16 v, int64_t n) {
  Tail ? store_n(p, v, n) : store(p, v);
}

// Calls body.operator()<Tail>(row, unit, count) over all vectors.
template <typename F>
TESSERA_INLINE void for_vectors(int64_t rows, int64_t units, F body) {
  for (int64_t r = 0; r < rows; ++r) {
    int64_t u = 0;
    for (; u + 16 <= units; u += 16) body.template operator()<false>(r, u, int64_t{16});
    if (u < units) body.template operator()<true>(r, u, units - u);
  }
}

void lstm_forward(const CellForward& s) {
  const int64_t gate = s.hidden;
  for_vectors(
      s.rows,
      s.units, [&]<bool Tail>(int64_t r, int64_t u, int64_t n) __attribute__((always_inline)) {
        const float* x = s.x + r * s.x_row + u;
        float* g = s.gates + r * s.gates_row + u;
        f32x16 in[4];
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
          in[i] = get<Tail>(x + i * gate, n);
          if (s.product) in[i] += get<Tail>(g + i * gate, n);
        }
        const f32x16 i = sigmoid(in[0]), f = sigmoid(in[1]), c_in = tanh(in[2]), o = sigmoid(in[3]);
        f32x16 c = i * c_in;
        if (s.state) c = fma(f, get<Tail>(s.state + r * s.state_row + u, n), c);
        const f32x16 h = o * tanh(c);
        put<Tail>(g, i, n);
        put<Tail>(g + gate, f, n);
        put<Tail>(g + 2 * gate, c_in, n);
        put<Tail>(g + 3 * gate, o, n);
        put<Tail>(s.c + r * s.c_row + u, c, n);
        put<Tail>(s.h + r * s.h_row + u, h, n);
        if (s.copy) put<Tail>(s.copy + r * s.copy_row + u, h, n);
      });
}

void lstm_backward(const CellBackward& s) {
  const int64_t gate = s.hidden;
  for_vectors(
      s.rows,
      s.units, [&]<bool Tail>(int64_t r, int64_t u, int64_t n) __attribute__((always_inline)) {
        const float* g = s.gates + r * s.gates_row + u;
        const f32x16 i = get<Tail>(g, n), f = get<Tail>(g + gate, n),
                     c_in = get<Tail>(g + 2 * gate, n), o = get<Tail>(g + 3 * gate, n);
        f32x16 dh = get<Tail>(s.dh + r * s.dh_row + u, n);
        if (s.gy) dh += get<Tail>(s.gy + r * s.gy_row + u, n);
        const f32x16 t = tanh(get<Tail>(s.c + r * s.c_row + u, n));
        float* dc_at = s.dc + r * s.dc_row + u;
        const f32x16 dc = get<Tail>(dc_at, n) + dh * o * (1.0f - t * t);
        f32x16 d[4];
        d[0] = dc * c_in * i * (1.0f - i);
        d[1] =
            s.state ? dc * get<Tail>(s.state + r * s.state_row + u, n) * f * (1.0f - f) : f32x16{};
        d[2] = dc * i * (1.0f - c_in * c_in);
        d[3] = dh * t * o * (1.0f - o);
        put<Tail>(dc_at, dc * f, n);
        float* dx = s.dx + r * s.dx_row + u;
        float* copy = s.copy + r * s.copy_row + u;
#pragma GCC unroll 4
        for (int k = 0; k < 4; ++k) {
          put<Tail>(dx + k * gate, d[k], n);
          put<Tail>(copy + k * gate, d[k], n);
        }
      });
}

void gru_forward(const CellForward& s) {
  const int64_t gate = s.hidden;
  for_vectors(
      s.rows,
      s.units, [&]<bool Tail>(int64_t r, int64_t u, int64_t n) __attribute__((always_inline)) {
        const float* x = s.x + r * s.x_row + u;
        float* g = s.gates + r * s.gates_row + u;
        f32x16 in_r = get<Tail>(x, n), in_z = get<Tail>(x + gate, n), q{};
        if (s.product) {
          in_r += get<Tail>(g, n);
          in_z += get<Tail>(g + gate, n);
          q = get<Tail>(g + 3 * gate, n);
        }
        if (s.bias) q += get<Tail>(s.bias + u, n);
        const f32x16 reset = sigmoid(in_r), z = sigmoid(in_z);
        const f32x16 fresh = tanh(fma(reset, q, get<Tail>(x + 2 * gate, n)));
        const f32x16 last = s.state ? get<Tail>(s.state + r * s.state_row + u, n) : f32x16{};
        const f32x16 h = fma(z, last - fresh, fresh);
        put<Tail>(g, reset, n);
        put<Tail>(g + gate, z, n);
        put<Tail>(g + 2 * gate, fresh, n);
        put<Tail>(g + 3 * gate, q, n);
        put<Tail>(s.h + r * s.h_row + u, h, n);
        if (s.copy) put<Tail>(s.copy + r * s.copy_row + u, h, n);
      });
}

void gru_backward(const CellBackward& s) {
  const int64_t gate = s.hidden;
  for_vectors(
      s.rows,
      s.units, [&]<bool Tail>(int64_t r, int64_t u, int64_t n) __attribute__((always_inline)) {
        const float* g = s.gates + r * s.gates_row + u;
        const f32x16 reset = get<Tail>(g, n), z = get<Tail>(g + gate, n),
                     fresh = get<Tail>(g + 2 * gate, n), q = get<Tail>(g + 3 * gate, n);
        float* dh_at = s.dh + r * s.dh_row + u;
        f32x16 dh = get<Tail>(dh_at, n);
        if (s.gy) dh += get<Tail>(s.gy + r * s.gy_row + u, n);
        const f32x16 last = s.state ? get<Tail>(s.state + r * s.state_row + u, n) : f32x16{};
        const f32x16 dn = dh * (1.0f - z) * (1.0f - fresh * fresh);
        const f32x16 dz = dh * (last - fresh) * z * (1.0f - z);
        const f32x16 dr = dn * q * reset * (1.0f - reset), dq = dn * reset;
        put<Tail>(dh_at, dh * z, n);
        float* dx = s.dx + r * s.dx_row + u;
        put<Tail>(dx, dr, n);
        put<Tail>(dx + gate, dz, n);
        put<Tail>(dx + 2 * gate, dn, n);
        for (float* to : {s.dp + r * s.dp_row + u, s.copy + r * s.copy_row + u}) {
          put<Tail>(to, dr, n);
          put<Tail>(to + gate, dz, n);
          put<Tail>(to + 2 * gate, dq, n);
        }
      });
}

template <bool Relu>
void plain_forward(const CellForward& s) {
  for_vectors(
      s.rows,
      s.units, [&]<bool Tail>(int64_t r, int64_t u, int64_t n) __attribute__((always_inline)) {
        f32x16 in = get<Tail>(s.x + r * s.x_row + u, n);
        if (s.product) in += get<Tail>(s.gates + r * s.gates_row + u, n);
        const f32x16 h = Relu ? (in < f32x16{} ? f32x16{} : in) : tanh(in);  // NaN stays
        put<Tail>(s.h + r * s.h_row + u, h, n);
        if (s.copy) put<Tail>(s.copy + r * s.copy_row + u, h, n);
      });
}

template <bool Relu>
void plain_backward(const CellBackward& s) {
  for_vectors(
      s.rows,
      s.units, [&]<bool Tail>(int64_t r, int64_t u, int64_t n) __attribute__((always_inline)) {
        const f32x16 h = get<Tail>(s.gates + r * s.gates_row + u, n);
        f32x16 dh = get<Tail>(s.dh + r * s.dh_row + u, n);
        if (s.gy) dh += get<Tail>(s.gy + r * s.gy_row + u, n);
        const f32x16 d = Relu ? (h > f32x16{} ? dh : f32x16{}) : dh * (1.0f - h * h);
        put<Tail>(s.dx + r * s.dx_row + u, d, n);
        put<Tail>(s.copy + r * s.copy_row + u, d, n);
      });
}

}  // namespace

const RecurrentKernels recurrent_table{
    {lstm_forward, gru_forward, plain_forward<false>, plain_forward<true>},
    {lstm_backward, gru_backward, plain_backward<false>, plain_backward<true>}};

}  // namespace tessera::kernels::TESSERA_ISA
