// SPDX-License-Identifier: Apache-2.0
// Options of library functions, by name. They are about speed and memory of the device: kept, not
// used.
#pragma once

#include <initializer_list>
#include <map>
#include <string>
#include <utility>

namespace poplar {

class OptionFlags {
 public:
  using OptionFlag = std::pair<const std::string, std::string>;
  using iterator = std::map<std::string, std::string>::const_iterator;

  OptionFlags() {}
  OptionFlags(std::initializer_list<OptionFlag> l) : values_(l) {}

  void set(const std::string& key, const std::string& value) { values_[key] = value; }
  void set(std::initializer_list<OptionFlag> l) {
    for (const auto& v : l) values_[v.first] = v.second;
  }
  std::string at(const std::string& key) const { return values_.at(key); }
  void clear() { values_.clear(); }
  iterator begin() const { return values_.begin(); }
  iterator end() const { return values_.end(); }

 private:
  std::map<std::string, std::string> values_;
};

}  // namespace poplar
