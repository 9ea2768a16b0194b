// SPDX-License-Identifier: Apache-2.0
#include "devices/partition.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "base/error.h"
#include "devices/own_command.h"

namespace tessera {
namespace {

// What is known of an IPU beside its lock. The file is mapped, so a run sees a reset at the price
// of a load.
struct Slot {
  std::atomic<uint64_t> resets;
  std::atomic<int64_t> reset_by;
  std::atomic<int64_t> owner;  // the process that took it last
  std::atomic<int64_t> user;
  std::atomic<int64_t> since;  // seconds since the epoch
  std::array<char, 88> command;
};
static_assert(sizeof(Slot) == 128 && std::atomic<uint64_t>::is_always_lock_free);

constexpr size_t kFileBytes = sizeof(Slot) * kMostIpus;
constexpr const char* kFileName = "ipus.lock";

int64_t seconds_now() {
  using namespace std::chrono;
  return duration_cast<seconds>(system_clock::now().time_since_epoch()).count();
}

struct flock range(int first, int count, short type) {
  struct flock lock = {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = first;
  lock.l_len = count;
  return lock;
}

// Of all partitions: locks of the kernel belong to the process, and so does what is known of them
// here. Held around a fork, so that a child does not find it locked for ever.
std::mutex& table_mutex() {
  static std::mutex mutex;
  static const int registered = pthread_atfork(
      [] { table_mutex().lock(); }, [] { table_mutex().unlock(); }, [] { table_mutex().unlock(); });
  static_cast<void>(registered);
  return mutex;
}

[[noreturn]] void refuse(const std::string& path, int error) {
  throw UserError(
      fmt::format("[devices] {} cannot be used for the locks of IPUs: {}. Set the environment "
                  "variable TESSERA_RUNTIME_DIR to a directory of yours",
                  path, std::strerror(error)));
}

}  // namespace

class Partition {
 public:
  Partition(int directory, int file, Slot* slots)
      : directory_(directory), file_(file), slots_(slots) {}
  // Closing any descriptor of a file drops all locks that the process has on it: this one goes when
  // it has none left, and no other descriptor of the file is made before.
  ~Partition() {
    munmap(slots_, kFileBytes);
    close(file_);
    close(directory_);
  }
  Partition(const Partition&) = delete;
  Partition& operator=(const Partition&) = delete;

  bool take(const Device& d) {
    forget_if_forked();
    for (int i = d.first; i < d.first + d.count; ++i)
      if (mine_[i]) return false;  // the kernel would grant it again
    struct flock lock = range(d.first, d.count, F_WRLCK);
    if (fcntl(file_, F_SETLK, &lock) != 0) return false;
    for (int i = d.first; i < d.first + d.count; ++i) {
      mine_[i] = true;
      Slot& s = slots_[i];
      const std::string command = own_command(s.command.size() - 1);
      s.command.fill(0);
      std::memcpy(s.command.data(), command.data(), command.size());
      s.user = getuid();
      s.since = seconds_now();
      s.owner = getpid();
    }
    return true;
  }

  void give_back(const Device& d) {
    forget_if_forked();
    for (int i = d.first; i < d.first + d.count; ++i) {
      int64_t own = getpid();
      slots_[i].owner.compare_exchange_strong(own, 0);
      mine_[i] = false;
    }
    struct flock lock = range(d.first, d.count, F_UNLCK);
    fcntl(file_, F_SETLK, &lock);
  }

  std::vector<Holder> holders() {
    forget_if_forked();
    std::vector<Holder> out;
    for (int i = 0; i < kMostIpus; ++i) {
      struct flock lock = range(i, 1, F_WRLCK);
      if (!mine_[i] && (fcntl(file_, F_GETLK, &lock) != 0 || lock.l_type == F_UNLCK)) continue;
      const Slot& s = slots_[i];
      // A process of another container has no number here.
      const int64_t pid = mine_[i] ? getpid() : lock.l_pid > 0 ? lock.l_pid : s.owner.load();
      Holder& h = out.emplace_back(Holder{.ipu = i, .pid = pid, .command = {}});
      if (s.owner != pid) continue;  // it was taken a moment ago
      h.user = s.user;
      h.seconds = static_cast<double>(std::max<int64_t>(0, seconds_now() - s.since));
      h.command.assign(s.command.data(), strnlen(s.command.data(), s.command.size()));
    }
    return out;
  }

  Slot& slot(int ipu) { return slots_[ipu]; }

 private:
  // A forked child has its parent's memory but none of its locks.
  void forget_if_forked() {
    if (process_ == getpid()) return;
    process_ = getpid();
    mine_.fill(false);
  }

  int directory_, file_;
  Slot* slots_;
  pid_t process_ = getpid();
  std::array<bool, kMostIpus> mine_{};
};

Lease::Lease(std::shared_ptr<Partition> partition, Device device)
    : partition_(std::move(partition)), device_(device), owner_(getpid()) {
  for (int i = 0; i < device_.count; ++i)
    resets_.push_back(partition_->slot(device_.first + i).resets);
}

void Lease::release() {
  if (!std::exchange(held_, false) || owner_ != getpid()) return;
  const std::lock_guard guard(table_mutex());
  partition_->give_back(device_);
}

void Lease::check() const {
  for (int i = 0; i < device_.count; ++i) {
    const int ipu = device_.first + i;
    const Slot& s = partition_->slot(ipu);
    if (s.resets.load(std::memory_order_relaxed) != resets_[i]) [[unlikely]]
      throw RecoverableError("IPU_RESET",
                             fmt::format("[devices] IPU {} was reset by process {}: what it held "
                                         "is lost",
                                         ipu, s.reset_by.load()));
    if (s.owner.load(std::memory_order_relaxed) != owner_) [[unlikely]]
      throw RecoverableError("IPU_RESET",
                             fmt::format("[devices] IPU {} was lost to process {}: the lock of "
                                         "this process on it is gone",
                                         ipu, s.owner.load()));
  }
}

std::shared_ptr<Partition> open_partition(const std::string& directory) {
  const int dir = open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (dir < 0) refuse(directory, errno);
  // A file that this process has open must not be opened again, see Partition. Others are closed
  // here: under the lock nobody gets at those that only the table has.
  static std::map<std::pair<dev_t, ino_t>, std::shared_ptr<Partition>> known;
  const std::lock_guard guard(table_mutex());
  struct stat found {};
  const bool exists = fstatat(dir, kFileName, &found, AT_SYMLINK_NOFOLLOW) == 0;
  std::erase_if(known, [](const auto& entry) { return entry.second.use_count() == 1; });
  if (auto it = known.find({found.st_dev, found.st_ino}); exists && it != known.end()) {
    close(dir);
    return it->second;
  }
  const int file = openat(dir, kFileName, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  int error = file < 0 ? errno : 0;
  // With memory of its own: a mapping of a file that cannot grow would crash.
  if (!error) error = posix_fallocate(file, 0, kFileBytes);
  if (!error && fstat(file, &found) != 0) error = errno;
  void* memory = MAP_FAILED;
  if (!error) {
    memory = mmap(nullptr, kFileBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (memory == MAP_FAILED) error = errno;
  }
  if (error) {
    if (file >= 0) close(file);
    close(dir);
    refuse(directory, error);
  }
  // Programs that clean up temporary files leave a locked directory alone.
  flock(dir, LOCK_SH | LOCK_NB);
  auto made = std::make_shared<Partition>(dir, file, static_cast<Slot*>(memory));
  known[{found.st_dev, found.st_ino}] = made;
  return made;
}

namespace {

void check_bounds(const Device& d) {
  user_check(d.first >= 0 && d.count > 0 && d.count <= kMostIpus && d.first <= kMostIpus - d.count,
             "[devices] there are no IPUs {} to {}", d.first, d.first + d.count - 1);
}

}  // namespace

std::unique_ptr<Lease> acquire(const std::shared_ptr<Partition>& partition,
                               const std::vector<Device>& wanted) {
  for (const Device& d : wanted) check_bounds(d);
  const std::lock_guard guard(table_mutex());
  for (const Device& d : wanted)
    if (partition->take(d)) return std::make_unique<Lease>(partition, d);
  return nullptr;
}

std::vector<Holder> holders(const std::shared_ptr<Partition>& partition) {
  const std::lock_guard guard(table_mutex());
  return partition->holders();
}

void reset(const std::shared_ptr<Partition>& partition, const Device& device) {
  check_bounds(device);
  for (int i = device.first; i < device.first + device.count; ++i) {
    Slot& s = partition->slot(i);
    s.reset_by = getpid();
    ++s.resets;
  }
}

}  // namespace tessera
