// SPDX-License-Identifier: Apache-2.0
#include "base/settings.h"

#include <fmt/ranges.h>

namespace tessera {
namespace {

// As Python writes it.
std::string shown(const Arg& a) {
  switch (a.kind) {
    case Arg::Kind::kBool:
      return a.i ? "True" : "False";
    case Arg::Kind::kInt:
      return fmt::format("{}", a.i);
    case Arg::Kind::kFloat:
      return fmt::format("{}", a.f);
    case Arg::Kind::kString:
      return fmt::format("'{}'", a.s);
    case Arg::Kind::kList: {
      std::vector<std::string> items;
      for (const Arg& item : a.list) items.push_back(shown(item));
      return fmt::format("[{}]", fmt::join(items, ", "));
    }
    default:
      return "None";
  }
}

}  // namespace

namespace settings {

bool read(const Arg& a, bool& to) {
  to = a.i != 0;
  return a.kind == Arg::Kind::kBool;
}

bool read(const Arg& a, int64_t& to) {
  to = a.i;
  return a.kind == Arg::Kind::kInt || a.kind == Arg::Kind::kBool;
}

bool read(const Arg& a, std::string& to) {
  to = a.s;
  return a.kind == Arg::Kind::kString;
}

void refuse(std::string_view name, const Arg& value) {
  throw UserError(fmt::format("[options] {} is no value for {}", shown(value), name));
}

void check_range(std::string_view name, int64_t value, int64_t low, int64_t high) {
  user_check(value >= low && value <= high, "[options] {} must be from {} to {}, got {}", name, low,
             high, value);
}

}  // namespace settings

const Arg* Settings::find(std::string_view name) const {
  asked_->emplace(name);
  auto it = values_.find(name);
  return it == values_.end() || it->second.is_none() ? nullptr : &it->second;
}

void Settings::check_all_asked() const {
  for (const auto& [name, value] : values_)
    user_check(asked_->contains(name), "[options] '{}' is not known", name);
}

}  // namespace tessera
