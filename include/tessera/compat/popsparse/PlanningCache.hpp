// SPDX-License-Identifier: Apache-2.0
#pragma once
#error "popsparse is not supported by Tessera's headers: docs/custom-ops.md"
