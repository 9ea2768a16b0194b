// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace poplar {

enum class VariableMappingMethod { NONE, LINEAR };

}  // namespace poplar
