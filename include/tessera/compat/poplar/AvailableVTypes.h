// SPDX-License-Identifier: Apache-2.0
// Which compact layouts the target has: all, as plain pointers.
#pragma once

#define POPLAR_AVAILABLE_VTYPES
#define VECTOR_AVAIL_SHORT_SPAN 1
#define VECTOR_AVAIL_SCALED_PTR32 1
#define VECTOR_AVAIL_SCALED_PTR64 0
#define VECTORLIST_AVAIL_DELTAN 1
