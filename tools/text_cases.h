// SPDX-License-Identifier: Apache-2.0
// Files of text cases: programs and what becomes of each. Of those in core/passes it is the program
// after the pass that the file is called after, of those in core/plan the plan.
//   // case: name
//   // accumulation: 2          settings, if any; replicas: 2; strategy: pipelined, sharded, phased
//   tessera 1 ...               the program
//   // expect:
//   ...                         the text expected of it
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "passes/partition.h"

namespace tessera {

struct TextCase {
  std::string name;
  int line = 0;        // of its name, from 0
  std::string source;  // all lines before the expected text
  std::string expected, actual;
};

// Values of settings and options; throw UserError for what is none.
Strategy strategy_named(const std::string& name);
int64_t count_named(const std::string& key, const std::string& value);

// Runs the cases of a file; its folder and name say what is done to them. An error names file, case
// and line.
std::vector<TextCase> run_cases(const std::filesystem::path& file);

// Rewrites the expected texts of a file; false if they are right already.
bool bless(const std::filesystem::path& file);

// The files *.tir of a folder, or the one file.
std::vector<std::filesystem::path> case_files(const std::filesystem::path& path);

}  // namespace tessera
