// SPDX-License-Identifier: Apache-2.0
#include "ir/text_reader.h"

#include <charconv>
#include <cmath>
#include <limits>

namespace tessera {
namespace {

bool is_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '.';
}

}  // namespace

void TextReader::fail(TextPlace at, const std::string& message) {
  throw UserError(fmt::format("[ir] line {}, column {}: {}", at.line, at.column, message));
}

void TextReader::skip() {
  while (!at_end()) {
    char c = text_[pos_];
    if (c == '\n') ++line_, line_start_ = pos_ + 1;
    if (c == '/' && text_.substr(pos_, 2) == "//") {
      while (!at_end() && text_[pos_] != '\n') ++pos_;
      continue;
    }
    if (c != ' ' && c != '\n' && c != '\t' && c != '\r') return;
    ++pos_;
  }
}

char TextReader::peek() {
  skip();
  return at_end() ? '\0' : text_[pos_];
}

bool TextReader::take(char c) {
  if (peek() != c || at_end()) return false;
  ++pos_;
  return true;
}

void TextReader::expect(char c) {
  check(take(c), "expected '{}', found '{}'", c,
        at_end() ? "the end" : std::string(1, text_[pos_]));
}

std::string_view TextReader::word() {
  const std::string_view w = peek_word();
  pos_ += w.size();
  return w;
}

void TextReader::expect_word(std::string_view w) {
  std::string_view got = word();
  check(got == w, "expected `{}`, found `{}`", w, got);
}

std::string_view TextReader::peek_word() {
  skip();
  size_t end = pos_;
  while (end < text_.size() && is_word(text_[end])) ++end;
  check(end > pos_, "expected a word");
  return text_.substr(pos_, end - pos_);
}

std::string TextReader::string() {
  expect('"');
  std::string out;
  while (!at_end() && text_[pos_] != '"') {
    char c = text_[pos_++];
    if (c == '\\' && !at_end()) {
      c = text_[pos_++];
      if (c == 'n') c = '\n';
    } else if (c == '\n') {
      ++line_, line_start_ = pos_;
    }
    out += c;
  }
  check(!at_end(), "a string does not end");
  ++pos_;
  return out;
}

int64_t TextReader::integer() {
  skip();
  int64_t v = 0;
  auto [end, ec] = std::from_chars(text_.data() + pos_, text_.data() + text_.size(), v);
  check(ec != std::errc::result_out_of_range, "an integer is out of range");
  check(ec == std::errc(), "expected an integer");
  pos_ = static_cast<size_t>(end - text_.data());
  return v;
}

int32_t TextReader::integer_in(const char* what, int32_t low, int32_t high) {
  const int64_t v = integer();
  check(v >= low && v <= high, "{} {} is out of range", what, v);
  return static_cast<int32_t>(v);
}

Arg TextReader::number() {
  const char sign = peek();
  const size_t start = pos_;
  if (sign == '-' || sign == '+') ++pos_;
  bool real = false;
  while (!at_end()) {
    char c = text_[pos_];
    if (c >= '0' && c <= '9') {
    } else if (c == '.' || c == 'e' || c == 'E' || c == 'i' || c == 'n' || c == 'f' || c == 'a') {
      real = true;
    } else if ((c == '-' || c == '+') && (text_[pos_ - 1] == 'e' || text_[pos_ - 1] == 'E')) {
    } else {
      break;
    }
    ++pos_;
  }
  std::string_view t = text_.substr(start, pos_ - start);
  if (t == "inf") return Arg::real(std::numeric_limits<double>::infinity());
  if (t == "-inf") return Arg::real(-std::numeric_limits<double>::infinity());
  if (t == "nan") return Arg::real(std::nan(""));
  if (real) {
    double v = 0;
    auto [end, ec] = std::from_chars(t.data(), t.data() + t.size(), v);
    // from_chars reports denormals out of range on some libraries; strtod reads them.
    if (ec == std::errc::result_out_of_range) v = std::strtod(std::string(t).c_str(), nullptr);
    check(ec != std::errc::invalid_argument && end == t.data() + t.size(), "`{}` is not a number",
          t);
    return Arg::real(v);
  }
  int64_t v = 0;
  auto [end, ec] = std::from_chars(t.data(), t.data() + t.size(), v);
  check(ec == std::errc() && end == t.data() + t.size(), "`{}` is not a number", t);
  return Arg::integer(v);
}

}  // namespace tessera
