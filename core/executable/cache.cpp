// SPDX-License-Identifier: Apache-2.0
#include "executable/cache.h"

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

namespace tessera {
namespace fs = std::filesystem;
namespace {

constexpr const char* kSuffix = ".tessera";

CacheEntry entry_of(const fs::path& path, const struct stat& info) {
  CacheEntry e;
  e.path = path.string();
  e.bytes = info.st_size;
  e.used =
      static_cast<double>(info.st_mtim.tv_sec) + 1e-9 * static_cast<double>(info.st_mtim.tv_nsec);
  e.key = path.stem().string();
  try {
    const ExecutableFile file(e.path);
    e.name = file.header().name;
    e.creator = file.header().creator;
    if (file.header().key != e.key) e.problem = e.path + ": is another executable";
  } catch (const UserError& error) {
    e.problem = error.what();
  }
  return e;
}

fs::directory_iterator look_into(const std::string& dir) {
  std::error_code failed;
  fs::directory_iterator out(dir, failed);
  user_check(!failed, "{}: {}", dir, failed.message());
  return out;
}

}  // namespace

Cache::Cache(std::string dir) : dir_(std::move(dir)) {
  std::error_code failed;
  if (!fs::is_directory(dir_, failed)) {
    fs::create_directories(dir_, failed);
    user_check(!failed, "{}: {}", dir_, failed.message());
  }
}

std::string Cache::path_of(const std::string& key) const {
  return (fs::path(dir_) / (key + kSuffix)).string();
}

std::unique_ptr<ExecutableFile> Cache::find(const std::string& key) const {
  const std::string path = path_of(key);
  if (access(path.c_str(), F_OK) != 0) return nullptr;
  auto file = std::make_unique<ExecutableFile>(path);
  user_check(file->header().key == key, "{}: is another executable", path);
  file->touch();
  return file;
}

std::vector<CacheEntry> cache_entries(const std::string& dir) {
  std::vector<CacheEntry> out;
  for (const fs::directory_entry& e : look_into(dir)) {
    struct stat info {};
    if (e.path().extension() != kSuffix || ::stat(e.path().c_str(), &info) != 0) continue;
    out.push_back(entry_of(e.path(), info));
  }
  std::sort(out.begin(), out.end(),
            [](const CacheEntry& a, const CacheEntry& b) { return a.used > b.used; });
  return out;
}

std::vector<CacheEntry> prune_cache(const std::string& dir, int64_t bytes) {
  std::vector<CacheEntry> gone;
  auto remove = [&](CacheEntry e) {
    user_check(unlink(e.path.c_str()) == 0 || errno == ENOENT, "{}: {}", e.path,
               std::strerror(errno));
    gone.push_back(std::move(e));
  };
  for (const fs::directory_entry& e : look_into(dir)) {
    long process = 0;
    if (!is_unfinished(e.path().filename().string(), process)) continue;
    if (kill(static_cast<pid_t>(process), 0) == 0 || errno != ESRCH) continue;
    struct stat info {};
    if (::stat(e.path().c_str(), &info) != 0) continue;
    CacheEntry left;
    left.path = e.path().string();
    left.bytes = info.st_size;
    left.problem = left.path + ": was never finished";
    remove(std::move(left));
  }
  int64_t kept = 0;
  for (CacheEntry& e : cache_entries(dir)) {
    if (e.problem.empty() && e.bytes <= bytes - kept)
      kept += e.bytes;
    else
      remove(std::move(e));
  }
  return gone;
}

}  // namespace tessera
