// SPDX-License-Identifier: Apache-2.0
// What tells programs apart.
#pragma once

#include <string>

#include "base/settings.h"

namespace tessera {

// Of everything that decides what a text is compiled to: the text to the last line number, the
// settings, this build, the CPU, switches of the environment, libraries of custom ops. Equal keys
// mean equal programs.
std::string program_key(const std::string& text, const Settings& settings);

// Of what a text says: files, lines and names of modules left out. A model that was moved to other
// lines has the same one.
std::string graph_digest(const std::string& text);

// Settings that a program depends on, as a file keeps them.
std::vector<std::pair<std::string, Arg>> kept_settings(const Settings& settings);

}  // namespace tessera
