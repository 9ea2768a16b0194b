// SPDX-License-Identifier: Apache-2.0
// Pooling by its definition.
#include "kernels/pool_reference.h"

#include <limits>
#include <type_traits>

#include "kernels/simd.h"

namespace tessera::kernels {

namespace {

using v3::bf16_to_f32;
using v3::f16_to_f32;
using v3::f32_to_bf16;
using v3::f32_to_f16;

float get(Half v) {
  return f16_to_f32(v.bits);
}
float get(BFloat v) {
  return bf16_to_f32(v.bits);
}
template <typename T>
T get(T v) {
  return v;
}

template <typename T>
T put(decltype(get(T{})) v) {
  if constexpr (std::is_same_v<T, Half>)
    return {f32_to_f16(v)};
  else if constexpr (std::is_same_v<T, BFloat>)
    return {f32_to_bf16(v)};
  else
    return v;
}

int64_t divisor_of(const PoolWindow& r, const PoolWindow& c, int64_t divisor) {
  return divisor != 0 ? divisor : int64_t{r.size} * c.size;
}

template <typename T>
T& pixel(const PoolPlane<T>& p, int64_t row, int64_t col) {
  return p.at[row * p.row + col * p.col];
}

}  // namespace

template <typename T>
void PoolReference<T>::max(const PoolAxis& h, const PoolAxis& w, PoolPlane<const T> x,
                           PoolPlane<T> y, PoolPlane<int64_t> index) {
  using V = decltype(get(T{}));
  for (int64_t oh = 0; oh < h.out; ++oh)
    for (int64_t ow = 0; ow < w.out; ++ow) {
      const PoolWindow r = h.windows[oh], c = w.windows[ow];
      V best = std::is_floating_point_v<V> ? -std::numeric_limits<V>::infinity()
                                           : std::numeric_limits<V>::lowest();
      int64_t where = r.begin * w.in + c.begin;
      for (int64_t a = 0; a < r.count; ++a)
        for (int64_t b = 0; b < c.count; ++b) {
          const int64_t i = r.begin + a * r.step, j = c.begin + b * c.step;
          const V v = get(pixel(x, i, j));
          if (v > best || v != v) best = v, where = i * w.in + j;
        }
      pixel(y, oh, ow) = put<T>(best);
      if (index.at) pixel(index, oh, ow) = where;
    }
}

template <typename T>
void PoolReference<T>::max_grad(const PoolAxis& h, const PoolAxis& w, PoolPlane<const T> gy,
                                PoolPlane<const int64_t> index, PoolPlane<T> gx) {
  using V = decltype(get(T{}));
  for (int64_t ih = 0; ih < h.in; ++ih)
    for (int64_t iw = 0; iw < w.in; ++iw) {
      V sum = 0;
      for (int64_t oh = h.covers[ih].first; oh < h.covers[ih].last; ++oh)
        for (int64_t ow = w.covers[iw].first; ow < w.covers[iw].last; ++ow)
          if (pixel(index, oh, ow) == ih * w.in + iw) sum += get(pixel(gy, oh, ow));
      pixel(gx, ih, iw) = put<T>(sum);
    }
}

template <typename T>
void PoolReference<T>::avg(const PoolAxis& h, const PoolAxis& w, int64_t divisor,
                           PoolPlane<const T> x, PoolPlane<T> y) {
  using V = decltype(get(T{}));
  for (int64_t oh = 0; oh < h.out; ++oh)
    for (int64_t ow = 0; ow < w.out; ++ow) {
      const PoolWindow r = h.windows[oh], c = w.windows[ow];
      V sum = 0;
      for (int64_t a = 0; a < r.count; ++a)
        for (int64_t b = 0; b < c.count; ++b) sum += get(pixel(x, r.begin + a, c.begin + b));
      pixel(y, oh, ow) = put<T>(sum / static_cast<V>(divisor_of(r, c, divisor)));
    }
}

template <typename T>
void PoolReference<T>::avg_grad(const PoolAxis& h, const PoolAxis& w, int64_t divisor,
                                PoolPlane<const T> gy, PoolPlane<T> gx) {
  using V = decltype(get(T{}));
  for (int64_t ih = 0; ih < h.in; ++ih)
    for (int64_t iw = 0; iw < w.in; ++iw) {
      V sum = 0;
      for (int64_t oh = h.covers[ih].first; oh < h.covers[ih].last; ++oh)
        for (int64_t ow = w.covers[iw].first; ow < w.covers[iw].last; ++ow)
          sum += get(pixel(gy, oh, ow)) /
                 static_cast<V>(divisor_of(h.windows[oh], w.windows[ow], divisor));
      pixel(gx, ih, iw) = put<T>(sum);
    }
}

template struct PoolReference<float>;
template struct PoolReference<double>;
template struct PoolReference<int64_t>;
template struct PoolReference<int32_t>;
template struct PoolReference<Half>;
template struct PoolReference<BFloat>;

}  // namespace tessera::kernels
