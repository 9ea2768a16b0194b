// SPDX-License-Identifier: Apache-2.0
// The two recursions of CTC, sixteen states at a time.
#include <cmath>
#include <utility>

#include "kernels/ctc.h"
#include "kernels/simd.h"

namespace tessera::kernels::TESSERA_ISA {

namespace {

constexpr float kNever = -__builtin_inff();
constexpr int64_t kPad = 16;  // states that no path reaches, before and after the real ones

// Rows of scratch, each with room for padding on both sides.
struct Rows {
  float *last, *next, *skip, *emit;

  Rows(float* scratch, int64_t states) {
    const int64_t room = (states + 63) / 16 * 16;
    float** all[4] = {&last, &next, &skip, &emit};
    for (int i = 0; i < 4; ++i) {
      float* row = scratch + i * room;
      for (int64_t s = 0; s < room; ++s) row[s] = kNever;
      *all[i] = row + kPad;
    }
  }
};

// log(exp(a) + exp(b) + exp(c)), -inf if all are.
TESSERA_INLINE f32x16 log_sum(f32x16 a, f32x16 b, f32x16 c) {
  f32x16 top = max(max(a, b), c);
  top = top == broadcast(kNever) ? f32x16{} : top;
  return log(exp(a - top) + exp(b - top) + exp(c - top)) + top;
}

// 0 where a path may jump over the blank before a state, else -inf.
void find_skips(const CtcSample& x, float* skip) {
  for (int64_t s = 3; s < x.states; s += 2)
    if (x.labels[s] != x.labels[s - 2]) skip[s] = 0;
}

void find_emissions(const CtcSample& x, int64_t t, float* emit) {
  const float* row = x.logp + t * x.logp_step;
  for (int64_t s = 0; s < x.states; ++s) emit[s] = row[x.labels[s]];
}

float forward(const CtcSample& x, float* alpha, int64_t alpha_step, float* scratch) {
  if (x.steps == 0) return x.states == 1 ? 0.0f : -kNever;
  Rows r(scratch, x.states);
  find_skips(x, r.skip);
  find_emissions(x, 0, r.emit);
  r.last[0] = r.emit[0];
  if (x.states > 1) r.last[1] = r.emit[1];
  std::memcpy(alpha, r.last, static_cast<size_t>(x.states) * 4);
  for (int64_t t = 1; t < x.steps; ++t) {
    find_emissions(x, t, r.emit);
    float* to = alpha + t * alpha_step;
    for (int64_t s = 0; s < x.states; s += 16) {
      const f32x16 a =
          log_sum(load(r.last + s), load(r.last + s - 1), load(r.last + s - 2) + load(r.skip + s)) +
          load(r.emit + s);
      store_n(r.next + s, a, x.states - s);
      store_n(to + s, a, x.states - s);
    }
    std::swap(r.last, r.next);
  }
  const float a = r.last[x.states - 1], b = x.states > 1 ? r.last[x.states - 2] : kNever;
  const float top = a > b ? a : b;
  if (top == kNever) return -kNever;
  return -(std::log(std::exp(a - top) + std::exp(b - top)) + top);
}

void backward(const CtcSample& x, const float* alpha, int64_t alpha_step, float loss, float grad,
              float* out, int64_t out_step, float* scratch) {
  Rows r(scratch, x.states);
  find_skips(x, r.skip);
  for (int64_t t = x.steps - 1; t >= 0; --t) {
    find_emissions(x, t, r.emit);
    if (t == x.steps - 1) {
      for (int64_t s = x.states - 1; s >= 0 && s >= x.states - 2; --s) r.next[s] = r.emit[s];
    } else {
      for (int64_t s = 0; s < x.states; s += 16)
        store_n(r.next + s,
                log_sum(load(r.last + s), load(r.last + s + 1),
                        load(r.last + s + 2) + load(r.skip + s + 2)) +
                    load(r.emit + s),
                x.states - s);
    }
    std::swap(r.last, r.next);
    // How likely each state is at this step; `next` is free until the next one.
    const float* a = alpha + t * alpha_step;
    for (int64_t s = 0; s < x.states; s += 16)
      store_n(r.next + s,
              exp(load_n(a + s, x.states - s) + load(r.last + s) - load(r.emit + s) + loss),
              x.states - s);
    const float* row = x.logp + t * x.logp_step;
    float* to = out + t * out_step;
    for (int64_t c = 0; c < x.classes; c += 16) {
      const f32x16 p = load_n(row + c, x.classes - c);
      // As eager, a class of probability zero makes a NaN.
      store_n(to + c, grad * (exp(p) + (p - p)), x.classes - c);
    }
    for (int64_t s = 0; s < x.states; ++s) to[x.labels[s]] -= grad * r.next[s];
    for (int64_t s = 0; s < x.states; ++s) r.next[s] = kNever;
  }
}

}  // namespace

const CtcKernels ctc_table{forward, backward};

}  // namespace tessera::kernels::TESSERA_ISA
