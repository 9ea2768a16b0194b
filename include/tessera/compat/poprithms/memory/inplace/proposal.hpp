// SPDX-License-Identifier: Apache-2.0
// Proposals to compute in place, which nobody asks for here.
#pragma once

namespace poprithms {
namespace memory {
namespace inplace {

class Proposal {};

}  // namespace inplace
}  // namespace memory
}  // namespace poprithms
