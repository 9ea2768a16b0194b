// SPDX-License-Identifier: Apache-2.0
#include "base/env.h"

#include <cstdlib>

namespace tessera {

namespace env {
#define ROW(name, variable, fallback, doc) \
  std::string name() {                     \
    const char* v = std::getenv(variable); \
    return v && *v ? v : fallback;         \
  }
TESSERA_ENV(ROW)
#undef ROW

int debug_level() {
  return std::atoi(debug().c_str());
}
}  // namespace env

std::vector<std::string> split_commas(const std::string& text) {
  std::vector<std::string> out;
  size_t start = 0;
  while (start < text.size()) {
    size_t end = text.find(',', start);
    if (end == std::string::npos) end = text.size();
    if (end > start) out.push_back(text.substr(start, end - start));
    start = end + 1;
  }
  return out;
}

}  // namespace tessera
