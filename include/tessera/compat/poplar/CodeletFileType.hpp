// SPDX-License-Identifier: Apache-2.0
// What a file of codelets holds. Only C++ can be run here; the name of the file tells.
#pragma once

namespace poplar {

enum class CodeletFileType {
  PreprocessedAsmSource,
  AsmSource,
  IrSource,
  CSource,
  CppSource,
  Object,
  Auto
};

}  // namespace poplar
