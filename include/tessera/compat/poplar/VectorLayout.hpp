// SPDX-License-Identifier: Apache-2.0
// How the device stores a vector field; here every layout is a pointer and a size.
#pragma once

namespace poplar {

enum class VectorLayout { NOT_VECTOR, SPAN, ONE_PTR, SHORT_SPAN, SCALED_PTR32, COMPACT_PTR };
enum class VectorListLayout {
  NOT_VECTOR,
  ONE_PTR,
  SCALED_PTR32,
  DELTAN,
  DELTANELEMENTS,
  COMPACT_DELTAN
};

}  // namespace poplar
