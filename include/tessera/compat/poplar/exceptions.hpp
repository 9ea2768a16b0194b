// SPDX-License-Identifier: Apache-2.0
// What the functions of Poplar throw.
#pragma once

#include <stdexcept>
#include <string>

#include "../detail/recorder.h"

namespace poplar {

struct poplar_error : std::runtime_error {
  explicit poplar_error(const std::string& text) : std::runtime_error(text) {}
};
struct graph_error : poplar_error {
  using poplar_error::poplar_error;
};
struct runtime_error : poplar_error {
  using poplar_error::poplar_error;
};
struct invalid_option : poplar_error {
  using poplar_error::poplar_error;
};

namespace detail {
// What the recorder refused.
template <typename T>
T checked(T x) {
  if (!x) throw graph_error(tessera_rec_error());
  return x;
}
inline void checked_zero(int rc) {
  if (rc) throw graph_error(tessera_rec_error());
}
}  // namespace detail

}  // namespace poplar
