// SPDX-License-Identifier: Apache-2.0
// The rows of the op table as capture reads them: everything in words.
#pragma once

#include <string>
#include <vector>

namespace tessera {

struct RowInfo {
  std::string name;       // in the text form
  std::string kind;       // pointwise, view or structured
  int arity = 0;          // operands of a pointwise row
  std::string rule;       // how a pointwise row types its result: same, float, bool, ...
  std::string signature;  // arguments of the others, in the letters of ops.def
  std::vector<std::string> facts;
};

// All rows that text may name.
std::vector<RowInfo> op_rows();

}  // namespace tessera
