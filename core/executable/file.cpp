// SPDX-License-Identifier: Apache-2.0
#include "executable/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstring>

#include "base/checksum.h"

namespace tessera {
namespace {

static_assert(std::endian::native == std::endian::little);

// The first byte is no text, line ends show damage by transfers.
constexpr std::array<char, 8> kMagic = {'\x89', 'T', 'S', 'R', '\r', '\n', '\x1a', '\n'};
constexpr size_t kAlign = 64;  // of sections, for those that are used where they lie
constexpr size_t kMostSections = 64;
constexpr std::string_view kUnfinished = ".unfinished";

struct Head {
  std::array<char, 8> magic = kMagic;
  uint32_t version = kFormatVersion;
  uint32_t sections = 0;
  uint64_t bytes = 0;  // of the file
  uint32_t check = 0;  // of this, with zero here, and of the table
  uint32_t zero = 0;
};
static_assert(sizeof(Head) == 32);

struct Entry {
  uint32_t kind = 0, check = 0;
  uint64_t offset = 0, bytes = 0;
};
static_assert(sizeof(Entry) == 24);

size_t aligned(size_t n) {
  return (n + kAlign - 1) / kAlign * kAlign;
}

const char* name_of(uint32_t kind) {
  constexpr const char* names[] = {"?", "header", "program", "constants", "code", "host", "model"};
  return kind < std::size(names) ? names[kind] : names[0];
}

uint32_t check_of(Head head, Bytes table) {
  head.check = 0;
  return checksum(table, checksum(std::as_bytes(std::span(&head, 1))));
}

class File {
 public:
  explicit File(int fd) : fd_(fd) {}
  ~File() {
    if (fd_ >= 0) ::close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int fd() const { return fd_; }
  int close() { return ::close(std::exchange(fd_, -1)); }

 private:
  int fd_;
};

std::string distrust_of(const struct stat& s) {
  if (s.st_uid != geteuid() && s.st_uid != 0) return "it belongs to another user";
  if (s.st_mode & (S_IWGRP | S_IWOTH)) return "others may write to it";
  return "";
}

}  // namespace

void Unmap::operator()(void* p) const {
  munmap(p, bytes);
}

SectionFile::SectionFile(const std::string& path) : path_(path) {
  // Not waiting for a writer, should it be a pipe.
  const File file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  user_check(file.fd() >= 0, "{}: {}", path, std::strerror(errno));
  struct stat info {};
  user_check(fstat(file.fd(), &info) == 0 && S_ISREG(info.st_mode), "{}: is no file", path);
  distrust_ = distrust_of(info);
  const auto size = static_cast<size_t>(info.st_size);
  Head head;
  const size_t known = std::min(size, sizeof kMagic);
  user_check(known == 0 ||
                 (::pread(file.fd(), head.magic.data(), known, 0) == static_cast<ssize_t>(known) &&
                  std::memcmp(head.magic.data(), kMagic.data(), known) == 0),
             "{}: is no executable of Tessera: it does not contain Poptorch metadata", path);
  user_check(size >= sizeof head, "{}: is cut: it has {} bytes", path, size);
  void* memory = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.fd(), 0);
  user_check(memory != MAP_FAILED, "{}: {}", path, std::strerror(errno));
  memory_ = {memory, Unmap{size}};
  const Bytes all(static_cast<const std::byte*>(memory), size);
  std::memcpy(&head, all.data(), sizeof head);
  user_check(head.version == kFormatVersion,
             "{}: is of version {} of the format, this is Tessera for version {}", path,
             head.version, kFormatVersion);
  user_check(head.bytes <= size, "{}: is cut: it has {} bytes of {}", path, size, head.bytes);
  const size_t table = head.sections * sizeof(Entry);
  user_check(head.sections <= kMostSections && sizeof head + table <= size &&
                 head.check == check_of(head, all.subspan(sizeof head, table)),
             "{}: is altered: its table of sections", path);
  user_check(head.bytes == size, "{}: is altered: it has {} bytes instead of {}", path, size,
             head.bytes);
  for (uint32_t i = 0; i < head.sections; ++i) {
    Entry e;
    std::memcpy(&e, all.data() + sizeof head + i * sizeof e, sizeof e);
    user_check(e.offset <= size && e.bytes <= size - e.offset && e.offset % kAlign == 0,
               "{}: is altered: section \"{}\" lies outside of it", path, name_of(e.kind));
    const Bytes bytes = all.subspan(e.offset, e.bytes);
    user_check(checksum(bytes) == e.check, "{}: is altered: section \"{}\"", path, name_of(e.kind));
    sections_.push_back({static_cast<SectionKind>(e.kind), bytes});
  }
}

Bytes SectionFile::section(SectionKind kind) const {
  for (const FileSection& s : sections_)
    if (s.kind == kind) return s.bytes;
  return {};
}

void SectionFile::touch() const {
  utimensat(AT_FDCWD, path_.c_str(), nullptr, 0);  // for prune; a cache may be read-only
}

namespace {

// Removes the file unless it got its final name.
class Unfinished {
 public:
  explicit Unfinished(const std::string& path) {
    static std::atomic<int> count{0};
    const size_t slash = path.rfind('/') + 1;  // 0 if there is none
    name_ = fmt::format("{}.{}.{}.{}{}", path.substr(0, slash), path.substr(slash), getpid(),
                        count++, kUnfinished);
  }
  ~Unfinished() {
    if (!name_.empty()) unlink(name_.c_str());
  }
  Unfinished(const Unfinished&) = delete;
  Unfinished& operator=(const Unfinished&) = delete;
  const char* name() const { return name_.c_str(); }
  bool finish(const std::string& path) {
    if (::rename(name_.c_str(), path.c_str()) != 0) return false;
    name_.clear();
    return true;
  }

 private:
  std::string name_;
};

bool write_all(int fd, Bytes bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
  return true;
}

}  // namespace

void write_sections(const std::string& path, const std::vector<FileSection>& sections,
                    bool lasting) {
  Head head;
  head.sections = static_cast<uint32_t>(sections.size());
  std::vector<Entry> entries;
  size_t at = aligned(sizeof head + sections.size() * sizeof(Entry));
  for (const FileSection& s : sections) {
    entries.push_back({static_cast<uint32_t>(s.kind), checksum(s.bytes), at, s.bytes.size()});
    at = aligned(at + s.bytes.size());
  }
  head.bytes = at;
  const Bytes table = std::as_bytes(std::span(entries));
  head.check = check_of(head, table);

  struct stat there {};
  user_check(::stat(path.c_str(), &there) != 0 || S_ISREG(there.st_mode), "{}: is no file", path);
  Unfinished unfinished(path);
  auto check = [&](bool ok) {
    user_check(ok, "{}: cannot be written: {}", path, std::strerror(errno));
  };
  // Whoever may write to it could have it run code of his.
  File file(::open(unfinished.name(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  check(file.fd() >= 0);
  static constexpr std::byte kZeros[kAlign] = {};
  size_t written = 0;
  auto write = [&](Bytes bytes) {
    check(write_all(file.fd(), bytes));
    written += bytes.size();
  };
  auto pad = [&] { write(Bytes(kZeros).first(aligned(written) - written)); };
  write(std::as_bytes(std::span(&head, 1)));
  write(table);
  pad();
  for (const FileSection& s : sections) {
    write(s.bytes);
    pad();
  }
  if (lasting) check(::fsync(file.fd()) == 0);
  check(file.close() == 0);
  check(unfinished.finish(path));
}

bool is_unfinished(const std::string& name, long& process) {
  if (!name.starts_with('.') || !name.ends_with(kUnfinished)) return false;
  const std::string_view rest = std::string_view(name).substr(0, name.size() - kUnfinished.size());
  const size_t count = rest.rfind('.');
  const size_t pid = count == 0 ? std::string_view::npos : rest.rfind('.', count - 1);
  if (pid == std::string_view::npos) return false;
  process = std::atol(std::string(rest.substr(pid + 1, count - pid - 1)).c_str());
  return process > 0;
}

}  // namespace tessera
