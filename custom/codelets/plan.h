// SPDX-License-Identifier: Apache-2.0
// A compute set in the form in which it runs. Of every vertex there is an image: the object, the
// arrays that its fields point to and the values of its state. A thread copies it, sets the
// pointers into the tensors, and calls compute. Fields that are not contiguous, or not aligned, are
// gathered to a buffer of the thread and written back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "custom/codelets/library.h"

namespace tessera::codelets {

// A run of elements of a tensor.
struct Piece {
  uint32_t variable = 0;
  uint64_t begin = 0, count = 0;
};
using Pieces = std::vector<Piece>;

// What a pointer in an image points to.
enum : uint32_t { kImage = 0, kBuffer = 1, kTensor = 2 };

struct Link {
  uint32_t slot = 0;    // place of the pointer in the image
  uint32_t base = 0;    // kImage, kBuffer, or kTensor + inputs first, then outputs
  uint64_t offset = 0;  // bytes
  uint64_t bytes = 0;   // of the field
  uint32_t align = 1;
  int32_t direction = 0;
};

// Between the buffer and a tensor.
struct Transfer {
  uint64_t buffer = 0, offset = 0, bytes = 0;
  uint32_t tensor = 0;
  int32_t direction = 0;  // TESSERA_FIELD_READ: before compute, TESSERA_FIELD_WRITE: after it
};

struct PlannedVertex {
  const tessera_vertex* type = nullptr;
  const Library* library = nullptr;
  uint64_t image = 0;  // in Plan::images
  uint32_t image_bytes = 0;
  uint64_t first_link = 0, first_transfer = 0;
  uint32_t links = 0, transfers = 0;
  uint64_t buffer_bytes = 0;
};

// A variable before or after the set.
struct PlannedTensor {
  uint32_t variable = 0;
  int32_t dtype = 0;  // tessera_dtype
  uint64_t bytes = 0;
  std::vector<int64_t> shape;
  // Of an output: the input with what it held before, copied because not everything is written; or
  // -1.
  int32_t before = -1;
};

struct Plan {
  std::string name;  // of the compute set
  std::string op;    // of the registered op: the name and a digest of everything below
  std::vector<PlannedTensor> inputs, outputs;
  std::vector<PlannedVertex> vertices;
  std::vector<uint64_t> weight;  // bytes that the vertices up to here touch
  std::vector<std::byte> images;
  std::vector<Link> links;
  std::vector<Transfer> transfers;
  std::vector<std::shared_ptr<const Library>> libraries;
  uint64_t scratch_bytes = 0;  // of a thread
  uint64_t largest_image = 0;
  bool random = false, copies = false;
};

// Registers the op tessera.codelets::<plan.op>, unless it is there. The plan lives on.
void register_plan(std::unique_ptr<Plan> plan);

inline constexpr const char* kDomain = "tessera.codelets";

}  // namespace tessera::codelets
