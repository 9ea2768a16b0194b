// SPDX-License-Identifier: Apache-2.0
// Virtual IPUs: devices of a machine, locks within and between processes, resets. More from Python:
// tests/api/test_devices.py.
#include <doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <functional>

#include "base/error.h"
#include "devices/own_command.h"
#include "devices/partition.h"

using namespace tessera;

namespace {

struct Directory {
  Directory() {
    char name[] = "/tmp/tessera-test-XXXXXX";
    path = mkdtemp(name);
  }
  ~Directory() { std::filesystem::remove_all(path); }
  std::string path;
};

// The exit code of `body` in a process of its own.
int in_child(const std::function<int()>& body) {
  const pid_t child = fork();
  if (child == 0) _exit(body());
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace

TEST_CASE("devices are aligned groups of neighbours, numbered by size") {
  const auto devices = devices_of(6);
  REQUIRE(devices.size() == 6 + 3 + 1);
  CHECK(devices[5].first == 5);
  CHECK(devices[6].count == 2);
  CHECK(devices[8].first == 4);
  CHECK(devices[9].count == 4);
  CHECK(devices_of(0).empty());
}

TEST_CASE("an IPU is held once, in this process and in others") {
  const Directory d;
  const auto partition = open_partition(d.path);
  CHECK(open_partition(d.path) == partition);
  const auto lease = acquire(partition, {{0, 0, 1}});
  REQUIRE(lease);
  CHECK(!acquire(partition, {{4, 0, 2}}));
  CHECK(in_child([&] { return acquire(partition, {{4, 0, 2}}) ? 1 : 0; }) == 0);
  CHECK(in_child([&] { return acquire(open_partition(d.path), {{1, 1, 1}}) ? 1 : 0; }) == 1);
  const auto held = holders(partition);
  REQUIRE(held.size() == 1);  // the child's ended with it
  CHECK(held[0].pid == getpid());
  CHECK(held[0].command.rfind("tessera_tests", 0) == 0);
  lease->release();
  CHECK(holders(partition).empty());
  CHECK(in_child([&] { return acquire(partition, {{0, 0, 1}}) ? 1 : 0; }) == 1);
}

TEST_CASE("a child's copy of a lease gives nothing back") {
  const Directory d;
  const auto partition = open_partition(d.path);
  const auto lease = acquire(partition, {{0, 0, 1}});
  CHECK(in_child([&] {
          lease->release();
          return static_cast<int>(holders(partition).size());
        }) == 1);
  CHECK(holders(partition).size() == 1);
  lease->check();
}

TEST_CASE("a reset by another process is seen by who holds the IPU, and by nobody else") {
  const Directory d;
  const auto partition = open_partition(d.path);
  const auto pair = acquire(partition, {{0, 0, 2}}), other = acquire(partition, {{0, 2, 2}});
  CHECK(in_child([&] {
          reset(partition, {0, 1, 1});
          return 0;
        }) == 0);
  other->check();
  try {
    pair->check();
    FAIL("nothing was thrown");
  } catch (const RecoverableError& e) {
    CHECK(e.action() == "IPU_RESET");
    CHECK(std::string(e.what()).find("IPU 1 was reset by process") != std::string::npos);
  }
  pair->release();
  acquire(partition, {{0, 0, 2}})->check();
}

TEST_CASE("a command is cut between letters") {
  CHECK(own_command(1000).rfind("tessera_tests", 0) == 0);
  CHECK(own_command(3) == "tes");
}
