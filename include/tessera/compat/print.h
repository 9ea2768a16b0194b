// SPDX-License-Identifier: Apache-2.0
// Printing from codelets: to the standard output of the process.
#pragma once

#include <cstdio>
