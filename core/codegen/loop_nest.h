// SPDX-License-Identifier: Apache-2.0
// The order in which a region is walked: dims sorted by the memory of its outputs, neighbours
// merged where every slot allows it, the two innermost given to the compiled function.
#pragma once

#include <vector>

#include "codegen/typed_code.h"

namespace tessera::codegen {

struct LoopNest {
  Dims sizes;  // outermost first; the last two are rows and columns of the compiled function
  std::vector<bool> reduced;  // per dim
  std::vector<Dims> strides;  // per slot and dim: bytes; indices for index slots; for reductions:
                              // into the partials
  bool tiled = false;
  std::vector<bool> transposed;  // per slot

  // Of a reduction: the dims that stay, outermost first, and where each output has them (in
  // elements, per slot).
  Dims kept_sizes;
  std::vector<Dims> kept_strides;
  int64_t kept = 1;

  int64_t columns() const { return sizes.back(); }
  int64_t rows() const { return sizes[sizes.size() - 2]; }
};

LoopNest make_loop_nest(const TypedCode& code, bool keep_inner);

}  // namespace tessera::codegen
