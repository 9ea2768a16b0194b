// SPDX-License-Identifier: Apache-2.0
// Pooling by its definition.
#include "kernels/pool_reference.h"

#include <limits>
#include <type_traits>

namespace tessera::kernels {

namespace {

int64_t divisor_of(const PoolRows::Window& r, const PoolWindow& c, int64_t divisor) {
  return divisor != 0 ? divisor : r.size * c.size;
}

template <typename T>
T& pixel(const PoolPlane<T>& p, int64_t row, int64_t col) {
  return p.at[row * p.row + col * p.col];
}

}  // namespace

template <typename T>
void PoolReference<T>::max(const PoolRows& h, const PoolAxis& w, PoolPlane<const T> x,
                           PoolPlane<T> y, PoolPlane<int64_t> index) {
  for (int64_t oh = 0; oh < h.out; ++oh)
    for (int64_t ow = 0; ow < w.out; ++ow) {
      const PoolWindow& c = w.windows[ow];
      const auto rows = h.rows_of(h.windows[oh]);
      T best = std::is_floating_point_v<T> ? -std::numeric_limits<T>::infinity()
                                           : std::numeric_limits<T>::lowest();
      int64_t where = (rows.empty() ? 0 : rows[0]) * w.in + c.begin;
      for (int64_t i : rows)
        for (int64_t b = 0; b < c.count; ++b) {
          const int64_t j = c.begin + b * c.step;
          const T v = pixel(x, i, j);
          if (v > best || v != v) best = v, where = i * w.in + j;
        }
      pixel(y, oh, ow) = best;
      if (index.at) pixel(index, oh, ow) = where;
    }
}

template <typename T>
void PoolReference<T>::max_grad(const PoolRows& h, const PoolAxis& w, PoolPlane<const T> gy,
                                PoolPlane<const int64_t> index, PoolPlane<T> gx) {
  for (int64_t ih = 0; ih < h.in; ++ih)
    for (int64_t iw = 0; iw < w.in; ++iw) {
      T sum = 0;
      for (int64_t oh : h.readers_of(ih))
        for (int64_t ow = w.covers[iw].first; ow < w.covers[iw].last; ++ow)
          if (pixel(index, oh, ow) == ih * w.in + iw) sum += pixel(gy, oh, ow);
      pixel(gx, ih, iw) = sum;
    }
}

template <typename T>
void PoolReference<T>::avg(const PoolRows& h, const PoolAxis& w, int64_t divisor,
                           PoolPlane<const T> x, PoolPlane<T> y) {
  for (int64_t oh = 0; oh < h.out; ++oh)
    for (int64_t ow = 0; ow < w.out; ++ow) {
      const PoolRows::Window& r = h.windows[oh];
      const PoolWindow& c = w.windows[ow];
      T sum = 0;
      for (int64_t row : h.rows_of(r))
        for (int64_t b = 0; b < c.count; ++b) sum += pixel(x, row, c.begin + b);
      pixel(y, oh, ow) = sum / static_cast<T>(divisor_of(r, c, divisor));
    }
}

template <typename T>
void PoolReference<T>::avg_grad(const PoolRows& h, const PoolAxis& w, int64_t divisor,
                                PoolPlane<const T> gy, PoolPlane<T> gx) {
  for (int64_t ih = 0; ih < h.in; ++ih)
    for (int64_t iw = 0; iw < w.in; ++iw) {
      T sum = 0;
      for (int64_t oh : h.readers_of(ih))
        for (int64_t ow = w.covers[iw].first; ow < w.covers[iw].last; ++ow)
          sum +=
              pixel(gy, oh, ow) / static_cast<T>(divisor_of(h.windows[oh], w.windows[ow], divisor));
      pixel(gx, ih, iw) = sum;
    }
}

template struct PoolReference<float>;
template struct PoolReference<double>;
template struct PoolReference<int64_t>;
template struct PoolReference<int32_t>;
template struct PoolReference<int16_t>;
template struct PoolReference<int8_t>;
template struct PoolReference<uint8_t>;

}  // namespace tessera::kernels
