// SPDX-License-Identifier: Apache-2.0
// Texts with {} for each argument. What stands in the braces is not looked at.
#pragma once

#include <sstream>
#include <string>
#include <vector>

namespace tessera_compat {

template <typename T>
void put(std::ostream& os, const T& x) {
  os << x;
}
template <typename T>
void put(std::ostream& os, const std::vector<T>& values) {
  os << '[';
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (i) os << ' ';
    put(os, values[i]);
  }
  os << ']';
}

inline void format_rest(std::ostringstream& os, const std::string& text, std::size_t at) {
  os << text.substr(at);
}

template <typename First, typename... Rest>
void format_rest(std::ostringstream& os, const std::string& text, std::size_t at,
                 const First& first, const Rest&... rest) {
  const std::size_t open = text.find('{', at);
  const std::size_t close = open == std::string::npos ? open : text.find('}', open);
  if (close == std::string::npos) {
    os << text.substr(at);
    return;
  }
  os << text.substr(at, open - at);
  put(os, first);
  format_rest(os, text, close + 1, rest...);
}

template <typename... Args>
std::string format(const std::string& text, const Args&... args) {
  std::ostringstream os;
  format_rest(os, text, 0, args...);
  return os.str();
}

}  // namespace tessera_compat
