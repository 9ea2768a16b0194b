// SPDX-License-Identifier: Apache-2.0
// A directory of executables, each under its key. Several processes may use it at once: files
// appear whole, and the last of equal ones stays.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "executable/executable.h"

namespace tessera {

class Cache {
 public:
  // Makes the directory if it is not there; throws UserError.
  explicit Cache(std::string dir);

  std::string path_of(const std::string& key) const;
  // Null if there is none. Throws UserError if there is one that is not good.
  std::unique_ptr<ExecutableFile> find(const std::string& key) const;

 private:
  std::string dir_;
};

struct CacheEntry {
  std::string path, key, name, creator;
  int64_t bytes = 0;
  double used = 0;      // seconds since 1970
  std::string problem;  // why it is not good; empty if it is
};

// In the order of their last use, the newest first. Throws UserError for what is no directory.
std::vector<CacheEntry> cache_entries(const std::string& dir);
// Removes the entries that were not used for longest until `bytes` are enough, entries that are not
// good, and what processes that are no more have left half written. Returns what is gone.
std::vector<CacheEntry> prune_cache(const std::string& dir, int64_t bytes);

}  // namespace tessera
