// SPDX-License-Identifier: Apache-2.0
// The counter-based random generator of dropout and random fills. A number depends only on (key,
// stream, element index), so forward and backward, and any number of threads, agree without storing
// a mask.
//
// Exact definition (codegen/ emits the same), all arithmetic modulo 2^32, >> logical:
//   mix(x):  x ^= x >> 17; x *= 0xed5ad4bb; x ^= x >> 11; x *= 0xac4c1b51; x ^= x >> 15; x *=
//   0x31848bab;
//            x ^= x >> 14
//   fold(v): low32(v) ^ (high32(v) * 0x85ebca6b)                    64-bit word to 32 bits
//   k0 = fold(key[0]) (seed), k1 = fold(key[1]) (call counter)
//   a = mix(k0 ^ mix(stream + 0x9e3779b9))
//   b = mix(k1 + mix(a + high32(index)))
//   x = low32(index) ^ a;  x ^= x >> 17; x *= 0xed5ad4bb; x ^= x >> 11;  x += b;
//   x *= 0xac4c1b51; x ^= x >> 15; x *= 0x31848bab; x ^= x >> 14        the 32 random bits
//   uniform = float(x >> 8) * 2^-24                                     in [0, 1), exact
// a and b are the same for every element of a tensor with fewer than 2^32 elements; hoist them.
#pragma once

#include <cstdint>

namespace tessera::kernels {

inline uint32_t random_mix(uint32_t x) {
  x ^= x >> 17;
  x *= 0xed5ad4bbu;
  x ^= x >> 11;
  x *= 0xac4c1b51u;
  x ^= x >> 15;
  x *= 0x31848babu;
  x ^= x >> 14;
  return x;
}

inline uint32_t random_fold(int64_t v) {
  auto u = static_cast<uint64_t>(v);
  return static_cast<uint32_t>(u) ^ (static_cast<uint32_t>(u >> 32) * 0x85ebca6bu);
}

struct RandomKey {
  uint32_t a, b;
};

inline RandomKey random_key(uint32_t k0, uint32_t k1, uint32_t stream, uint32_t index_high = 0) {
  uint32_t a = random_mix(k0 ^ random_mix(stream + 0x9e3779b9u));
  return {a, random_mix(k1 + random_mix(a + index_high))};
}

inline uint32_t random_bits(RandomKey key, uint32_t index_low) {
  uint32_t x = index_low ^ key.a;
  x ^= x >> 17;
  x *= 0xed5ad4bbu;
  x ^= x >> 11;
  x += key.b;
  x *= 0xac4c1b51u;
  x ^= x >> 15;
  x *= 0x31848babu;
  x ^= x >> 14;
  return x;
}

inline float uniform_of_bits(uint32_t bits) {
  return static_cast<float>(static_cast<int32_t>(bits >> 8)) * 0x1p-24f;
}

inline float uniform(uint32_t k0, uint32_t k1, uint32_t stream, uint64_t index) {
  RandomKey key = random_key(k0, k1, stream, static_cast<uint32_t>(index >> 32));
  return uniform_of_bits(random_bits(key, static_cast<uint32_t>(index)));
}

// 64 random bits for samplers that need more than 24: the words 2 * index and 2 * index + 1.
inline uint64_t random_word(RandomKey key, uint32_t index) {
  return uint64_t{random_bits(key, 2 * index)} << 32 | random_bits(key, 2 * index + 1);
}
inline uint64_t random_word(int64_t key0, int64_t key1, uint32_t stream, uint64_t index) {
  return random_word(
      random_key(random_fold(key0), random_fold(key1), stream, static_cast<uint32_t>(index >> 31)),
      static_cast<uint32_t>(index));
}

}  // namespace tessera::kernels
