// SPDX-License-Identifier: Apache-2.0
// Programs in files: written, read, damaged, kept in a cache.
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

#include "base/checksum.h"
#include "executable/cache.h"
#include "session/keys.h"
#include "session/session.h"

using namespace tessera;
namespace fs = std::filesystem;

namespace {

struct TempDir {
  fs::path path;
  TempDir() {
    std::string name = (fs::temp_directory_path() / "tessera-XXXXXX").string();
    path = mkdtemp(name.data());
  }
  ~TempDir() { fs::remove_all(path); }
  std::string file(const char* name) const { return (path / name).string(); }
};

const char* kProgram = R"(tessera 1
graph "scale" {
  param %0 "w" : f32[4]
  const %1 "c" : f32[4]
  input %2 "x" : f32[4]
  %3 = mul(%2, %0) : f32[4] !0
  %4 = exp(%3) : f32[4] !0
  %5 = add(%4, %1) : f32[4] !1
  output %5
}
loc !0 "model.py" 12 "fc" fwd 0 0 -1
loc !1 "model.py" 13 "fc" fwd 0 0 -1
)";
const float kConstant[4] = {1, 2, 3, 4}, kInput[4] = {0, 1, 2, 3};
const std::vector<float> kResult{2, 4.7182818f, 10.3890561f, 24.0855369f};

Constants constants() {
  return {{"c", {kConstant, sizeof kConstant}}};
}

std::vector<float> run(Session& s) {
  const float w[4] = {1, 1, 1, 1};
  s.engine().write_state("w", w, sizeof w);
  std::vector<float> y(4);
  s.engine().run({kInput}, {y.data()}, nullptr);
  return y;
}

bool right(const std::vector<float>& y) {
  for (size_t i = 0; i < y.size(); ++i)
    if (std::abs(y[i] - kResult[i]) > 1e-4f) return false;
  return y.size() == kResult.size();
}

void save_program(const std::string& path) {
  Session s(kProgram, {}, constants(), nullptr);
  s.save(path, {"1.0", R"({"notes": 1})", "pickle"});
}

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void write_file(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
  chmod(path.c_str(), 0644);
}

std::string error_of(const std::string& path) {
  try {
    const ExecutableFile file(path);
    Session s(file, {}, nullptr);
    return right(run(s)) ? "" : "wrong results";
  } catch (const UserError& error) {
    return error.what();
  }
}

bool says(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

bool noted(const Session& s, bool warning, const char* part) {
  return std::any_of(s.notes().begin(), s.notes().end(),
                     [&](const Note& n) { return n.warning == warning && says(n.text, part); });
}

}  // namespace

TEST_CASE("checksums and digests are those of the standards") {
  CHECK(checksum(bytes_of("123456789")) == 0xe3069283u);
  CHECK(checksum(bytes_of("56789"), checksum(bytes_of("1234"))) == 0xe3069283u);
  CHECK(Digest().hex() == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(Digest().part("ab").part("c").hex() != Digest().part("a").part("bc").hex());
}

TEST_CASE("a program comes back from a file with its constants") {
  const TempDir dir;
  const std::string path = dir.file("model");
  save_program(path);
  const ExecutableFile file(path);
  CHECK(file.header().creator == "1.0");
  CHECK(file.host() == R"({"notes": 1})");
  CHECK(file.model() == "pickle");
  Session s(file, {}, nullptr);
  CHECK(right(run(s)));
  CHECK(s.origin() == path);
  CHECK(s.summary().find("model.py:12") != std::string::npos);
  CHECK(s.notes().empty());
}

TEST_CASE("regions of numbers alone come back too") {
  const TempDir dir;
  const char* text = R"(tessera 1
graph "numbers" {
  %0 = full(2.5) : f32[4]
  %1 = _to_copy(%0) : i32[4]
  output %0, %1
})";
  Session(text, {}, {}, nullptr).save(dir.file("numbers"), {});
  Session s(ExecutableFile(dir.file("numbers")), {}, nullptr);
  float a[4];
  int32_t b[4];
  s.engine().run({}, {a, b}, nullptr);
  CHECK(a[3] == 2.5f);
  CHECK(b[3] == 2);
}

TEST_CASE("a file of other settings is refused by their names") {
  const TempDir dir;
  save_program(dir.file("model"));
  CompileOptions options;
  options.settings.set("half_partials", Arg::boolean(true));
  CHECK_THROWS_WITH_AS(Session(ExecutableFile(dir.file("model")), options, nullptr),
                       doctest::Contains("made with other options: half_partials"), UserError);
}

TEST_CASE("the error of a file says what is wrong with it") {
  const TempDir dir;
  const std::string path = dir.file("model");
  save_program(path);
  const std::string good = read_file(path);
  auto with = [&](const std::string& bytes) {
    write_file(path, bytes);
    const std::string error = error_of(path);
    CHECK(says(error, path.c_str()));
    return error;
  };
  CHECK(says(with(""), "is cut"));
  CHECK(says(with(good.substr(0, good.size() / 2)), "is cut"));
  CHECK(
      says(with("PK\x03\x04 and so on, long enough to have a header of ours"), "is no executable"));
  std::string other = good;
  other[8] = 9;
  CHECK(says(with(other), "version 9"));
  CHECK(says(with(good + "more"), "is altered"));
  other = good;
  other[good.size() - 64] ^= 1;  // where the last section begins
  CHECK(says(with(other), "is altered"));
  CHECK(says(error_of(dir.file("missing")), "No such file"));
  CHECK(says(error_of(dir.path.string()), "is no file"));
}

TEST_CASE("a thousand changed bytes and two hundred cuts are errors or change nothing") {
  const TempDir dir;
  const std::string path = dir.file("model");
  save_program(path);
  const std::string good = read_file(path);
  std::mt19937 random(1);
  int refused = 0;
  for (int k = 0; k < 1200; ++k) {
    std::string bad = good;
    if (k < 1000)
      bad[random() % bad.size()] ^= static_cast<char>(1 + random() % 255);
    else
      bad.resize(random() % bad.size());
    write_file(path, bad);
    const std::string error = error_of(path);
    CHECK_MESSAGE(error != "wrong results", "mutant ", k);
    refused += !error.empty();
  }
  CHECK(refused >= 1000);  // the rest is between sections
}

TEST_CASE("machine code that others could have written is not run") {
  const TempDir dir;
  const std::string path = dir.file("model");
  save_program(path);
  chmod(path.c_str(), 0666);
  const ExecutableFile file(path);
  Session s(file, {}, nullptr);
  CHECK(right(run(s)));
  CHECK(noted(s, true, "others may write to it"));
}

TEST_CASE("machine code for another CPU is compiled again") {
  const TempDir dir;
  const std::string path = dir.file("model");
  Session made(kProgram, {}, constants(), nullptr);
  Executable e;
  e.program = &made.engine().program();
  e.header.settings = kept_settings({});
  e.constants.emplace_back("c", std::as_bytes(std::span(kConstant)));
  e.code = {"build of somebody else\navx1024\n", {{"key", "no object file"}}};
  write_executable(path, e, false);
  const ExecutableFile file(path);
  Session s(file, {}, nullptr);
  CHECK(right(run(s)));
  CHECK(noted(s, false, "another CPU"));
}

TEST_CASE("a graph has one digest wherever its lines are, and a key for each place") {
  std::string moved = kProgram;
  moved.replace(moved.find("model.py\" 12"), 12, "other.py\" 99");
  CHECK(graph_digest(moved) == graph_digest(kProgram));
  CHECK(program_key(moved, {}) != program_key(kProgram, {}));
  std::string changed = kProgram;
  changed.replace(changed.find("exp"), 3, "log");
  CHECK(graph_digest(changed) != graph_digest(kProgram));
  Settings threads, half;
  threads.set("threads", Arg::integer(3));
  half.set("half_partials", Arg::boolean(true));
  CHECK(program_key(kProgram, threads) == program_key(kProgram, {}));
  CHECK(program_key(kProgram, half) != program_key(kProgram, {}));
}

TEST_CASE("the second compilation of a text is read from the cache") {
  const TempDir dir;
  const std::string cache = dir.file("cache");
  Session first(kProgram, {}, constants(), nullptr, cache, "1.0");
  CHECK(first.origin().empty());
  CHECK(right(run(first)));
  Session second(kProgram, {}, constants(), nullptr, cache, "1.0");
  CHECK(!second.origin().empty());
  CHECK(noted(second, false, "was read from"));
  CHECK(right(run(second)));
  CHECK(cache_entries(cache).size() == 1);
}

TEST_CASE("a bad entry is compiled again, replaced, and warned about") {
  const TempDir dir;
  { Session s(kProgram, {}, constants(), nullptr, dir.path.string(), "1.0"); }
  const std::string path = cache_entries(dir.path.string()).at(0).path;
  const std::string good = read_file(path);
  write_file(path, good.substr(0, good.size() - 100));
  CHECK(says(cache_entries(dir.path.string()).at(0).problem, "is cut"));
  Session again(kProgram, {}, constants(), nullptr, dir.path.string(), "1.0");
  CHECK(noted(again, true, "compiled again"));
  CHECK(right(run(again)));
  CHECK(cache_entries(dir.path.string()).at(0).problem.empty());
}

TEST_CASE("an entry under another's name is not used") {
  const TempDir dir;
  { Session s(kProgram, {}, constants(), nullptr, dir.path.string(), "1.0"); }
  const std::string path = cache_entries(dir.path.string()).at(0).path;
  std::string other = kProgram;
  other.replace(other.find("exp"), 3, "neg");
  fs::rename(path, Cache(dir.path.string()).path_of(program_key(other, {})));
  Session s(other, {}, constants(), nullptr, dir.path.string(), "1.0");
  CHECK(noted(s, true, "is another executable"));
  CHECK(run(s)[3] == 1.0f);  // 4 - 3
}

TEST_CASE("a cache that cannot be written is a warning") {
  Session s(kProgram, {}, constants(), nullptr, "/proc/no/such/place", "1.0");
  CHECK(noted(s, true, "is not used"));
  Session full(kProgram, {}, constants(), nullptr, "/proc", "1.0");
  CHECK(noted(full, true, "is not kept"));
  CHECK(right(run(full)));
}

TEST_CASE("pruning keeps what was used last, and removes what was never finished") {
  const TempDir dir;
  std::string text = kProgram;
  for (const char* op : {"exp", "neg", "abs"}) {
    text.replace(text.find("%4 = ") + 5, 3, op);
    Session(text, {}, constants(), nullptr, dir.path.string(), "1.0");
    usleep(20000);
  }
  const std::vector<CacheEntry> before = cache_entries(dir.path.string());
  REQUIRE(before.size() == 3);
  const pid_t dead = fork();
  if (dead == 0) _exit(0);
  waitpid(dead, nullptr, 0);
  write_file(dir.file(fmt::format(".x.{}.0.unfinished", dead).c_str()), "half");
  write_file(dir.file(fmt::format(".x.{}.0.unfinished", getpid()).c_str()), "being written");
  CHECK(prune_cache(dir.path.string(), before[0].bytes + before[1].bytes).size() == 2);
  const std::vector<CacheEntry> after = cache_entries(dir.path.string());
  REQUIRE(after.size() == 2);
  CHECK(after[1].path == before[1].path);
  CHECK(fs::exists(dir.file(fmt::format(".x.{}.0.unfinished", getpid()).c_str())));
  CHECK(prune_cache(dir.path.string(), 0).size() == 2);
}

#ifndef __SANITIZE_THREAD__  // it forks
TEST_CASE("a process that is killed while it writes leaves no broken entry") {
  const TempDir dir;
  Session made(kProgram, {}, constants(), nullptr);
  Executable e;
  e.program = &made.engine().program();
  e.header.key = "key";
  // Large enough that most of them die in the middle.
  const std::string notes(8 << 20, 'x');
  e.host = notes;
  const Cache cache(dir.path.string());
  std::mt19937 random(1);
  int missing = 0, whole = 0;
  for (int k = 0; k < 60; ++k) {
    const pid_t child = fork();
    if (child == 0) {
      for (;;) write_executable(cache.path_of("key"), e, false);
    }
    usleep(random() % 30000);
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    const std::unique_ptr<ExecutableFile> found = cache.find("key");  // throws for a broken one
    (found ? whole : missing) += 1;
    if (k % 3 == 0) fs::remove(cache.path_of("key"));
    prune_cache(dir.path.string(), int64_t{1} << 40);
  }
  CHECK(whole > 0);
  CHECK(whole + missing == 60);
}
#endif
