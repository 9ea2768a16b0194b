// SPDX-License-Identifier: Apache-2.0
#include "custom/codelets/process.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>

extern char** environ;

namespace tessera::codelets {
namespace fs = std::filesystem;
namespace {

struct Pipe {
  int read = -1, write = -1;
  Pipe() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0)
      throw std::runtime_error(std::string("cannot make a pipe: ") + std::strerror(errno));
    read = ends[0];
    write = ends[1];
  }
  ~Pipe() {
    close_end(read);
    close_end(write);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  static void close_end(int& end) {
    if (end >= 0) close(end);
    end = -1;
  }
};

// Reads both until they are closed.
void drain(Pipe& out, Pipe& err, Finished& result) {
  pollfd ends[2] = {{out.read, POLLIN, 0}, {err.read, POLLIN, 0}};
  std::string* texts[2] = {&result.out, &result.err};
  char block[16384];
  for (int open = 2; open > 0;) {
    if (poll(ends, 2, -1) < 0) {
      if (errno == EINTR) continue;
      return;
    }
    for (int i = 0; i < 2; ++i) {
      if (ends[i].fd < 0 || ends[i].revents == 0) continue;
      ssize_t n = read(ends[i].fd, block, sizeof block);
      if (n > 0) {
        texts[i]->append(block, static_cast<size_t>(n));
      } else if (n == 0 || errno != EINTR) {
        ends[i].fd = -1;
        --open;
      }
    }
  }
}

bool usable(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  return access(folder.c_str(), W_OK | X_OK) == 0;
}

}  // namespace

Finished run(const std::vector<std::string>& words) {
  std::vector<char*> argv;
  for (const std::string& w : words) argv.push_back(const_cast<char*>(w.c_str()));
  argv.push_back(nullptr);
  Pipe out, err;
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, out.write, 1);
  posix_spawn_file_actions_adddup2(&actions, err.write, 2);
  pid_t child = 0;
  Finished result;
  int status = posix_spawnp(&child, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (status != 0) {
    result.status = -1;
    result.err = std::strerror(status);
    return result;
  }
  Pipe::close_end(out.write);
  Pipe::close_end(err.write);
  drain(out, err, result);
  int waited = 0;
  while (waitpid(child, &waited, 0) < 0 && errno == EINTR) {
  }
  result.status = WIFEXITED(waited) ? WEXITSTATUS(waited) : 128;
  // Where spawning cannot see that the program is missing, the child says so.
  if (result.status == 127 && result.out.empty() && result.err.empty()) result.status = -1;
  return result;
}

std::vector<std::string> split_words(std::string_view text) {
  std::istringstream in{std::string(text)};
  std::vector<std::string> words;
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error("cannot read " + path + ": " + std::strerror(errno));
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

void write_file(const std::string& path, std::string_view text) {
  std::string part = path + "." + std::to_string(getpid()) + ".part";
  std::ofstream out(part, std::ios::binary);
  out.write(text.data(), static_cast<std::streamsize>(text.size()));
  out.close();
  if (!out || std::rename(part.c_str(), path.c_str()) != 0) {
    std::remove(part.c_str());
    throw std::runtime_error("cannot write " + path + ": " + std::strerror(errno));
  }
}

std::string cache_folder() {
  const char* base = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  fs::path folder;
  if (base != nullptr && base[0] == '/')
    folder = fs::path(base);
  else if (home != nullptr && home[0] == '/')
    folder = fs::path(home) / ".cache";
  if (!folder.empty() && usable(folder / "tessera" / "codelets"))
    return (folder / "tessera" / "codelets").string();
  // A folder of our own that nobody else can write.
  static const std::string temporary = [] {
    std::error_code error;
    std::string name = (fs::temp_directory_path(error) / "tessera-codelets-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr)
      throw std::runtime_error(
          "no folder for compiled codelets can be written; set XDG_CACHE_HOME");
    return name;
  }();
  return temporary;
}

std::string digest(std::string_view text) {
  // FNV-1a twice, the second with a mix of the bytes' places.
  uint64_t a = 0xcbf29ce484222325u, b = 0x9ae16a3b2f90404fu;
  for (size_t i = 0; i < text.size(); ++i) {
    auto c = static_cast<unsigned char>(text[i]);
    a = (a ^ c) * 0x100000001b3u;
    b = (b ^ (c + (b >> 29) + i)) * 0xc2b2ae3d27d4eb4fu;
  }
  char hex[33];
  std::snprintf(hex, sizeof hex, "%016llx%016llx", static_cast<unsigned long long>(a),
                static_cast<unsigned long long>(b ^ (b >> 31)));
  return hex;
}

}  // namespace tessera::codelets
