// SPDX-License-Identifier: Apache-2.0
// The virtual IPUs of a user's machine and who holds them. A file in a directory of the user has a
// byte per IPU; holding an IPU is a lock of the kernel on its byte. The kernel drops a lock when
// its process ends, however it ends, so nothing has to be cleaned up after a crash.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace tessera {

constexpr int kMostIpus = 1024;  // of one machine

// TESSERA_IPUS.
int number_of_ipus();
// TESSERA_RUNTIME_DIR, or the directory of this user, the same for each of their processes.
std::string runtime_directory();

// What a program may attach to: IPUs [first, first + count), a power of two of them.
struct Device {
  int id = 0, first = 0, count = 0;
};
// Of a machine: single IPUs first, then pairs, fours and so on, each of neighbours.
std::vector<Device> devices_of(int ipus);

// An IPU that a process holds.
struct Holder {
  int ipu = 0;
  int64_t pid = 0;
  int64_t user = -1;   // -1: not known yet
  double seconds = 0;  // since it was attached
  std::string command;
};

class Partition;

// Holds a device until it is released or destroyed. In a forked child it holds nothing.
class Lease {
 public:
  Lease(std::shared_ptr<Partition> partition, Device device);
  ~Lease() { release(); }
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;

  const Device& device() const { return device_; }
  void release();
  // Throws RecoverableError if an IPU was reset since, or is another process's now.
  void check() const;

 private:
  std::shared_ptr<Partition> partition_;
  Device device_;
  int64_t owner_ = 0;
  std::vector<uint64_t> resets_;  // of each IPU when it was taken
  bool held_ = true;
};

// The one of a directory. Throws UserError if the directory can't be used.
std::shared_ptr<Partition> open_partition(const std::string& directory);

// A device, the first that is free; null if there is none.
std::unique_ptr<Lease> acquire(const std::shared_ptr<Partition>& partition,
                               const std::vector<Device>& wanted);
std::vector<Holder> holders(const std::shared_ptr<Partition>& partition);
// Who holds IPUs of the device finds out when it next runs a program.
void reset(const std::shared_ptr<Partition>& partition, const Device& device);

}  // namespace tessera
