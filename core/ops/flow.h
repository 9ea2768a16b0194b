// SPDX-License-Identifier: Apache-2.0
// Loops and branches: which operand of a node is which input of its bodies.
#pragma once

#include "base/attrs.h"
#include "base/tensor.h"
#include "ir/graph.h"

namespace tessera {

inline bool is_flow(Op op) {
  return op == Op::Scan || op == Op::While || op == Op::Branch;
}

// scan(count, [carries], [xs], [captures], reverse) and while([carries], [captures]). The operands
// are those of the lists in order, and so are the inputs of the body. Its outputs are the carries
// of the next turn, then the ys. The first carry of a while is a bool: there is another turn as
// long as it is true.
struct LoopParts {
  int64_t count = 0;  // 0 for a while
  size_t carries = 0, xs = 0, captures = 0;
  bool reverse = false;

  bool is_carry(size_t operand) const { return operand < carries; }
  bool is_x(size_t operand) const { return operand >= carries && operand < carries + xs; }
  // The slice of a turn.
  int64_t slice(int64_t turn) const { return reverse ? count - 1 - turn : turn; }
};

// Of a branch: none.
LoopParts loop_parts(Op op, const Args& args);

// The argument that lists what all turns, or both ways, read.
inline size_t captures_argument(Op op) {
  return op == Op::Scan ? 3 : 1;
}

// The first operand of a node that its bodies read: a branch has its condition before it.
inline size_t first_body_operand(Op op) {
  return op == Op::Branch ? 1 : 0;
}

// Whether the node gives the same for the same operands and does nothing else, in its bodies too:
// no host call, no function of a user that varies.
bool is_pure(const Node& n);

// Whether the bodies of `n` read operand `i` as it lies: row-major, but the slices of an x may
// stand apart.
bool reads_as_it_lies(const Node& n, size_t i, const TensorRef& physical);

}  // namespace tessera
