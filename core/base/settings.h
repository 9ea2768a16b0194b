// SPDX-License-Identifier: Apache-2.0
// Options of a compilation by name. Who needs one declares it beside the code that reads it, with
// its type, its default and its bounds:
//
//     constexpr Setting<bool> kHalfPartials{"half_partials", false};
//     if (settings.get(kHalfPartials)) ...
//
// A value of another type or out of bounds is the user's error when it is read, and one that nobody
// has read is the user's error at the end. So every compilation reads all of its settings: ask
// first, decide then.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "base/attrs.h"

namespace tessera {

template <typename T>
struct Setting {
  std::string_view name;
  T fallback{};
  int64_t low = INT64_MIN, high = INT64_MAX;  // of a number
};

// A choice between words.
template <typename E, size_t N>
struct WordSetting {
  std::string_view name;
  E fallback{};
  std::pair<std::string_view, E> words[N];
};

namespace settings {

// Whether `a` is a T, which is then in `to`. A bool counts as a number, as in Python.
bool read(const Arg& a, bool& to);
bool read(const Arg& a, int64_t& to);
bool read(const Arg& a, std::string& to);
template <typename T>
bool read(const Arg& a, std::vector<T>& to);
template <typename... T>
bool read(const Arg& a, std::tuple<T...>& to);

template <typename T>
bool read(const Arg& a, std::vector<T>& to) {
  if (a.kind != Arg::Kind::kList) return false;
  for (const Arg& item : a.list)
    if (!read(item, to.emplace_back())) return false;
  return true;
}

template <typename... T>
bool read(const Arg& a, std::tuple<T...>& to) {
  if (a.kind != Arg::Kind::kList || a.list.size() != sizeof...(T)) return false;
  size_t i = 0;
  return std::apply([&](T&... item) { return (read(a.list[i++], item) && ...); }, to);
}

[[noreturn]] void refuse(std::string_view name, const Arg& value);
void check_range(std::string_view name, int64_t value, int64_t low, int64_t high);

template <typename E, size_t N>
E word(const WordSetting<E, N>& s, const std::string& word) {
  for (const auto& [text, value] : s.words)
    if (word == text) return value;
  refuse(s.name, Arg::string(word));
}

}  // namespace settings

class Settings {
 public:
  void set(std::string name, Arg value) { values_[std::move(name)] = std::move(value); }

  template <typename T>
  T get(const Setting<T>& s) const {
    const Arg* given = find(s.name);
    if (!given) return s.fallback;
    T value{};
    if (!settings::read(*given, value)) settings::refuse(s.name, *given);
    if constexpr (std::is_same_v<T, int64_t>) settings::check_range(s.name, value, s.low, s.high);
    return value;
  }
  template <typename E, size_t N>
  E get(const WordSetting<E, N>& s) const {
    const Arg* given = find(s.name);
    if (!given) return s.fallback;
    std::string text;
    if (!settings::read(*given, text)) settings::refuse(s.name, *given);
    return settings::word(s, text);
  }

  const std::map<std::string, Arg, std::less<>>& values() const { return values_; }
  // Names that were read, of this object and of its copies.
  const std::set<std::string, std::less<>>& asked() const { return *asked_; }
  // Throws UserError for a value that nobody has read.
  void check_all_asked() const;

 private:
  const Arg* find(std::string_view name) const;

  std::map<std::string, Arg, std::less<>> values_;
  std::shared_ptr<std::set<std::string, std::less<>>> asked_ =
      std::make_shared<std::set<std::string, std::less<>>>();
};

}  // namespace tessera
