// SPDX-License-Identifier: Apache-2.0
// Which nodes behind a product work row by row, and can be done for a piece of its rows at a time.
#pragma once

#include <map>
#include <set>
#include <vector>

#include "ir/graph.h"

namespace tessera {

constexpr int kWhole = -1;   // no dim of this value is that of the rows
constexpr int kSummed = -2;  // over the rows

// A node as it is done for each piece.
struct RowPart {
  int node = 0;
  std::vector<int> cut;   // per operand: the dim of the rows, or kWhole
  std::vector<int> rows;  // per result: the dim of the rows, or kSummed
  bool closes = false;    // what reads its results is not part of a piece
};

struct RowParts {
  std::vector<RowPart> parts;     // in the order of the nodes, the product first
  std::map<ValueId, int> inside;  // values that pieces hand on, with the dim of their rows
  // Numbers of labels that losses count: no piece is needed to tell.
  std::set<ValueId> counts;
  // Pieces are whole numbers of units; where a view sees the rows in groups, a unit is a group. Of
  // every value inside, the dim of the rows is a multiple of it.
  int64_t units = 0;
};

// From the product at index `seed`, whose left operand has the rows (or the batch), to the products
// that take the gradient to its operands. A view that leaves fewer than `least` units is no part.
RowParts find_row_parts(const Graph& g, int seed, int64_t least);

}  // namespace tessera
