// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace popops {

enum class SortOrder { NONE, ASCENDING, DESCENDING };

}  // namespace popops
