// SPDX-License-Identifier: Apache-2.0
// Names of vertices that are templates: templateVertex("V", FLOAT, 2) is "V<float,2>".
#pragma once

#include <string>

#include "../poplar/Type.hpp"

namespace poputil {

namespace detail {
inline std::string argument(bool b) {
  return b ? "true" : "false";
}
inline std::string argument(const char* s) {
  return s;
}
inline std::string argument(const std::string& s) {
  return s;
}
inline std::string argument(const poplar::Type& t) {
  return t.toString();
}
template <typename T>
std::string argument(const T& x) {
  return std::to_string(x);
}
inline std::string arguments() {
  return "";
}
template <typename First, typename... Rest>
std::string arguments(const First& first, const Rest&... rest) {
  const std::string more = arguments(rest...);
  return argument(first) + (more.empty() ? "" : "," + more);
}
}  // namespace detail

template <typename... Args>
std::string templateVertex(const std::string& name, const Args&... args) {
  return name + "<" + detail::arguments(args...) + ">";
}
template <typename... Args>
std::string templateVertexParams(bool first, const Args&... args) {
  return (first ? "<" : ",") + detail::arguments(args...);
}

}  // namespace poputil
