// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

#include <string>

#include "base/attrs.h"

namespace tessera {

void bind_errors(nanobind::module_& m);
void bind_custom(nanobind::module_& m);
void bind_devices(nanobind::module_& m);
void bind_files(nanobind::module_& m);

// Names of files need not be UTF-8.
nanobind::str text(const std::string& s);

// A value of Python as an argument, and an argument as a value; `name` is for the error.
Arg argument(const std::string& name, nanobind::handle value, int depth = 0);
nanobind::object literal(const Arg& a);

}  // namespace tessera
