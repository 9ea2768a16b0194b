// SPDX-License-Identifier: Apache-2.0
// Environment variables the core reads, one row each; a test compares docs/env-vars.md with them.
#pragma once

#include <string>
#include <vector>

namespace tessera {

//      function           variable                  default  meaning
#define TESSERA_ENV(ROW)                                                                \
  ROW(codegen, "TESSERA_CODEGEN", "llvm",                                               \
      "llvm, or reference: the plain interpreter of fused regions")                     \
  ROW(debug, "TESSERA_DEBUG", "0",                                                      \
      "1 a line per compilation, 2 also pass timings, 3 also the plan, 4 also the IR")  \
  ROW(disable_passes, "TESSERA_DISABLE_PASSES", "",                                     \
      "names of passes to leave out, separated by commas")                              \
  ROW(dump, "TESSERA_DUMP", "", "directory for the IR after each pass that changed it") \
  ROW(ipus, "TESSERA_IPUS", "16", "number of virtual IPUs of the machine")              \
  ROW(isa, "TESSERA_ISA", "", "v3 leaves AVX-512 unused")                               \
  ROW(runtime_dir, "TESSERA_RUNTIME_DIR", "", "directory for the locks of IPUs")        \
  ROW(trace, "TESSERA_TRACE", "", "file for the timeline of a call on several IPUs")    \
  ROW(test_worker, "PYTEST_XDIST_WORKER", "", "a worker of pytest-xdist, with its own IPUs")

namespace env {
#define ROW(name, variable, fallback, doc) std::string name();
TESSERA_ENV(ROW)
#undef ROW
int debug_level();
}  // namespace env

std::vector<std::string> split_commas(const std::string& text);

}  // namespace tessera
