# SPDX-License-Identifier: Apache-2.0
"""How far a result may be from eager PyTorch's, per dtype: stated here and nowhere else."""

import torch

# (relative, absolute) for one forward or backward pass
PASS = {
    torch.float32: (1e-4, 1e-5),
    torch.float16: (2e-3, 1e-3),
    torch.bfloat16: (1.6e-2, 1e-2),
    torch.int64: (0, 0),
    torch.int32: (0, 0),
    torch.bool: (0, 0),
}
# for weights after many steps: rounding differences are fed back by training
STEPS = {torch.float32: (2e-3, 2e-4)}


def assert_pass_close(actual, expected, what=""):
    """Compares the results of one pass."""
    _close(actual, expected, PASS, what)


def assert_steps_close(actual, expected, what=""):
    """Compares weights, buffers or losses after several training steps."""
    _close(actual, expected, STEPS | {k: v for k, v in PASS.items() if v == (0, 0)}, what)


def _close(actual, expected, table, what):
    rtol, atol = table[expected.dtype]
    torch.testing.assert_close(
        actual, expected, rtol=rtol, atol=atol, equal_nan=True, msg=lambda m: f"{what}: {m}"
    )
