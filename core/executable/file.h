// SPDX-License-Identifier: Apache-2.0
// A file of sections, each with its checksum: docs/executables.md has the bytes. Files are written
// whole under another name first, so nobody ever sees a part of one, and they are mapped to be
// read.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "executable/bytes.h"

namespace tessera {

constexpr uint32_t kFormatVersion = 1;

enum class SectionKind : uint32_t {
  kHeader = 1,  // what it is, and for whom
  kProgram = 2,
  kConstants = 3,
  kCode = 4,   // machine code of fused regions
  kHost = 5,   // notes of whoever compiled it, as text
  kModel = 6,  // pickled
};

struct FileSection {
  SectionKind kind{};
  Bytes bytes;
};

struct Unmap {
  size_t bytes = 0;
  void operator()(void* p) const;
};

class SectionFile {
 public:
  // Maps the file and checks all of it. Throws UserError that begins with its name and says whether
  // it is foreign, of another version, cut or altered.
  explicit SectionFile(const std::string& path);

  const std::string& path() const { return path_; }
  // Empty if there is none.
  Bytes section(SectionKind kind) const;
  // Empty if nobody but this user and the administrator could have written it, else who else could.
  const std::string& distrust() const { return distrust_; }
  // Marks it as just used.
  void touch() const;

 private:
  std::string path_, distrust_;
  std::unique_ptr<void, Unmap> memory_;
  std::vector<FileSection> sections_;
};

// Makes or replaces `path`. `lasting`: waits until it is on the disk. Throws UserError, and leaves
// what was there, if it cannot.
void write_sections(const std::string& path, const std::vector<FileSection>& sections,
                    bool lasting);

// Of a file that is still being written, or was when its writer died: its name, and that process.
bool is_unfinished(const std::string& name, long& process);

}  // namespace tessera
