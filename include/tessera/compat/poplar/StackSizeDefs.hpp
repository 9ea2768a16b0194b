// SPDX-License-Identifier: Apache-2.0
// Stack sizes are the device's concern; the macros are empty here.
#pragma once

#define DEF_STACK_USAGE(...)
#define DEF_STACK_SIZE_OWN(...)
#define DEF_FUNC_CALL_PTRS(...)
#define DEF_FUNC_CALLS(...)
