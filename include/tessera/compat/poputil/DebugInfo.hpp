// SPDX-License-Identifier: Apache-2.0
// Arguments of a library function, for profiles. Only the name is kept.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "../poplar/DebugContext.hpp"

namespace poputil {

struct ArgType {};
template <typename... T>
std::vector<ArgType> ignored(const T&...) {
  return {};
}

class PoplibsOpDebugInfo : public poplar::DebugInfo {
 public:
  PoplibsOpDebugInfo(const poplar::DebugContext& dc, std::vector<ArgType> = {},
                     const std::string& api = "")
      : poplar::DebugInfo(dc, api) {}
  template <typename T>
  void addOutput(const T&) {}
  template <typename... T>
  void addOutputs(const T&...) {}
};

template <typename T>
class OpDebugInfo : public PoplibsOpDebugInfo {
  using PoplibsOpDebugInfo::PoplibsOpDebugInfo;
};

}  // namespace poputil

#define DI_ARGS(...) ::poputil::ignored(__VA_ARGS__)
#define DI_KEY_ARGS(...) ::poputil::ignored(__VA_ARGS__)
#define DI_STR(x) #x
