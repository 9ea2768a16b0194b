// SPDX-License-Identifier: Apache-2.0
// Checksums of files, which find damage, and digests, which name contents: two texts of one digest
// are taken for the same.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace tessera {

// CRC-32C. `before` is the checksum of what comes before.
uint32_t checksum(std::span<const std::byte> bytes, uint32_t before = 0);

// SHA-256.
class Digest {
 public:
  // Parts are told apart: ("ab", "c") and ("a", "bc") give different digests.
  Digest& part(std::string_view text);
  std::string hex();  // ends it

 private:
  void add(const uint8_t* bytes, size_t count);
  void block(const uint8_t* bytes);

  uint32_t state_[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                        0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  uint8_t rest_[64] = {};
  size_t kept_ = 0;
  uint64_t total_ = 0;
};

}  // namespace tessera
