// SPDX-License-Identifier: Apache-2.0
// Shared by the files of the norm family: a tensor as batch, channel and spatial steps, and which
// of the three goes through the vector lanes.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>

#include "ops/kernel.h"

namespace tessera {

KernelPtr make_group_norm(const StepDesc& d);
KernelPtr make_batch_norm(const StepDesc& d);

// Elements below which one thread is faster than two.
constexpr int64_t kNormSmall = 8192;

// x[batch, channel, spatial...] with the spatial dims merged into one.
struct Planes {
  int64_t n = 0, c = 0, s = 0;                   // steps
  int64_t batch = 0, channels = 0, spatial = 0;  // sizes
};

// Nothing if the spatial dims are not contiguous.
std::optional<Planes> planes_of(const TensorRef& t);
Planes require_planes(const TensorRef& t);

enum class PlaneMode : uint8_t {
  kRows,      // spatial is contiguous: row-major
  kChannels,  // channels are contiguous: channels-last
  kBatch,     // samples are contiguous: batch in the lanes
  kScattered  // anything else, or tensors of different order
};
PlaneMode plane_mode(std::initializer_list<Planes> tensors);

}  // namespace tessera
