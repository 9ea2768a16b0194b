// SPDX-License-Identifier: Apache-2.0
#include "executable/executable.h"

#include <unordered_map>

#include "custom/host.h"
#include "executable/check_program.h"
#include "executable/program_bytes.h"

namespace tessera {
namespace {

std::string header_bytes(const Executable& e) {
  const ExecutableHeader& h = e.header;
  Writer w;
  for (const std::string* s : {&h.creator, &h.name, &h.key, &h.digest}) w.text(*s);
  w.list(h.settings, [&](const auto& s) {
    w.text(s.first);
    w.arg(s.second);
  });
  w.list(h.tensor_names, [&](const std::string& s) { w.text(s); });
  w.list(h.custom, [&](const CustomUse& u) {
    w.text(u.domain);
    w.text(u.name);
    w.integer(u.version);
    w.text(u.library);
  });
  // Constants lie as they are used, each on lines of its own.
  int64_t at = 0;
  w.list(e.constants, [&](const auto& c) {
    w.text(c.first);
    w.integer(at);
    w.integer(static_cast<int64_t>(c.second.size()));
    at += whole_lines(static_cast<int64_t>(c.second.size()));
  });
  return w.take();
}

std::string constant_bytes(const Executable& e) {
  std::string out;
  for (const auto& [name, bytes] : e.constants) {
    out += text_of(bytes);
    out.resize(static_cast<size_t>(whole_lines(static_cast<int64_t>(out.size()))));
  }
  return out;
}

std::string code_bytes(const MachineCode& code) {
  Writer w;
  w.text(code.target);
  w.list(code.objects, [&](const auto& o) {
    w.text(o.first);
    w.text(o.second);
  });
  return w.take();
}

struct ConstantPlace {
  std::string name;
  int64_t offset = 0, bytes = 0;
};

struct Head {
  ExecutableHeader header;
  std::vector<ConstantPlace> constants;
};

Head read_head(Bytes bytes) {
  Reader r(bytes);
  Head out;
  ExecutableHeader& h = out.header;
  for (std::string* s : {&h.creator, &h.name, &h.key, &h.digest}) *s = r.text();
  h.settings = r.list<std::pair<std::string, Arg>>([&] {
    std::string name = r.text();
    return std::pair(std::move(name), r.arg());
  });
  h.tensor_names = r.list<std::string>([&] { return r.text(); });
  h.custom = r.list<CustomUse>([&] {
    CustomUse u;
    u.domain = r.text();
    u.name = r.text();
    u.version = r.integer(0, INT32_MAX, "version");
    u.library = r.text();
    return u;
  });
  out.constants = r.list<ConstantPlace>([&] {
    ConstantPlace c;
    c.name = r.text();
    c.offset = r.integer(0, kMaxTensorBytes, "place");
    c.bytes = r.integer(0, kMaxTensorBytes, "size");
    return c;
  });
  r.end();
  return out;
}

// What `read` gives; what it finds wrong is said of the file.
template <typename F>
auto of_file(const std::string& path, const F& read) {
  try {
    return read();
  } catch (const Damaged& error) {
    throw UserError(fmt::format("{}: is damaged: {}", path, error.what()));
  }
}

}  // namespace

void write_executable(const std::string& path, const Executable& e, bool lasting) {
  const std::string header = header_bytes(e), program = program_bytes(*e.program);
  const std::string constants = constant_bytes(e), code = code_bytes(e.code);
  std::vector<FileSection> sections{{SectionKind::kHeader, bytes_of(header)},
                                    {SectionKind::kProgram, bytes_of(program)}};
  if (!constants.empty()) sections.push_back({SectionKind::kConstants, bytes_of(constants)});
  if (!e.code.objects.empty()) sections.push_back({SectionKind::kCode, bytes_of(code)});
  if (!e.host.empty()) sections.push_back({SectionKind::kHost, bytes_of(e.host)});
  if (!e.model.empty()) sections.push_back({SectionKind::kModel, bytes_of(e.model)});
  write_sections(path, sections, lasting);
}

ExecutableFile::ExecutableFile(const std::string& path)
    : file_(path),
      header_(
          of_file(path, [&] { return read_head(file_.section(SectionKind::kHeader)).header; })) {}

Program ExecutableFile::program() const {
  for (const CustomUse& u : header_.custom)
    user_check(tessera_find_op(u.domain.c_str(), u.name.c_str(), static_cast<int32_t>(u.version)),
               "{}: needs custom op {}.{}:{} of {}: load that library first", path(), u.domain,
               u.name, u.version, u.library);
  return of_file(path(), [&] {
    Program p = read_program(file_.section(SectionKind::kProgram));
    check_program(p);
    return p;
  });
}

std::vector<std::pair<std::string, Bytes>> ExecutableFile::constants(const Program& program) const {
  return of_file(path(), [&] {
    std::unordered_map<std::string_view, const StateDesc*> states;
    for (const StateDesc& s : program.states)
      if (s.source.kind == SourceKind::kConst) states[s.name] = &s;
    const Bytes all = file_.section(SectionKind::kConstants);
    const auto size = static_cast<int64_t>(all.size());
    std::vector<std::pair<std::string, Bytes>> out;
    for (const ConstantPlace& c : read_head(file_.section(SectionKind::kHeader)).constants) {
      auto state = states.find(c.name);
      sound(state != states.end() && state->second->bytes() == c.bytes,
            "constant {} is not of its program", c.name);
      sound(c.offset <= size && c.bytes <= size - c.offset, "constant {} is not there", c.name);
      out.emplace_back(c.name,
                       all.subspan(static_cast<size_t>(c.offset), static_cast<size_t>(c.bytes)));
      states.erase(state);
    }
    sound(states.empty(), "it has no constant {}", states.empty() ? "" : states.begin()->first);
    return out;
  });
}

MachineCode ExecutableFile::code() const {
  return of_file(path(), [&] {
    MachineCode out;
    const Bytes bytes = file_.section(SectionKind::kCode);
    if (bytes.empty()) return out;
    Reader r(bytes);
    out.target = r.text();
    out.objects = r.list<std::pair<std::string, std::string>>([&] {
      std::string key = r.text();
      return std::pair(std::move(key), r.text());
    });
    r.end();
    return out;
  });
}

}  // namespace tessera
