// SPDX-License-Identifier: Apache-2.0
// Numbers and texts as bytes. Integers take as many bytes as they need, equal texts are written
// once. What is read may be anything: nothing is taken from beyond the end, and a count is never
// larger than what is left.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/attrs.h"
#include "base/error.h"

namespace tessera {

using Bytes = std::span<const std::byte>;

inline Bytes bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}
inline std::string_view text_of(Bytes bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// What is read makes no sense.
class Damaged : public UserError {
 public:
  using UserError::UserError;
};

template <typename... Args>
void sound(bool ok, fmt::format_string<Args...> text, Args&&... args) {
  if (!ok) [[unlikely]]
    throw Damaged(fmt::format(text, std::forward<Args>(args)...));
}

class Writer {
 public:
  void number(uint64_t v);
  void integer(int64_t v);  // of either sign
  void real(double v);
  void flag(bool v) { number(v); }
  void text(std::string_view s);
  void arg(const Arg& a);
  template <typename T, typename F>
  void list(const std::vector<T>& items, const F& write) {
    number(items.size());
    for (const T& item : items) write(item);
  }
  std::string take();  // the texts, then what was written

 private:
  std::string out_;
  std::vector<std::string> texts_;
  std::unordered_map<std::string, size_t> known_;
};

class Reader {
 public:
  explicit Reader(Bytes bytes);

  uint64_t number();
  uint64_t number(uint64_t end, const char* what);  // below `end`
  int64_t integer();
  int64_t integer(int64_t low, int64_t high, const char* what);
  double real();
  bool flag() { return number(2, "flag") != 0; }
  const std::string& text();
  Arg arg(int depth = 0);
  size_t count();  // of things that take at least a byte each
  template <typename T, typename F>
  std::vector<T> list(const F& read) {
    std::vector<T> out;
    const size_t n = count();
    out.reserve(std::min<size_t>(n, 4096));
    for (size_t i = 0; i < n; ++i) out.push_back(read());
    return out;
  }
  void end() const { sound(at_ == bytes_.size(), "there is more than was written"); }

 private:
  Bytes bytes_;
  size_t at_ = 0;
  std::vector<std::string> texts_;
};

}  // namespace tessera
