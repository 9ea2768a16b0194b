// SPDX-License-Identifier: Apache-2.0
// The choice between the two builds of the kernels.
#include "kernels/dispatch.h"

#include <doctest/doctest.h>

#include <cmath>

#include "base/env.h"
#include "kernels/softmax.h"

namespace tessera::test {
namespace {

TEST_CASE("TESSERA_ISA=v3 leaves AVX-512 unused") {
  const kernels::Isa isa = kernels::host_isa();
  if (env::isa() == "v3") CHECK(isa == kernels::Isa::kV3);
  if (isa == kernels::Isa::kV3) CHECK(!kernels::host_has_bf16_dots());
  CHECK(&kernels::softmax_kernels() == &kernels::softmax_kernels(isa));
}

TEST_CASE("the two builds of a family are two, and agree") {
  const auto& v3 = kernels::softmax_kernels(kernels::Isa::kV3);
  const auto& v4 = kernels::softmax_kernels(kernels::Isa::kV4);
  CHECK(&v3 != &v4);
  if (kernels::host_isa() == kernels::Isa::kV3) return;  // this processor runs one of them
  constexpr int64_t kLength = 37;
  float x[kLength], y[2][kLength];
  for (int64_t i = 0; i < kLength; ++i) x[i] = std::sin(static_cast<float>(i * i));
  v3.rows(x, y[0], 1, kLength, kLength, kLength, false);
  v4.rows(x, y[1], 1, kLength, kLength, kLength, false);
  for (int64_t i = 0; i < kLength; ++i) CHECK(y[0][i] == doctest::Approx(y[1][i]).epsilon(1e-6));
}

}  // namespace
}  // namespace tessera::test
