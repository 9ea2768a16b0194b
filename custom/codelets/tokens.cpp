// SPDX-License-Identifier: Apache-2.0
#include "custom/codelets/tokens.h"

#include <algorithm>
#include <cctype>

namespace tessera::codelets {
namespace {

bool starts_word(char c) {
  return std::isalpha(static_cast<unsigned char>(c)) != 0 || c == '_';
}
bool in_word(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
}

// # 12 "file" 1 3: whether the lines that follow are of a system header.
bool read_marker(std::string_view line, std::vector<std::string>* files) {
  size_t open = line.find('"'), close = line.rfind('"');
  if (open == std::string_view::npos || close <= open) return false;
  std::string_view flags = line.substr(close + 1), file = line.substr(open + 1, close - open - 1);
  bool system = flags.find('3') != std::string_view::npos;
  if (!system && files != nullptr && !file.empty() && file.front() != '<' &&
      std::find(files->begin(), files->end(), file) == files->end())
    files->emplace_back(file);
  return system;
}

}  // namespace

bool is_word(Token t) {
  return !t.empty() && starts_word(t.front());
}

std::vector<Token> tokenize(std::string_view text, std::vector<std::string>* files) {
  std::vector<Token> tokens;
  bool system = false, line_start = true;
  size_t i = 0;
  while (i < text.size()) {
    char c = text[i];
    if (line_start && c == '#') {
      size_t end = std::min(text.find('\n', i), text.size());
      if (text.substr(i, 2) == "# ") system = read_marker(text.substr(i, end - i), files);
      i = end;
      continue;
    }
    if (c == '\n') line_start = true;
    if (std::isspace(static_cast<unsigned char>(c)) != 0) {
      ++i;
      continue;
    }
    line_start = false;
    size_t begin = i;
    if (system) {
      i = std::min(text.find('\n', i), text.size());
      continue;
    }
    if (starts_word(c)) {
      while (i < text.size() && in_word(text[i])) ++i;
    } else if (std::isdigit(static_cast<unsigned char>(c)) != 0) {
      while (i < text.size() && (in_word(text[i]) || text[i] == '.' || text[i] == '\'')) ++i;
    } else if (c == '"' || c == '\'') {
      for (++i; i < text.size() && text[i] != c; ++i)
        if (text[i] == '\\') ++i;
      i = std::min(i + 1, text.size());
    } else if (text.substr(i, 2) == "::") {
      i += 2;
    } else {
      ++i;
    }
    tokens.push_back(text.substr(begin, i - begin));
  }
  return tokens;
}

std::string join(const Token* begin, const Token* end) {
  std::string text;
  for (const Token* t = begin; t != end; ++t) {
    if (!text.empty() && in_word(text.back()) && in_word(t->front())) text += ' ';
    text += *t;
  }
  return text;
}

}  // namespace tessera::codelets
