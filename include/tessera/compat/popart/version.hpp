// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace popart {
namespace core {

inline std::string versionString() {
  return "3.3.0";
}
inline std::string packageHash() {
  return "tessera";
}

}  // namespace core
}  // namespace popart
