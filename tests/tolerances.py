# SPDX-License-Identifier: Apache-2.0
"""How far a result may be from eager PyTorch's, per dtype: stated here and nowhere else."""

import torch

# (relative, absolute) for one forward or backward pass
PASS = {
    torch.float32: (1e-4, 1e-5),
    torch.float64: (1e-4, 1e-5),
    torch.float16: (2e-3, 1e-3),
    torch.bfloat16: (1.6e-2, 1e-2),
    torch.int64: (0, 0),
    torch.int32: (0, 0),
    torch.int16: (0, 0),
    torch.int8: (0, 0),
    torch.uint8: (0, 0),
    torch.uint16: (0, 0),
    torch.uint32: (0, 0),
    torch.uint64: (0, 0),
    torch.bool: (0, 0),
}
# After many steps: this much of the largest value, or this many times what eager float32 is off.
STEPS = (1e-4, 10)

# The same model on one IPU and on several, after a few steps: sums in another order.
SAME = (2e-5, 2e-6)


def assert_pass_close(actual, expected, what="", computed_in=None):
    """Compares the results of one pass; `computed_in` if that was not the type of the result."""
    table = PASS if computed_in is None else {**PASS, expected.dtype: PASS[computed_in]}
    _close(actual, expected, table, what)


def assert_steps_close(actual, expected, what=""):
    """Compares losses or weights after a few training steps of a well-conditioned model."""
    table = PASS | {torch.float32: (2e-3, 2e-4)}
    _close(actual, expected, table, what)


def assert_same_steps(actual, expected):
    """Compares structures of outputs and weights of one model that was run in two ways."""
    rtol, atol = SAME
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=atol)


def assert_no_worse(ours, theirs, true, what="", at_least=1e-3):
    """Ours is as near to the float64 result as eager float32, within STEPS of its size."""
    share, times = STEPS
    error, allowed = float((ours - true).abs().max()), float((theirs - true).abs().max())
    scale = max(float(true.abs().max()), at_least)
    assert error <= max(share * scale, times * allowed), f"{what}: off by {error}, eager {allowed}"


def assert_near_truth(actual, expected, truth, what="", computed_in=None):
    """Compares with eager; where that fails, ours may be as far from the float64 result as eager.

    `truth` gives the float64 result or None. Eager's own error counts twice, because its rounding
    is as much a matter of chance as ours.
    """
    try:
        if expected.is_complex():
            actual, expected = _parts(actual), _parts(expected)
        assert_pass_close(actual, expected, what, computed_in)
    except AssertionError:
        true = truth() if expected.is_floating_point() else None
        if true is None:
            raise
        true = _parts(true) if true.is_complex() else true
        if not _as_near(actual.double(), expected.double(), true.double(), PASS[expected.dtype]):
            raise


def _parts(tensor):
    """Real and imaginary parts, in types that can be compared."""
    parts = torch.view_as_real(tensor.resolve_conj())
    return parts.float() if parts.dtype is torch.float16 else parts


def _as_near(ours, theirs, true, allowed):
    rtol, atol = allowed
    finite = true.isfinite() & theirs.isfinite()
    # where eager overflows, ours may do so too or be right
    same = (ours == theirs) | (ours.isnan() & theirs.isnan())
    right = (ours - true).abs() <= atol + rtol * true.abs()
    if not bool((same | right)[~finite].all()):
        return False
    if not finite.any():
        return True
    error, eager_error = (ours - true).abs()[finite], (theirs - true).abs()[finite]
    # an error of eager in one element says how well the whole result is conditioned
    return bool((error <= atol + rtol * true.abs()[finite] + 2 * eager_error.max()).all())


def _close(actual, expected, table, what):
    rtol, atol = table[expected.dtype.to_real() if expected.is_complex() else expected.dtype]
    torch.testing.assert_close(
        actual, expected, rtol=rtol, atol=atol, equal_nan=True, msg=lambda m: f"{what}: {m}"
    )
