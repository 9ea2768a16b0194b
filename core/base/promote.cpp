// SPDX-License-Identifier: Apache-2.0
#include "base/promote.h"

#include <algorithm>

namespace tessera {
namespace {

int rank_of(DType t) {
  switch (t) {
    case DType::Bool:
      return 0;
    case DType::U8:
    case DType::I8:
      return 1;
    case DType::I16:
      return 2;
    case DType::I32:
      return 3;
    case DType::I64:
      return 4;
    case DType::F16:
    case DType::BF16:
      return 5;
    case DType::F32:
      return 6;
    default:
      return 7;
  }
}

}  // namespace

std::optional<Dims> broadcast(const Dims& a, const Dims& b) {
  Dims out(std::max(a.size(), b.size()), 1);
  for (size_t i = 0; i < out.size(); ++i) {
    size_t from_end = out.size() - i;
    int64_t x = from_end <= a.size() ? a[a.size() - from_end] : 1;
    int64_t y = from_end <= b.size() ? b[b.size() - from_end] : 1;
    if (x != y && x != 1 && y != 1) return std::nullopt;
    out[i] = x == 1 ? y : x;
  }
  return out;
}

DType promote(DType a, DType b) {
  if (a == b) return a;
  if ((a == DType::U8 && b == DType::I8) || (a == DType::I8 && b == DType::U8)) return DType::I16;
  if ((a == DType::F16 && b == DType::BF16) || (a == DType::BF16 && b == DType::F16))
    return DType::F32;
  return rank_of(a) > rank_of(b) ? a : b;
}

}  // namespace tessera
