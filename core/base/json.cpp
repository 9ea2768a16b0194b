// SPDX-License-Identifier: Apache-2.0
#include "base/json.h"

#include <fmt/format.h>

#include <cmath>

namespace tessera::json {
namespace {

// Bytes of the UTF-8 character at `at`, 0 if there is none.
size_t character(std::string_view s, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(s[i]); };
  const unsigned char first = byte(at);
  if (first < 0x80) return 1;
  const size_t size = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || at + size > s.size()) return 0;
  for (size_t i = at + 1; i < at + size; ++i)
    if ((byte(i) & 0xc0) != 0x80) return 0;
  const unsigned char second = byte(at + 1);
  const bool overlong = (first == 0xe0 && second < 0xa0) || (first == 0xf0 && second < 0x90);
  const bool outside = (first == 0xed && second > 0x9f) || (first == 0xf4 && second > 0x8f);
  return overlong || outside ? 0 : size;
}

}  // namespace

std::string text(std::string_view s) {
  std::string out = "\"";
  for (size_t i = 0; i < s.size();) {
    const char c = s[i];
    const size_t size = character(s, i);
    if (size == 0)
      out += "\\ufffd";
    else if (c == '"' || c == '\\')
      out += {'\\', c};
    else if (static_cast<unsigned char>(c) < 0x20)
      out += fmt::format("\\u{:04x}", static_cast<int>(c));
    else
      out += s.substr(i, size);
    i += std::max<size_t>(size, 1);
  }
  return out + "\"";
}

std::string text(double v, int digits) {
  return std::isfinite(v) ? fmt::format("{:.{}f}", v, digits) : "null";
}

std::string text(const Array& a) {
  return "[" + a.items() + "]";
}

std::string text(const Object& o) {
  return "{" + o.members() + "}";
}

}  // namespace tessera::json
