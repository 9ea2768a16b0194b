// SPDX-License-Identifier: Apache-2.0
// Executables as files, and directories of them.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"
#include "session/keys.h"
#include "session/session.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tessera {
namespace {

std::string path_of(const nb::bytes& path) {
  return {path.c_str(), path.size()};
}

nb::bytes bytes(std::string_view s) {
  return nb::bytes(s.data(), s.size());
}

}  // namespace

void bind_files(nb::module_& m) {
  nb::class_<ExecutableFile>(m, "ExecutableFile", "A program in a file, checked.")
      .def("__init__",
           [](ExecutableFile* self, nb::bytes path) { new (self) ExecutableFile(path_of(path)); })
      .def_prop_ro(
          "creator", [](const ExecutableFile& f) { return text(f.header().creator); },
          "The version that made it.")
      .def_prop_ro(
          "digest", [](const ExecutableFile& f) { return text(f.header().digest); },
          "Of the graph it was made from, without lines.")
      .def_prop_ro(
          "host", [](const ExecutableFile& f) { return text(std::string(f.host())); },
          "What save() was given for it.")
      .def_prop_ro(
          "model", [](const ExecutableFile& f) { return bytes(f.model()); },
          "What save() was given for it; empty if nothing.");
  m.def("graph_digest", &graph_digest, "text"_a, "Of a graph, without lines.");
  nb::class_<CacheEntry>(m, "CacheEntry", "A program in a cache.")
      .def_prop_ro("path", [](const CacheEntry& e) { return text(e.path); })
      .def_ro("key", &CacheEntry::key)
      .def_prop_ro("name", [](const CacheEntry& e) { return text(e.name); })
      .def_prop_ro("creator", [](const CacheEntry& e) { return text(e.creator); })
      .def_ro("bytes", &CacheEntry::bytes)
      .def_ro("used", &CacheEntry::used, "When it was, in seconds since 1970.")
      .def_prop_ro(
          "problem", [](const CacheEntry& e) { return text(e.problem); },
          "Why it is not good; empty if it is.");
  m.def(
      "cache_entries", [](nb::bytes dir) { return cache_entries(path_of(dir)); }, "dir"_a,
      "The newest first.");
  m.def(
      "prune_cache", [](nb::bytes dir, int64_t most) { return prune_cache(path_of(dir), most); },
      "dir"_a, "bytes"_a,
      "Removes what is not good and what was not used for longest; what is gone.");
}

}  // namespace tessera
