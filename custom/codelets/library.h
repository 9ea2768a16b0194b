// SPDX-License-Identifier: Apache-2.0
// A file of codelets, compiled for this machine and loaded.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tessera/compat/detail/codelet_table.h"

namespace tessera::codelets {

class Library {
 public:
  // Compiles `path` if the cache has no such library, and loads it. One that is loaded already is
  // given again. Throws std::runtime_error with the compiler's text.
  static std::shared_ptr<const Library> open(const std::string& path, const std::string& flags);
  // The same for codelets given as text.
  static std::shared_ptr<const Library> open_text(const std::string& text,
                                                  const std::string& flags);

  // By the name that poputil::templateVertex gives; null if there is none or it is not clear which.
  const tessera_vertex* find(const std::string& name) const;
  const std::string& path() const { return path_; }  // of the user's file
  const std::string& id() const { return id_; }      // of its content, headers and flags
  const tessera_codelets& table() const { return *table_; }
  bool random() const { return random_; }
  const std::vector<std::string>& templates() const { return templates_; }

 private:
  Library() = default;
  void load(const std::string& file);

  std::string path_, id_;
  const tessera_codelets* table_ = nullptr;
  bool random_ = false;
  std::vector<std::string> templates_;
  std::map<std::string, const tessera_vertex*> exact_;
  std::multimap<std::string, const tessera_vertex*> bare_;
};

}  // namespace tessera::codelets
