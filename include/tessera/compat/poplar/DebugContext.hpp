// SPDX-License-Identifier: Apache-2.0
// Names that programs give to what they do.
#pragma once

#include <string>

#include "StringRef.hpp"

namespace poplar {

struct SourceLocation {
  static SourceLocation Current() { return {}; }
};

class DebugNameAndId {
 public:
  DebugNameAndId(const std::string& name = "") : name_(name) {}
  DebugNameAndId(const char* name) : name_(name) {}
  DebugNameAndId(const DebugNameAndId& parent, const std::string& name)
      : name_(parent.name_.empty() ? name : parent.name_ + "/" + name) {}
  std::string getPathName() const { return name_; }

 private:
  std::string name_;
};

class DebugInfo;

class DebugContext {
 public:
  DebugContext() {}
  DebugContext(const char* name) : name_(name) {}
  DebugContext(const std::string& name) : name_(name) {}
  DebugContext(const StringRef& name) : name_(name.cloneAsString()) {}
  DebugContext(const DebugNameAndId& n, const std::string& name = "")
      : name_(DebugNameAndId(n, name).getPathName()) {}
  DebugContext(const DebugContext& parent, const std::string& name)
      : name_(parent.name_.empty() ? name : parent.name_ + "/" + name) {}
  DebugContext(const DebugInfo& info, const std::string& name = "");

  std::string getPathName() const { return name_; }

 private:
  std::string name_;
};

class DebugInfo {
 public:
  DebugInfo(const DebugContext& dc, const std::string& api = "") : name_(dc.getPathName()) {
    (void)api;
  }
  std::string getPathName() const { return name_; }

 private:
  std::string name_;
};

inline DebugContext::DebugContext(const DebugInfo& info, const std::string& name)
    : name_(info.getPathName().empty() ? name : info.getPathName() + "/" + name) {}

}  // namespace poplar
