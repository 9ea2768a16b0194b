// SPDX-License-Identifier: Apache-2.0
// Convolution by its definition. Sums of floats are kept in double, so that the result can judge
// the others.
#include "kernels/conv_reference.h"

#include <type_traits>

namespace tessera::kernels {

namespace {

template <typename T>
using Sum = std::conditional_t<std::is_floating_point_v<T>, double, int64_t>;

using Pixel = std::array<int64_t, 3>;

int64_t at(const Strides5& s, int64_t a, int64_t b, const Pixel& p) {
  return a * s[0] + b * s[1] + p[0] * s[2] + p[1] * s[3] + p[2] * s[4];
}

template <typename F>
void for_each_pixel(const Pixel& size, F f) {
  Pixel p;
  for (p[0] = 0; p[0] < size[0]; ++p[0])
    for (p[1] = 0; p[1] < size[1]; ++p[1])
      for (p[2] = 0; p[2] < size[2]; ++p[2]) f(p);
}

// Input pixel that output pixel `o` sees through tap `t`; false if it lies in the padding.
bool input_pixel(const ConvShape& s, const Pixel& o, const Pixel& t, Pixel& in) {
  for (int d = 0; d < 3; ++d) {
    in[d] = o[d] * s.stride[d] - s.pad[d] + t[d] * s.dilation[d];
    if (in[d] < 0 || in[d] >= s.in[d]) return false;
  }
  return true;
}

// Output pixel that sees input pixel `in` through tap `t`, if there is one.
bool output_pixel(const ConvShape& s, const Pixel& in, const Pixel& t, Pixel& o) {
  for (int d = 0; d < 3; ++d) {
    int64_t v = in[d] + s.pad[d] - t[d] * s.dilation[d];
    if (v < 0 || v % s.stride[d] != 0 || v / s.stride[d] >= s.out[d]) return false;
    o[d] = v / s.stride[d];
  }
  return true;
}

}  // namespace

template <typename T>
void conv_forward_reference(const ConvShape& s, const T* x, const Strides5& xs, const T* w,
                            const Strides5& ws, const T* bias, T* y, const Strides5& ys) {
  const int64_t gc = s.group_c(), gk = s.group_k();
  for (int64_t n = 0; n < s.n; ++n)
    for (int64_t k = 0; k < s.k; ++k)
      for_each_pixel(s.out, [&](const Pixel& o) {
        Sum<T> sum = bias ? bias[k] : T(0);
        const int64_t c0 = k / gk * gc;
        for_each_pixel(s.kernel, [&](const Pixel& t) {
          Pixel in;
          if (!input_pixel(s, o, t, in)) return;
          for (int64_t c = 0; c < gc; ++c)
            sum += static_cast<Sum<T>>(x[at(xs, n, c0 + c, in)]) * w[at(ws, k, c, t)];
        });
        y[at(ys, n, k, o)] = static_cast<T>(sum);
      });
}

template <typename T>
void conv_input_grad_reference(const ConvShape& s, const T* gy, const Strides5& gys, const T* w,
                               const Strides5& ws, const T* bias, T* gx, const Strides5& gxs) {
  const int64_t gc = s.group_c(), gk = s.group_k();
  for (int64_t n = 0; n < s.n; ++n)
    for (int64_t c = 0; c < s.c; ++c)
      for_each_pixel(s.in, [&](const Pixel& in) {
        Sum<T> sum = bias ? bias[c] : T(0);
        const int64_t k0 = c / gc * gk;
        for_each_pixel(s.kernel, [&](const Pixel& t) {
          Pixel o;
          if (!output_pixel(s, in, t, o)) return;
          for (int64_t k = k0; k < k0 + gk; ++k)
            sum += static_cast<Sum<T>>(gy[at(gys, n, k, o)]) * w[at(ws, k, c % gc, t)];
        });
        gx[at(gxs, n, c, in)] = static_cast<T>(sum);
      });
}

template <typename T>
void conv_weight_grad_reference(const ConvShape& s, const T* gy, const Strides5& gys, const T* x,
                                const Strides5& xs, T* gw, const Strides5& gws) {
  const int64_t gc = s.group_c(), gk = s.group_k();
  for (int64_t k = 0; k < s.k; ++k)
    for (int64_t c = 0; c < gc; ++c)
      for_each_pixel(s.kernel, [&](const Pixel& t) {
        Sum<T> sum = 0;
        const int64_t xc = k / gk * gc + c;
        for_each_pixel(s.out, [&](const Pixel& o) {
          Pixel in;
          if (!input_pixel(s, o, t, in)) return;
          for (int64_t n = 0; n < s.n; ++n)
            sum += static_cast<Sum<T>>(gy[at(gys, n, k, o)]) * x[at(xs, n, xc, in)];
        });
        gw[at(gws, k, c, t)] = static_cast<T>(sum);
      });
}

#define INSTANCE(T)                                                                              \
  template void conv_forward_reference<T>(const ConvShape&, const T*, const Strides5&, const T*, \
                                          const Strides5&, const T*, T*, const Strides5&);       \
  template void conv_input_grad_reference<T>(const ConvShape&, const T*, const Strides5&,        \
                                             const T*, const Strides5&, const T*, T*,            \
                                             const Strides5&);                                   \
  template void conv_weight_grad_reference<T>(const ConvShape&, const T*, const Strides5&,       \
                                              const T*, const Strides5&, T*, const Strides5&);
INSTANCE(float)
INSTANCE(double)
INSTANCE(int64_t)
INSTANCE(int32_t)
#undef INSTANCE

}  // namespace tessera::kernels
