// SPDX-License-Identifier: Apache-2.0
#include "ops/host_limits.h"

#include <algorithm>

namespace tessera {

namespace {

// Our factorisations share a batch between threads, but not a matrix; those of torch share a matrix
// and take the matrices of a batch in turn. So each limit is a size for one matrix and a size for a
// batch, measured with two threads (docs/adr/0010-lapack-and-boost.md).
struct Limit {
  Op op;
  size_t results;
  int64_t one, batch;
};
constexpr Limit kLimits[] = {
    {Op::Eigh, 1, 32, 64},     {Op::Eigh, 2, 32, 64},        {Op::SvdThin, 1, 32, 64},
    {Op::SvdThin, 3, 64, 128}, {Op::MatrixExp, 1, 128, 512},
};

}  // namespace

bool host_is_faster(Op op, const Dims& shape, size_t results) {
  for (const Limit& limit : kLimits) {
    if (limit.op != op || limit.results != results || shape.size() < 2) continue;
    int64_t matrices = 1;
    for (size_t d = 0; d + 2 < shape.size(); ++d) matrices *= shape[d];
    const int64_t size = std::min(shape[shape.size() - 2], shape.back());
    return size > (matrices > 1 ? limit.batch : limit.one);
  }
  return false;
}

}  // namespace tessera
