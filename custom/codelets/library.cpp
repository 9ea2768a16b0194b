// SPDX-License-Identifier: Apache-2.0
#include "custom/codelets/library.h"

#include <dlfcn.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <stdexcept>

#include "custom/codelets/process.h"
#include "custom/codelets/scan.h"

namespace tessera::codelets {
namespace fs = std::filesystem;
namespace {

constexpr size_t kShownBytes = 6000;  // of the compiler's text

// The headers of codelets stand in the installed package or in the source tree, above this library.
std::string header_folder() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<void*>(&header_folder), &info) == 0 || info.dli_fname == nullptr)
    throw std::runtime_error("cannot tell where libtessera_ops is");
  std::error_code error;
  fs::path folder = fs::weakly_canonical(info.dli_fname, error).parent_path();
  for (int level = 0; level < 8; ++level, folder = folder.parent_path()) {
    fs::path headers = folder / "include" / "tessera" / "compat";
    if (fs::exists(headers / "poplar" / "Vertex.hpp", error)) return headers.string();
  }
  throw std::runtime_error(
      std::string("the headers of codelets (include/tessera/compat) are missing near ") +
      info.dli_fname + "; install the package again");
}

struct Compiler {
  std::vector<std::string> words;
  std::string version;
};

// $CXX, or the first of the usual names that runs.
Compiler find_compiler() {
  const char* cxx = std::getenv("CXX");
  std::vector<std::vector<std::string>> names;
  if (cxx != nullptr && !split_words(cxx).empty())
    names = {split_words(cxx)};
  else
    names = {{"g++"}, {"c++"}, {"clang++"}};
  for (std::vector<std::string>& words : names) {
    std::vector<std::string> ask = words;
    ask.push_back("--version");
    Finished answer = run(ask);
    if (answer.status == 0) return {words, answer.out};
  }
  if (cxx != nullptr)
    throw std::runtime_error(std::string("codelets are compiled with $CXX, which does not run: ") +
                             cxx);
  throw std::runtime_error(
      "codelets need a C++ compiler and none was found: install g++, or set CXX to one");
}

// Codelets are compiled for the machine that runs them.
std::string processor() {
  std::string text;
  try {
    text = read_file("/proc/cpuinfo");
  } catch (const std::runtime_error&) {
    return "unknown";
  }
  std::string found;
  for (const char* key : {"model name", "flags", "Features"}) {
    size_t at = text.find(key);
    if (at != std::string::npos) found += text.substr(at, text.find('\n', at) - at) + "\n";
  }
  return found;
}

std::vector<std::string> compile_flags(const Compiler& compiler, const std::string& headers,
                                       const std::string& user) {
  std::vector<std::string> flags = {"-std=gnu++17", "-O3", "-march=native", "-fPIC",
                                    // What codelets rely on: their fields seen as other types, no
                                    // assertions, one rounding per operation.
                                    "-fno-strict-aliasing", "-DNDEBUG", "-ffp-contract=off",
                                    "-fno-access-control", "-fvisibility=hidden", "-w",
                                    "-D__POPC__=1", "-isystem", headers};
  if (compiler.version.find("clang") == std::string::npos)
    flags.push_back("-fexcess-precision=16");
  else
    flags.push_back("-ffloat16-excess-precision=none");
  flags.insert(flags.end(), {"-include", "ipu_builtins.h", "-include", "poplar/Vertex.hpp"});
  for (std::string& word : split_words(user)) flags.push_back(std::move(word));
  return flags;
}

std::string shown(const std::string& text) {
  if (text.size() <= kShownBytes) return text;
  return text.substr(0, text.rfind('\n', kShownBytes)) + "\n...";
}

std::vector<std::string> command(const Compiler& compiler, const std::vector<std::string>& flags,
                                 const std::vector<std::string>& more) {
  std::vector<std::string> words = compiler.words;
  words.insert(words.end(), flags.begin(), flags.end());
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

[[noreturn]] void refuse(const std::string& path, const Compiler& compiler,
                         const std::string& text) {
  throw std::runtime_error("the codelets in " + path + " do not compile with " +
                           compiler.words.front() + ":\n" + shown(text));
}

// The user's file, and tables of what is in it.
std::string wrap(const std::string& path, const Found& found) {
  std::string text = "#include \"" + path + "\"\n#define TESSERA_CODELET_SIDE 1\n" +
                     "#include <detail/codelet_table.h>\n";
  std::string rows;
  for (size_t i = 0; i < found.vertices.size(); ++i) {
    const FoundVertex& v = found.vertices[i];
    std::string n = std::to_string(i), full;
    std::string open, close;
    for (const std::string& s : v.scope) {
      open += "namespace " + s + " { ";
      close += "} ";
      if (!s.empty()) full += "::" + s;
    }
    std::string alias = full + "::tessera_vertex_" + n;
    text += open + "using tessera_vertex_" + n + " = " + v.written + "; " + close + "\n";
    text += "static const tessera_field tessera_fields_" + n + "[] = {\n";
    for (const std::string& f : v.fields)
      text += "  TESSERA_CODELET_FIELD(" + alias + ", " + f + "),\n";
    text += "  {}};\n";
    std::string constructor = v.constructor ? "true" : "false";
    rows += "  {\"" + v.name + "\", sizeof(" + alias + "), alignof(" + alias +
            "), tessera_fields_" + n + ", " + std::to_string(v.fields.size()) +
            ", tessera_codelet::workers<" + alias + ">(), tessera_codelet::constructor<" + alias +
            ", " + constructor + ">(), tessera_codelet::compute<" + alias + ">},\n";
  }
  text += "static const tessera_vertex tessera_vertices_[] = {\n" + rows + "  {}};\n";
  text += "static const tessera_codelets tessera_table_ = {TESSERA_CODELET_ABI, " +
          std::to_string(found.vertices.size()) + ", tessera_vertices_, tessera_codelet::seed};\n";
  text +=
      "extern \"C\" __attribute__((visibility(\"default\"))) const tessera_codelets* "
      "tessera_codelet_table() { return &tessera_table_; }\n";
  return text;
}

void check_kind(const fs::path& path) {
  std::string kind = path.extension().string();
  if (kind == ".gp")
    throw std::runtime_error(path.string() +
                             " holds codelets compiled for an IPU, which cannot run here: give "
                             "addCodelets the C++ file that they were compiled from");
  if (kind == ".S" || kind == ".s")
    throw std::runtime_error(
        path.string() +
        " is assembly of the IPU, which cannot run here: give addCodelets a C++ "
        "file with the same vertices");
  if (kind == ".o" || kind == ".a" || kind == ".so")
    throw std::runtime_error(
        path.string() +
        " is compiled code: give addCodelets the C++ file that it was compiled from");
}

// Time and size of the files that a library was made of, to see whether they changed.
std::string stamp(const std::vector<std::string>& files) {
  std::string text;
  for (const std::string& file : files) {
    struct stat s {};
    if (stat(file.c_str(), &s) != 0) continue;
    text += file + ":" + std::to_string(s.st_mtim.tv_sec) + "." +
            std::to_string(s.st_mtim.tv_nsec) + ":" + std::to_string(s.st_size) + ";";
  }
  return text;
}

struct Opened {
  std::vector<std::string> files;
  std::string stamp;
  std::shared_ptr<const Library> library;
};

struct Libraries {
  std::mutex mutex;
  std::map<std::string, Opened> by_call;  // path and flags
  std::map<std::string, std::shared_ptr<const Library>> by_id;
};

Libraries& libraries() {
  static auto* all = new Libraries;  // the libraries stay until the process ends
  return *all;
}

}  // namespace

std::shared_ptr<const Library> Library::open(const std::string& given,
                                             const std::string& user_flags) {
  check_kind(given);
  std::error_code error;
  if (!fs::exists(given, error)) throw std::runtime_error("addCodelets: there is no file " + given);
  std::string path = fs::canonical(given, error).string();
  if (error) path = given;

  Libraries& all = libraries();
  std::lock_guard<std::mutex> lock(all.mutex);
  std::string call = path + "\n" + user_flags;
  auto known = all.by_call.find(call);
  if (known != all.by_call.end() && stamp(known->second.files) == known->second.stamp)
    return known->second.library;

  Compiler compiler = find_compiler();
  std::vector<std::string> flags = compile_flags(compiler, header_folder(), user_flags);
  Finished pre = run(command(compiler, flags, {"-E", path}));
  if (pre.status != 0) refuse(path, compiler, pre.err);
  Found found = scan(pre.out);

  std::string key = "abi " + std::to_string(TESSERA_CODELET_ABI) + "\n" + compiler.version + "\n" +
                    processor() + "\n";
  for (const std::string& flag : flags) key += flag + "\n";
  std::string text = wrap(path, found);
  std::string id = digest(key + text + pre.out);
  std::shared_ptr<const Library>& library = all.by_id[id];
  if (!library) {
    std::string base = cache_folder() + "/" + id, file = base + ".so";
    if (!fs::exists(file, error)) {
      std::string unique = base + "." + std::to_string(getpid());
      std::string source = unique + ".cpp", part = unique + ".so";
      write_file(source, text);
      Finished built = run(command(compiler, flags, {"-shared", source, "-o", part}));
      std::remove(source.c_str());
      if (built.status != 0) refuse(path, compiler, built.err);
      if (std::rename(part.c_str(), file.c_str()) != 0)
        throw std::runtime_error("cannot write " + file);
    }
    auto fresh = std::shared_ptr<Library>(new Library);
    fresh->path_ = path;
    fresh->id_ = id;
    fresh->random_ = found.random;
    fresh->templates_ = found.templates;
    fresh->load(file);
    library = fresh;
  }
  all.by_call[call] = {found.files, stamp(found.files), library};
  return library;
}

std::shared_ptr<const Library> Library::open_text(const std::string& text,
                                                  const std::string& flags) {
  std::string file = cache_folder() + "/" + digest(text) + ".text.cpp";
  std::error_code error;
  if (!fs::exists(file, error)) write_file(file, text);
  return open(file, flags);
}

void Library::load(const std::string& file) {
  void* handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr)
    throw std::runtime_error("the codelets in " + path_ + " do not load: " + dlerror());
  auto get =
      reinterpret_cast<const tessera_codelets* (*)()>(dlsym(handle, "tessera_codelet_table"));
  if (get == nullptr || get()->abi != TESSERA_CODELET_ABI)
    throw std::runtime_error("the codelets in " + path_ +
                             " were compiled by another version: remove " + file);
  table_ = get();
  for (uint32_t i = 0; i < table_->vertex_count; ++i) {
    const tessera_vertex& v = table_->vertices[i];
    exact_.emplace(canonical_name(v.name), &v);
    bare_.emplace(bare_name(v.name), &v);
  }
}

const tessera_vertex* Library::find(const std::string& name) const {
  auto exact = exact_.find(canonical_name(name));
  if (exact != exact_.end()) return exact->second;
  auto [begin, end] = bare_.equal_range(bare_name(name));
  return begin != end && std::next(begin) == end ? begin->second : nullptr;
}

}  // namespace tessera::codelets
