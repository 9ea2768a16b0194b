// SPDX-License-Identifier: Apache-2.0
// What convolution means: its geometry, and the plain loops on arbitrary strides that every faster
// implementation is tested against and that serve the cases nothing else takes.
#pragma once

#include <array>
#include <cstdint>

namespace tessera::kernels {

// Up to three spatial dims; unused leading ones have size 1, stride 1 and no padding, so a 2-D
// convolution is a 3-D one of depth 1. All names follow the forward direction: x (n, c, in...),
// w (k, c / groups, kernel...), y (n, k, out...).
struct ConvShape {
  int64_t n = 1, c = 1, k = 1, groups = 1;
  std::array<int64_t, 3> in{1, 1, 1}, out{1, 1, 1}, kernel{1, 1, 1};
  std::array<int64_t, 3> stride{1, 1, 1}, pad{0, 0, 0}, dilation{1, 1, 1};

  int64_t group_c() const { return c / groups; }
  int64_t group_k() const { return k / groups; }
  int64_t taps() const { return kernel[0] * kernel[1] * kernel[2]; }
  int64_t out_pixels() const { return out[0] * out[1] * out[2]; }
  // Multiply-adds of the forward pass, taps that fall into the padding included.
  int64_t macs() const { return n * k * group_c() * taps() * out_pixels(); }
};

// Strides in elements of a 5-D tensor (n, c, d, h, w) or (k, c, kd, kh, kw).
using Strides5 = std::array<int64_t, 5>;

// y = conv(x, w) + bias; bias may be null.
template <typename T>
void conv_forward_reference(const ConvShape& s, const T* x, const Strides5& xs, const T* w,
                            const Strides5& ws, const T* bias, T* y, const Strides5& ys);
// gx = gradient of x; bias (per channel of x) serves transposed convolution and may be null.
template <typename T>
void conv_input_grad_reference(const ConvShape& s, const T* gy, const Strides5& gys, const T* w,
                               const Strides5& ws, const T* bias, T* gx, const Strides5& gxs);
template <typename T>
void conv_weight_grad_reference(const ConvShape& s, const T* gy, const Strides5& gys, const T* x,
                                const Strides5& xs, T* gw, const Strides5& gws);

}  // namespace tessera::kernels
