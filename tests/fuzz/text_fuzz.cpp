// SPDX-License-Identifier: Apache-2.0
// tessera_fuzz: damages programs and puts them through the compiler. Mutants run in forked batches,
// so that a crash or a hang ends one batch and is reported with a small program that shows it.
//   tessera_fuzz [--seed=1] [--first=0] [--count=2000] [--seconds=0] [--out=dir] dir...
//   tessera_fuzz --executables ...   damages compiled programs instead, as bytes
//   tessera_fuzz --replay=file
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <new>

#include "try_executable.h"

#if defined(__SANITIZE_ADDRESS__)
extern "C" int __lsan_do_recoverable_leak_check();
// Freed memory is kept a short while: growth of a batch is growth of what is in use.
extern "C" [[gnu::visibility("default"), gnu::used]] const char* __asan_default_options() {
  return "quarantine_size_mb=8:detect_leaks=1:allocator_may_return_null=1:handle_abort=0:"
         "alloc_dealloc_mismatch=0";
}
extern "C" [[gnu::visibility("default"), gnu::used]] const char* __ubsan_default_options() {
  return "halt_on_error=1:print_stacktrace=1";
}
constexpr int kSlow = 4;
#else
constexpr int kSlow = 1;
#endif

namespace {

constexpr size_t kMostHeap = size_t{1} << 28;  // one block

void* block(size_t bytes) {
  void* p = bytes > kMostHeap ? nullptr : std::malloc(bytes ? bytes : 1);
  if (!p) throw std::bad_alloc();
  return p;
}

}  // namespace

// The sanitizer's own ends the process where it should throw.
void* operator new(size_t bytes) {
  return block(bytes);
}
void* operator new[](size_t bytes) {
  return block(bytes);
}
void operator delete(void* p) noexcept {
  std::free(p);
}
void operator delete[](void* p) noexcept {
  std::free(p);
}
void operator delete(void* p, size_t) noexcept {
  std::free(p);
}
void operator delete[](void* p, size_t) noexcept {
  std::free(p);
}

namespace tessera::fuzz {
namespace {

constexpr uint64_t kBatch = 250;
constexpr int kSeconds = 5 * kSlow;  // of one mutant
constexpr int64_t kMemory = int64_t{3} << 30;
constexpr int64_t kGrowth = 64 << 20;  // of a batch after its first mutants

// What a batch tells its parent, in shared memory.
struct Report {
  uint64_t at = 0;  // mutant that runs
  uint64_t outcomes[5] = {};
  uint64_t bad = 0;
  char message[4000] = {};
};

struct Config {
  uint64_t seed = 1, first = 0, count = 2000;
  int seconds = 0;
  bool executables = false;
  std::string out, replay;
  std::vector<std::string> dirs;
};

int64_t status_bytes(const char* key) {
  std::ifstream in("/proc/self/status");
  for (std::string word; in >> word;)
    if (word == key) {
      int64_t kilobytes = 0;
      in >> kilobytes;
      return kilobytes * 1024;
    }
  return 0;
}

void limit_memory() {
  const rlim_t most = static_cast<rlim_t>(status_bytes("VmData:") + kMemory);
  rlimit limit{most, most};
  setrlimit(RLIMIT_DATA, &limit);
  limit = {0, 0};
  setrlimit(RLIMIT_CORE, &limit);
}

void start_clock() {
  itimerval t{};
  t.it_value.tv_sec = kSeconds;
  setitimer(ITIMER_REAL, &t, nullptr);
}

Random data_for(const Config& c, uint64_t index) {
  return Random(c.seed ^ (index << 20) ^ 0xdadau);
}

// In the child: mutants [first, last), or until one is bad.
void run_batch(const Config& c, const std::vector<std::string>& programs, uint64_t first,
               uint64_t last, Report& report) {
  limit_memory();
  int64_t before = 0;
  for (uint64_t i = first; i < last; ++i) {
    report.at = i;
    start_clock();
    Random r = data_for(c, i);
    const Result result = c.executables ? try_executable(programs, r)
                                        : try_program(make_mutant(programs, c.seed, i), r);
    ++report.outcomes[static_cast<int>(result.outcome)];
    if (result.outcome == Outcome::kBad) {
      std::snprintf(report.message, sizeof(report.message), "%s", result.message.c_str());
      report.bad = 1;
      _exit(3);
    }
    if (i == first + kBatch / 5) before = status_bytes("VmRSS:");
  }
  report.at = last;
  const int64_t grown = before ? status_bytes("VmRSS:") - before : 0;
  if (grown > kGrowth) {
    std::snprintf(report.message, sizeof(report.message),
                  "memory grew by %ld MiB in mutants %lu to %lu", static_cast<long>(grown >> 20),
                  first, last);
    _exit(4);
  }
#if defined(__SANITIZE_ADDRESS__)
  if (__lsan_do_recoverable_leak_check()) _exit(5);
#endif
  _exit(0);
}

struct Forked {
  int status = 0;
  std::string said;  // what the sanitizer wrote
};

template <typename F>
Forked fork_and_wait(F child) {
  int ends[2];
  if (pipe(ends) != 0) std::abort();
  std::fflush(nullptr);
  const pid_t pid = fork();
  if (pid == 0) {
    close(ends[0]);
    dup2(ends[1], 2);
    child();
    _exit(0);
  }
  close(ends[1]);
  Forked f;
  char buffer[4096];
  for (ssize_t n; (n = read(ends[0], buffer, sizeof(buffer))) > 0;)
    if (f.said.size() < 20000) f.said.append(buffer, static_cast<size_t>(n));
  close(ends[0]);
  waitpid(pid, &f.status, 0);
  return f;
}

// The kind of a failure, short enough to count; empty if all is well.
std::string kind_of(const Forked& f, const Report& report) {
  if (WIFEXITED(f.status) && WEXITSTATUS(f.status) == 0) return "";
  if (report.bad || (WIFEXITED(f.status) && WEXITSTATUS(f.status) == 4)) return report.message;
  if (WIFSIGNALED(f.status) && WTERMSIG(f.status) == SIGALRM) return "hang";
  for (const char* mark :
       {"runtime error: ", "ERROR: AddressSanitizer: ", "ERROR: LeakSanitizer: "}) {
    const size_t at = f.said.find(mark);
    if (at == std::string::npos) continue;
    // A runtime error stands behind its line; process and address say nothing.
    const size_t start = mark[0] == 'r' ? f.said.rfind('\n', at) + 1 : at;
    const std::string line = f.said.substr(start, f.said.find('\n', at) - start);
    return line.substr(0, std::min<size_t>(line.find(" on "), 200));
  }
  if (WIFSIGNALED(f.status)) return fmt::format("signal {}", strsignal(WTERMSIG(f.status)));
  return fmt::format("exit code {}", WEXITSTATUS(f.status));
}

std::string failure_of(const Mutant& m, Random r, Report& report) {
  report = {};
  const Forked f = fork_and_wait([&] {
    limit_memory();
    start_clock();
    const Result result = try_program(m, r);
    if (result.outcome == Outcome::kBad) {
      std::snprintf(report.message, sizeof(report.message), "%s", result.message.c_str());
      report.bad = 1;
      _exit(3);
    }
    _exit(0);
  });
  return kind_of(f, report);
}

// Without the lines that it fails without.
Mutant reduced(Mutant m, const Random& r, Report& report) {
  const std::string kind = failure_of(m, r, report);
  const bool hang = kind == "hang";
  for (size_t end = m.text.size(); end > 0 && !hang && m.text.size() < 100000;) {
    const size_t begin = m.text.rfind('\n', end - 1) == std::string::npos || end < 2
                             ? 0
                             : m.text.rfind('\n', end - 2) + 1;
    Mutant shorter = m;
    shorter.text.erase(begin, end - begin);
    if (failure_of(shorter, r, report) == kind) m = shorter;
    end = begin;
  }
  return m;
}

int run(const Config& c) {
  void* shared =
      mmap(nullptr, sizeof(Report), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  auto& report = *new (shared) Report();
  if (!c.replay.empty()) {
    std::ifstream in(c.replay);
    Mutant m{{std::istreambuf_iterator<char>(in), {}}, {}};
    m.options.settings.set("training", Arg::boolean(true));
    Random r(c.seed);
    const Result result = try_program(m, r);
    std::printf("%d %s\n", static_cast<int>(result.outcome), result.message.c_str());
    return result.outcome == Outcome::kBad;
  }
  const std::vector<std::string> programs = read_programs(c.dirs);
  if (programs.empty()) {
    std::fprintf(stderr, "no programs\n");
    return 2;
  }
  const auto start = std::chrono::steady_clock::now();
  uint64_t outcomes[5] = {}, done = c.first;
  std::map<std::string, int> kinds;
  const uint64_t end = c.first + c.count;
  while (done < end) {
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    if (c.seconds > 0 && took.count() > c.seconds) break;
    report = {};
    const uint64_t first = done, last = std::min(end, first + kBatch);
    const Forked f = fork_and_wait([&] { run_batch(c, programs, first, last, report); });
    for (int i = 0; i < 5; ++i) outcomes[i] += report.outcomes[i];
    const std::string kind = kind_of(f, report);
    done = kind.empty() || report.at == last ? last : report.at + 1;
    if (kind.empty()) continue;
    const uint64_t index = report.at;
    if (++kinds[kind] > 1) continue;  // one of a kind
    std::printf("FOUND %s\n  mutant %lu of seed %lu\n", kind.c_str(), index, c.seed);
    if (c.executables) std::printf("%s\n", f.said.c_str());
    if (index < last && !c.executables) {
      const Mutant m = reduced(make_mutant(programs, c.seed, index), data_for(c, index), report);
      std::printf("%s\n", m.text.substr(0, 3000).c_str());
      if (!c.out.empty()) {
        std::ofstream(fmt::format("{}/{}-{}.tir", c.out, c.seed, index)) << m.text;
        std::ofstream(fmt::format("{}/{}-{}.txt", c.out, c.seed, index)) << kind << '\n' << f.said;
      }
    }
    std::fflush(stdout);
  }
  int found = 0;
  for (auto& [kind, times] : kinds) found += times;
  std::printf(
      "%lu mutants of %zu programs, seed %lu: %lu refused, %lu compiled, %lu ran, %lu refused "
      "while running; %d bad of %zu kinds\n",
      done - c.first, programs.size(), c.seed, outcomes[0], outcomes[1], outcomes[2], outcomes[3],
      found, kinds.size());
  for (auto& [kind, times] : kinds) std::printf("  %d x %s\n", times, kind.c_str());
  return found > 0;
}

}  // namespace
}  // namespace tessera::fuzz

int main(int argc, char** argv) {
  tessera::fuzz::Config c;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    const size_t eq = std::min(arg.find('='), arg.size());
    const std::string key = arg.substr(0, eq), value = eq < arg.size() ? arg.substr(eq + 1) : "";
    auto number = [&] { return std::strtoull(value.c_str(), nullptr, 10); };
    if (key == "--seed")
      c.seed = number();
    else if (key == "--first")
      c.first = number();
    else if (key == "--count")
      c.count = number();
    else if (key == "--seconds")
      c.seconds = static_cast<int>(number());
    else if (key == "--executables")
      c.executables = true;
    else if (key == "--out")
      c.out = value;
    else if (key == "--replay")
      c.replay = value;
    else
      c.dirs.push_back(arg);
  }
  return tessera::fuzz::run(c);
}
