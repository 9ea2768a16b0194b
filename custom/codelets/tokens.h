// SPDX-License-Identifier: Apache-2.0
// C++ text as tokens: words, numbers, strings, "::" and single characters.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tessera::codelets {

using Token = std::string_view;

bool is_word(Token t);

// Tokens of `text`, which must outlive them. Text of system headers, by the preprocessor's line
// markers, is left out; names of other files are appended to `files`.
std::vector<Token> tokenize(std::string_view text, std::vector<std::string>* files = nullptr);

// Tokens as text again, with spaces between words only.
std::string join(const Token* begin, const Token* end);

}  // namespace tessera::codelets
