// SPDX-License-Identifier: Apache-2.0
// Running another program and files of the cache.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tessera::codelets {

struct Finished {
  int status = 0;  // -1: the program was not found
  std::string out, err;
};

// Runs a program that is looked up in PATH, and waits. No shell is between.
Finished run(const std::vector<std::string>& words);

std::vector<std::string> split_words(std::string_view text);

std::string read_file(const std::string& path);  // throws std::runtime_error
// Written under another name and renamed, so that nobody sees half a file.
void write_file(const std::string& path, std::string_view text);

// $XDG_CACHE_HOME/tessera/codelets or that in ~/.cache, made if need be; a folder for temporary
// files if neither can be written.
std::string cache_folder();

// 32 hexadecimal digits.
std::string digest(std::string_view text);

}  // namespace tessera::codelets
