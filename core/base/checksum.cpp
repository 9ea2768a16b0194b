// SPDX-License-Identifier: Apache-2.0
#include "base/checksum.h"

#include <fmt/format.h>
#include <immintrin.h>

#include <bit>
#include <cstring>

namespace tessera {
namespace {

// Fractional parts of the cube roots of the first 64 primes.
constexpr uint32_t kRounds[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

}  // namespace

uint32_t checksum(std::span<const std::byte> bytes, uint32_t before) {
  uint64_t crc = before ^ 0xffffffffu;
  const std::byte* p = bytes.data();
  size_t left = bytes.size();
  for (; left >= 8; p += 8, left -= 8) {
    uint64_t word;
    std::memcpy(&word, p, 8);
    crc = _mm_crc32_u64(crc, word);
  }
  auto tail = static_cast<uint32_t>(crc);
  for (; left > 0; ++p, --left) tail = _mm_crc32_u8(tail, static_cast<uint8_t>(*p));
  return tail ^ 0xffffffffu;
}

void Digest::block(const uint8_t* bytes) {
  uint32_t w[64];
  for (int i = 0; i < 16; ++i)
    w[i] = uint32_t{bytes[4 * i]} << 24 | uint32_t{bytes[4 * i + 1]} << 16 |
           uint32_t{bytes[4 * i + 2]} << 8 | bytes[4 * i + 3];
  for (int i = 16; i < 64; ++i) {
    const uint32_t a = w[i - 15], b = w[i - 2];
    w[i] = w[i - 16] + (std::rotr(a, 7) ^ std::rotr(a, 18) ^ (a >> 3)) + w[i - 7] +
           (std::rotr(b, 17) ^ std::rotr(b, 19) ^ (b >> 10));
  }
  uint32_t s[8];
  std::memcpy(s, state_, sizeof s);
  for (int i = 0; i < 64; ++i) {
    const uint32_t sum1 = std::rotr(s[4], 6) ^ std::rotr(s[4], 11) ^ std::rotr(s[4], 25);
    const uint32_t sum0 = std::rotr(s[0], 2) ^ std::rotr(s[0], 13) ^ std::rotr(s[0], 22);
    const uint32_t choice = (s[4] & s[5]) ^ (~s[4] & s[6]);
    const uint32_t most = (s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]);
    const uint32_t one = s[7] + sum1 + choice + kRounds[i] + w[i];
    std::memmove(s + 1, s, 7 * sizeof(uint32_t));
    s[4] += one;
    s[0] = one + sum0 + most;
  }
  for (int i = 0; i < 8; ++i) state_[i] += s[i];
}

void Digest::add(const uint8_t* bytes, size_t count) {
  total_ += count;
  while (count > 0) {
    const size_t now = std::min(count, sizeof rest_ - kept_);
    std::memcpy(rest_ + kept_, bytes, now);
    kept_ += now;
    bytes += now;
    count -= now;
    if (kept_ < sizeof rest_) return;
    block(rest_);
    kept_ = 0;
  }
}

Digest& Digest::part(std::string_view text) {
  const uint64_t size = text.size();
  uint8_t length[8];
  std::memcpy(length, &size, sizeof length);
  add(length, sizeof length);
  add(reinterpret_cast<const uint8_t*>(text.data()), text.size());
  return *this;
}

std::string Digest::hex() {
  const uint64_t bits = total_ * 8;
  const uint8_t one = 0x80, zero = 0;
  add(&one, 1);
  while (kept_ != 56) add(&zero, 1);
  uint8_t length[8];
  for (int i = 0; i < 8; ++i) length[i] = static_cast<uint8_t>(bits >> (56 - 8 * i));
  add(length, sizeof length);
  std::string out;
  for (uint32_t word : state_) out += fmt::format("{:08x}", word);
  return out;
}

}  // namespace tessera
