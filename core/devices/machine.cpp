// SPDX-License-Identifier: Apache-2.0
// The size of the machine, its devices and where its locks are; what a process is called.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>

#include "base/env.h"
#include "base/error.h"
#include "devices/own_command.h"
#include "devices/partition.h"

namespace tessera {

int number_of_ipus() {
  const std::string given = env::ipus();
  int count = 0;
  const auto [end, error] = std::from_chars(given.data(), given.data() + given.size(), count);
  const bool number = error == std::errc() && end == given.data() + given.size() && count >= 0;
  user_check(number, "The environment variable TESSERA_IPUS must be a number, not '{}'", given);
  user_check(count <= kMostIpus, "The environment variable TESSERA_IPUS is {}: at most {}", count,
             kMostIpus);
  return count;
}

std::string runtime_directory() {
  std::error_code failed;
  if (const std::string given = env::runtime_dir(); !given.empty()) {
    std::filesystem::create_directories(given, failed);
    user_check(!failed, "TESSERA_RUNTIME_DIR: cannot make {}: {}", given, failed.message());
    return given;
  }
  // Not of TMPDIR or XDG_RUNTIME_DIR: those differ between a login and a job of one user, who would
  // have two machines.
  const std::string own = fmt::format("/tmp/tessera-{}", getuid());
  const bool made = mkdir(own.c_str(), 0700) == 0;
  const int error = made ? 0 : errno;
  struct stat found {};
  const bool ours = lstat(own.c_str(), &found) == 0 && S_ISDIR(found.st_mode) &&
                    found.st_uid == getuid() && (found.st_mode & (S_IWGRP | S_IWOTH)) == 0;
  user_check(ours,
             "[devices] {} is not a directory that is yours alone{}. Set the environment "
             "variable TESSERA_RUNTIME_DIR to one",
             own, error && error != EEXIST ? fmt::format(" ({})", std::strerror(error)) : "");
  // The tests of two workers have nothing to do with each other.
  const std::string worker = env::test_worker();
  if (!std::regex_match(worker, std::regex("gw[0-9]{1,4}"))) return own;
  const std::string apart = own + "/" + worker;
  user_check(mkdir(apart.c_str(), 0700) == 0 || errno == EEXIST, "[devices] cannot make {}: {}",
             apart, std::strerror(errno));
  return apart;
}

std::vector<Device> devices_of(int ipus) {
  std::vector<Device> out;
  for (int count = 1; count <= ipus; count *= 2)
    for (int first = 0; first + count <= ipus; first += count)
      out.push_back({static_cast<int>(out.size()), first, count});
  return out;
}

std::string own_command(size_t longest) {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(file)), {});
  while (!text.empty() && text.back() == '\0') text.pop_back();
  const size_t end = std::min(text.find('\0'), text.size());
  const size_t folder = text.rfind('/', end);
  if (folder < end) text.erase(0, folder + 1);
  // It is shown in a line of a table.
  std::replace_if(
      text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < ' '; }, ' ');
  // Not in the middle of a letter.
  size_t size = std::min(text.size(), longest);
  while (size < text.size() && size > 0 && (text[size] & 0xC0) == 0x80) --size;
  return text.substr(0, size);
}

}  // namespace tessera
