// SPDX-License-Identifier: Apache-2.0
// Finds the vertices in the text of codelets: classes that derive from Vertex, the explicit
// instantiations of templates among them, and the names of their fields. Types are left to the
// compiler.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tessera::codelets {

struct FoundVertex {
  std::vector<std::string> scope;  // namespaces, "" for one without a name
  std::string written;             // as in the text, inside of the scope: V<Mode::A>
  std::string name;                // for lookup: ns::V<Mode::A>
  std::vector<std::string> fields;
  bool constructor = false;  // one is declared
};

struct Found {
  std::vector<FoundVertex> vertices;
  std::vector<std::string> templates;  // vertex templates that nothing instantiates
  std::vector<std::string> files;      // of the user, in the order they are first seen
  bool random = false;                 // random numbers are drawn
};

// `text` is what the preprocessor gives, with its line markers; system headers are passed over.
Found scan(std::string_view text);

// The name of a vertex in one form: V<unsigned int, 2u> is "V<unsigned,2>".
std::string canonical_name(std::string_view name);
// The same without namespaces.
std::string bare_name(std::string_view name);

}  // namespace tessera::codelets
