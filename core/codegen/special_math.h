// SPDX-License-Identifier: Apache-2.0
// Special functions of one or two numbers in double: the lanes of the rare rows of pointwise.def,
// compiled and interpreted alike. Values at poles and outside domains are those of torch.special.
#pragma once

namespace tessera::special {

// Functions of one operand that have vector code of their own for f32.
#define TESSERA_VECTOR_SPECIAL(ONE) \
  ONE(digamma)                      \
  ONE(erfcx)                        \
  ONE(erfinv)                       \
  ONE(i0)                           \
  ONE(i0e)                          \
  ONE(i1)                           \
  ONE(i1e)                          \
  ONE(lgamma)                       \
  ONE(log_ndtr)                     \
  ONE(ndtri)

// Those that are always computed lane by lane, of one operand and of two.
#define TESSERA_LANE_SPECIAL(ONE, TWO) \
  ONE(airy_ai)                         \
  ONE(bessel_j0)                       \
  ONE(bessel_j1)                       \
  ONE(bessel_y0)                       \
  ONE(bessel_y1)                       \
  ONE(modified_bessel_k0)              \
  ONE(modified_bessel_k1)              \
  ONE(scaled_modified_bessel_k0)       \
  ONE(scaled_modified_bessel_k1)       \
  ONE(spherical_bessel_j0)             \
  TWO(chebyshev_polynomial_t)          \
  TWO(chebyshev_polynomial_u)          \
  TWO(chebyshev_polynomial_v)          \
  TWO(chebyshev_polynomial_w)          \
  TWO(hermite_polynomial_h)            \
  TWO(hermite_polynomial_he)           \
  TWO(igamma)                          \
  TWO(igammac)                         \
  TWO(laguerre_polynomial_l)           \
  TWO(legendre_polynomial_p)           \
  TWO(polygamma)                       \
  TWO(zeta)

#define TESSERA_ONE(name) double name(double x);
#define TESSERA_TWO(name) double name(double x, double y);
TESSERA_VECTOR_SPECIAL(TESSERA_ONE)
TESSERA_LANE_SPECIAL(TESSERA_ONE, TESSERA_TWO)
#undef TESSERA_ONE
#undef TESSERA_TWO

}  // namespace tessera::special
