// SPDX-License-Identifier: Apache-2.0
// PopART's log: warnings and errors, or more by POPART_LOG_LEVEL.
#pragma once

#include <string>

#include "../detail/format.h"
#include "../detail/recorder.h"

namespace popart {
namespace logging {

template <typename... Args>
std::string format(const std::string& text, const Args&... args) {
  return tessera_compat::format(text, args...);
}

#define TESSERA_LOG(name, level)                                              \
  template <typename... Args>                                                 \
  void name(const std::string& text, const Args&... args) {                   \
    tessera_compat_log(level, tessera_compat::format(text, args...).c_str()); \
  }
TESSERA_LOG(trace, 0)
TESSERA_LOG(debug, 1)
TESSERA_LOG(info, 2)
TESSERA_LOG(warn, 3)
TESSERA_LOG(err, 4)

// The logs of PopART's parts are one here.
#define TESSERA_LOG_PART(part) \
  namespace part {             \
  TESSERA_LOG(trace, 0)        \
  TESSERA_LOG(debug, 1)        \
  TESSERA_LOG(info, 2)         \
  TESSERA_LOG(warn, 3)         \
  TESSERA_LOG(err, 4)          \
  }
TESSERA_LOG_PART(session)
TESSERA_LOG_PART(ir)
TESSERA_LOG_PART(op)
TESSERA_LOG_PART(opx)
TESSERA_LOG_PART(pattern)
TESSERA_LOG_PART(devicex)
TESSERA_LOG_PART(transform)
#undef TESSERA_LOG_PART
#undef TESSERA_LOG

}  // namespace logging
}  // namespace popart
