// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

namespace tessera {

void bind_errors(nanobind::module_& m);

}  // namespace tessera
