// SPDX-License-Identifier: Apache-2.0
// Words, numbers and strings of the text form, with the line and column that errors name.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "base/attrs.h"
#include "base/error.h"

namespace tessera {

// Line and column of the text that a node was read from, from 1; 0 for a node that a pass made.
struct TextPlace {
  int32_t line = 0, column = 0;
};

class TextReader {
 protected:
  explicit TextReader(std::string_view text) : text_(text) {}

  template <typename... A>
  void check(bool ok, fmt::format_string<A...> message, A&&... args) const {
    if (!ok) fail(here(), fmt::format(message, std::forward<A>(args)...));
  }
  [[noreturn]] static void fail(TextPlace at, const std::string& message);
  TextPlace here() const { return {line_, static_cast<int32_t>(pos_ - line_start_ + 1)}; }

  bool at_end() const { return pos_ >= text_.size(); }
  // To the next character that is neither space nor comment.
  void skip();
  char peek();  // 0 at the end
  // What comes next without a space before it.
  bool follows(char c) const { return !at_end() && text_[pos_] == c; }
  bool take(char c);
  void expect(char c);

  std::string_view word();
  void expect_word(std::string_view w);
  // The word that comes next, which is left to be read again.
  std::string_view peek_word();
  std::string string();
  int64_t integer();
  int32_t integer_in(const char* what, int32_t low, int32_t high = INT32_MAX);
  // An int, or a float if it has a point or an exponent.
  Arg number();

  size_t size() const { return text_.size(); }

 private:
  std::string_view text_;
  size_t pos_ = 0;
  int32_t line_ = 1;
  size_t line_start_ = 0;
};

}  // namespace tessera
