// SPDX-License-Identifier: Apache-2.0
// The 16-bit floats of tensors: stored as bits, computed with as float.
#ifndef TESSERA_HALF_H
#define TESSERA_HALF_H

#include <cstdint>
#include <cstring>

namespace tessera {
namespace custom {

namespace detail {
inline float float_of(uint32_t bits) {
  float f;
  std::memcpy(&f, &bits, 4);
  return f;
}
inline uint32_t bits_of(float f) {
  uint32_t bits;
  std::memcpy(&bits, &f, 4);
  return bits;
}
inline float widen_half(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
  const uint32_t rest = h & 0x7fffu;
  if (rest >= 0x7c00u) return float_of(sign | 0x7f800000u | (rest & 0x3ffu) << 13);
  if (rest < 0x400u) {  // zero and denormals: rest * 2^-24
    const float small = static_cast<float>(rest) * 5.9604644775390625e-08f;
    return sign ? -small : small;
  }
  return float_of(sign | ((rest << 13) + 0x38000000u));
}
inline uint16_t round_half(float f) {
  const uint32_t bits = bits_of(f);
  const uint32_t sign = bits >> 16 & 0x8000u;
  uint32_t rest = bits & 0x7fffffffu;
  if (rest > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
  if (rest >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // rounds to infinity
  if (rest < 0x38800000u) {
    // Adding 0.5 leaves the denormal's bits, rounded, at the end of the fraction.
    const uint32_t shifted = bits_of(float_of(rest) + 0.5f) - 0x3f000000u;
    return static_cast<uint16_t>(sign | shifted);
  }
  rest += 0xfffu + (rest >> 13 & 1u);
  return static_cast<uint16_t>(sign | ((rest - 0x38000000u) >> 13));
}
inline uint16_t round_bfloat(float f) {
  const uint32_t bits = bits_of(f);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>(bits >> 16 | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}
}  // namespace detail

struct Half {
  uint16_t bits;
  Half() = default;
  Half(float f) : bits(detail::round_half(f)) {}
  operator float() const { return detail::widen_half(bits); }
};

struct BFloat16 {
  uint16_t bits;
  BFloat16() = default;
  BFloat16(float f) : bits(detail::round_bfloat(f)) {}
  operator float() const { return detail::float_of(static_cast<uint32_t>(bits) << 16); }
};

}  // namespace custom
}  // namespace tessera

#endif
