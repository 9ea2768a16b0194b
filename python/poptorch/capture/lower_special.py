# SPDX-License-Identifier: Apache-2.0
"""Lowerings of special functions: most are rows of the core, the others a few of them."""

import math

from .lower_pointwise import clamped, register_plain
from .lowering import lower

_PLAIN = (
    "digamma erfinv i0 igamma igammac lgamma logaddexp special_airy_ai special_bessel_j0 "
    "special_bessel_j1 special_bessel_y0 special_bessel_y1 special_chebyshev_polynomial_t "
    "special_chebyshev_polynomial_u special_chebyshev_polynomial_v special_chebyshev_polynomial_w "
    "special_erfcx special_hermite_polynomial_h special_hermite_polynomial_he special_i0e "
    "special_i1 special_i1e special_laguerre_polynomial_l special_legendre_polynomial_p "
    "special_log_ndtr special_modified_bessel_k0 special_modified_bessel_k1 special_ndtri "
    "special_scaled_modified_bessel_k0 special_scaled_modified_bessel_k1 "
    "special_spherical_bessel_j0 special_zeta xlogy"
).split()
for _name in _PLAIN:
    register_plain(_name)


def _register_shifted(kind):
    row = f"special_chebyshev_polynomial_{kind}"

    def run(w, n, x, degree):
        return w.pointwise(row, x * 2 - 1, degree, dtype=n.dtype)

    lower(f"special_shifted_chebyshev_polynomial_{kind}")(run)


for _kind in "tuvw":
    _register_shifted(_kind)


@lower("special_modified_bessel_i0")
def _(w, n, x):
    return w.pointwise("i0", x, dtype=n.dtype)


@lower("special_modified_bessel_i1")
def _(w, n, x):
    return w.pointwise("special_i1", x, dtype=n.dtype)


@lower("polygamma")
def _(w, n, order, x):
    if order == 0:
        return w.pointwise("digamma", x, dtype=n.dtype)
    return w.pointwise("polygamma", float(order), x, dtype=n.dtype)


@lower("mvlgamma")
def _(w, n, x, p):
    x = w.cast(x, n.dtype)
    out = x.lgamma()
    for j in range(1, p):
        out = out + (x - j / 2).lgamma()
    return out + p * (p - 1) / 4 * math.log(math.pi)


@lower("special_xlog1py")
def _(w, n, a, b):
    log = w.pointwise("log1p", b)
    product = w.where(w.pointwise("eq", a, 0), 0.0, w.pointwise("mul", a, log))
    return w.cast(w.where(w.pointwise("isnan", b), math.nan, product), n.dtype)


@lower("special_entr")
def _(w, n, x):
    x = w.cast(x, n.dtype)
    edge = w.where(x.equals(0), x, -math.inf)
    return w.where(x.isnan(), x, w.where(x > 0, -(x * x.log()), edge))


@lower("sinc")
def _(w, n, x):
    angle = w.cast(x, n.dtype) * math.pi
    return w.where(angle.equals(0), 1.0, angle.sin() / angle)


@lower("logit")
def _(w, n, x, eps):
    x = w.cast(x, n.dtype)
    if eps is not None:
        x = clamped(w, x, eps, 1 - eps)
    return (x / (1.0 - x)).log()


@lower("logit_backward")
def _(w, n, grad, x, eps):
    low = 0.0 if eps is None else eps
    outside = (x < low) | (x > 1.0 - low)
    return w.where(outside, math.nan if eps is None else 0.0, grad / (x * (1.0 - x)))


@lower("logaddexp2")
def _(w, n, a, b):
    high, low = w.pointwise("maximum", a, b), w.pointwise("minimum", a, b)
    same = high.isinf() & high.equals(low)
    return w.where(same, a, high + (low - high).exp2().log1p() * (1 / math.log(2.0)))
