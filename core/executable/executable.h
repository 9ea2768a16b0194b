// SPDX-License-Identifier: Apache-2.0
// An executable: a program and what is needed to run it, as a file. It is the same file for a
// cache, an export and a load; a cache leaves out what its user has anyway.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "executable/file.h"
#include "plan/program.h"

namespace tessera {

// An op that the program calls, and the file that it came from.
struct CustomUse {
  std::string domain, name;
  int64_t version = 0;
  std::string library;
};

struct ExecutableHeader {
  std::string creator;  // version of the package that made it
  std::string name;     // of the program
  std::string key;      // what it was compiled from and by; see session/keys.h
  std::string digest;   // the graph alone
  std::vector<std::pair<std::string, Arg>> settings;
  std::vector<std::string> tensor_names;
  std::vector<CustomUse> custom;
};

// Object files by key, and what running them needs.
struct MachineCode {
  std::string target;
  std::vector<std::pair<std::string, std::string>> objects;
};

// What is written; empty parts are left out.
struct Executable {
  ExecutableHeader header;
  const Program* program = nullptr;
  std::vector<std::pair<std::string, Bytes>> constants;  // states
  MachineCode code;
  std::string_view host;   // text of whoever compiled it
  std::string_view model;  // his pickle
};

void write_executable(const std::string& path, const Executable& e, bool lasting);

// One that was read. All of it throws UserError with the name of the file.
class ExecutableFile {
 public:
  explicit ExecutableFile(const std::string& path);

  const std::string& path() const { return file_.path(); }
  const ExecutableHeader& header() const { return header_; }
  Program program() const;  // checked
  std::vector<std::pair<std::string, Bytes>> constants(const Program& program) const;
  MachineCode code() const;
  std::string_view host() const { return text_of(file_.section(SectionKind::kHost)); }
  std::string_view model() const { return text_of(file_.section(SectionKind::kModel)); }
  const std::string& distrust() const { return file_.distrust(); }
  void touch() const { file_.touch(); }

 private:
  SectionFile file_;
  ExecutableHeader header_;
};

}  // namespace tessera
