# SPDX-License-Identifier: Apache-2.0
"""Ops between replicas."""

import torch

from poptorch.capture.library import replicas  # noqa: F401
from poptorch.capture.lower.table import Results, lower
from poptorch.capture.text.value import Value
from poptorch.capture.text.writer import Writer


@lower("tessera::exchange")
def _(w: Writer, n: Results, x: Value, size: int, stride: int) -> Value:
    # Programs are cut between the two.
    return w.op("clone", [w.op("exchange", [x, size, stride], x.dtype, x.shape)], x.dtype, x.shape)


@lower("tessera::replica_index")
def _(w: Writer, n: Results) -> Value:
    return w.op("clone", [w.replica_count()], torch.float32, ())
