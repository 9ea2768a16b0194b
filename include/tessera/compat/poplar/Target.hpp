// SPDX-License-Identifier: Apache-2.0
// The machine that programs are written for: one IPU of 1472 tiles.
#pragma once

#include <cstddef>

#include "Type.hpp"

namespace poplar {

enum class TargetType { IPU, IPU_MODEL, CPU };

class Target {
 public:
  unsigned getNumTiles() const { return 1472; }
  unsigned getTilesPerIPU() const { return 1472; }
  unsigned getNumIPUs() const { return 1; }
  unsigned getNumWorkerContexts() const { return 6; }
  unsigned getBytesPerTile() const { return 638976; }
  unsigned getDataPathWidth() const { return 64; }
  unsigned getAtomicStoreGranularity() const { return 4; }
  unsigned getExchangeBytesPerCycle() const { return 4; }
  double getTileClockFrequency() const { return 1.85e9; }
  unsigned getVectorWidth(const Type& t) const {
    const unsigned bytes = detail::type_text(t).bytes;
    return bytes >= 4 || bytes == 0 ? 2 : 4;
  }
  unsigned getFloatVectorWidth() const { return 2; }
  unsigned getHalfVectorWidth() const { return 4; }
  std::size_t getTypeSize(const Type& t) const { return detail::type_text(t).bytes; }
  TargetType getTargetType() const { return TargetType::IPU; }
};

}  // namespace poplar
