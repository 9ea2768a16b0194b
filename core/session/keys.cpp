// SPDX-License-Identifier: Apache-2.0
#include "session/keys.h"

#include <sys/stat.h>

#include "base/build.h"
#include "base/checksum.h"
#include "base/env.h"
#include "codegen/code.h"
#include "executable/bytes.h"
#include "ir/graph.h"
#include "session/custom_ops.h"

namespace tessera {
namespace {

// Says nothing of the program: any number of threads runs it.
constexpr std::string_view kThreads = "threads";

// A library that was built anew may give other types and other work.
void add_libraries(Digest& out) {
  for (const CustomOpInfo& op : custom_ops()) {
    struct stat info {};
    const bool there = ::stat(op.library.c_str(), &info) == 0;
    out.part(op.domain).part(op.name).part(op.library);
    out.part(fmt::format("{} {} {} {}", op.version, there ? info.st_size : -1,
                         there ? info.st_mtim.tv_sec : 0, there ? info.st_mtim.tv_nsec : 0));
  }
}

void forget_places(Graph& g) {
  for (Location& l : g.locations) {
    l.file.clear();
    l.line = 0;
    l.scope.clear();
  }
  for (Node& n : g.nodes) {
    if (n.body) forget_places(*n.body);
    for (const auto& body : n.bodies) forget_places(*body);
  }
}

}  // namespace

std::vector<std::pair<std::string, Arg>> kept_settings(const Settings& settings) {
  std::vector<std::pair<std::string, Arg>> out;
  for (const auto& [name, value] : settings.values())
    if (name != kThreads) out.emplace_back(name, value);
  return out;
}

std::string program_key(const std::string& text, const Settings& settings) {
  Digest out;
  out.part(this_binary().build).part(code_target()).part(env::codegen());
  out.part(env::disable_passes());
  Writer w;
  w.list(kept_settings(settings), [&](const auto& s) {
    w.text(s.first);
    w.arg(s.second);
  });
  out.part(w.take()).part(text);
  if (text.find(" custom(") != std::string::npos) add_libraries(out);
  return out.hex();
}

std::string graph_digest(const std::string& text) {
  const std::unique_ptr<Graph> g = parse_graph(text);
  forget_places(*g);
  return Digest().part(print_graph(*g)).hex();
}

}  // namespace tessera
