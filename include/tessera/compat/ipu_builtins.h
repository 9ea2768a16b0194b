// SPDX-License-Identifier: Apache-2.0
// Builtins of the device's compiler that codelets call by name.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <poplar/VectorTypes.hpp>

namespace tessera_codelet {

// Random numbers: one stream per thread, set before each vertex, so that results do not depend on
// which thread runs it. The generator is splitmix64.
inline std::uint64_t& random_state() {
  static thread_local std::uint64_t state = 0;
  return state;
}

inline std::uint64_t random64() {
  std::uint64_t z = (random_state() += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

inline float random_unit() {
  return static_cast<float>(random64() >> 40) * 0x1p-24f;
}

inline float random_normal() {
  float r = std::sqrt(-2.0f * std::log(1.0f - random_unit()));
  return r * std::cos(6.28318530717958648f * random_unit());
}

}  // namespace tessera_codelet

inline unsigned __builtin_ipu_urand32() {
  return static_cast<unsigned>(tessera_codelet::random64() >> 32);
}
inline unsigned long long __builtin_ipu_urand64() {
  return tessera_codelet::random64();
}
inline float __builtin_ipu_urand_f32() {
  return tessera_codelet::random_unit() - 0.5f;
}
inline half __builtin_ipu_urand_f16() {
  return static_cast<half>(tessera_codelet::random_unit() - 0.5f);
}
inline float2 __builtin_ipu_f32v2grand() {
  float a = tessera_codelet::random_normal();
  return float2{a, tessera_codelet::random_normal()};
}
// There is one tile here.
inline unsigned __builtin_ipu_get_tile_id() {
  return 0;
}
inline unsigned __builtin_ipu_get_scount_l() {
  return 0;
}
inline unsigned __builtin_ipu_get_scount_u() {
  return 0;
}
// Control registers of the device: what is written goes nowhere.
inline unsigned __builtin_ipu_get(unsigned) {
  return 0;
}
inline void __builtin_ipu_put(unsigned, unsigned) {}
inline void __builtin_ipu_uput(unsigned, unsigned) {}
inline int __builtin_ipu_max(int a, int b) {
  return a > b ? a : b;
}
inline int __builtin_ipu_min(int a, int b) {
  return a < b ? a : b;
}
inline unsigned __builtin_ipu_clz(unsigned x) {
  return x == 0 ? 32u : __builtin_clz(x);
}
inline unsigned __builtin_ipu_popc(unsigned x) {
  return __builtin_popcount(x);
}
