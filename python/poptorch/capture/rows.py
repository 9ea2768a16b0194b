# SPDX-License-Identifier: Apache-2.0
"""What capture knows about the core's rows: how the pointwise ones type their results."""

# Result rule of each pointwise row: the promoted operand type, a float type, or bool.
_SAME = (
    "clone abs add ceil div_floor div_trunc floor fmax fmin fmod frexp_exponent frexp_mantissa gcd "
    "heaviside lcm maximum minimum mul neg nextafter pow remainder round sign square sub trunc "
    "relu threshold_backward bitwise_and bitwise_left_shift bitwise_not bitwise_or "
    "bitwise_right_shift bitwise_xor where"
).split()
_FLOAT = (
    "copysign div hypot reciprocal rsqrt sqrt acos acosh asin asinh atan atan2 atanh cos cosh erf "
    "erfc exp exp2 expm1 log log10 log1p log2 logaddexp sin sinh tan tanh xlogy gelu gelu_backward "
    "gelu_tanh gelu_tanh_backward sigmoid sigmoid_backward silu silu_backward tanh_backward "
    "softplus digamma erfinv i0 igamma igammac lgamma polygamma special_airy_ai special_bessel_j0 "
    "special_bessel_j1 special_bessel_y0 special_bessel_y1 special_chebyshev_polynomial_t "
    "special_chebyshev_polynomial_u special_chebyshev_polynomial_v special_chebyshev_polynomial_w "
    "special_erfcx special_hermite_polynomial_h special_hermite_polynomial_he special_i0e "
    "special_i1 special_i1e special_laguerre_polynomial_l special_legendre_polynomial_p "
    "special_log_ndtr special_modified_bessel_k0 special_modified_bessel_k1 special_ndtri "
    "special_scaled_modified_bessel_k0 special_scaled_modified_bessel_k1 "
    "special_spherical_bessel_j0 special_zeta"
).split()
_BOOL = (
    "eq ge gt isinf isnan le logical_and logical_not logical_or logical_xor lt ne signbit"
).split()
_GIVEN = "_to_copy full iota uniform".split()
RULES = {
    **dict.fromkeys(_SAME, "same"),
    **dict.fromkeys(_FLOAT, "float"),
    **dict.fromkeys(_BOOL, "bool"),
    **dict.fromkeys(_GIVEN, "given"),
}
ON_BOOLS = {
    "add": "logical_or",
    "maximum": "logical_or",
    "mul": "logical_and",
    "minimum": "logical_and",
}

# Beside the pointwise rows, what float64 may go through; other rows leave it to the host.
DOUBLE_ROWS = frozenset(
    "expand permute select slice squeeze transpose unsqueeze view sum amax amin host_call".split()
)
