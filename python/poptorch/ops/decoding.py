# SPDX-License-Identifier: Apache-2.0
"""Decoding of label sequences."""

from typing import Any

import torch

from poptorch.base.errors import createPoptorchError
from poptorch.capture import running_on_ipu
from poptorch.ops.checks import check_tensor

_OP = "ctc_beam_search_decoder"
_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def ctc_beam_search_decoder(
    probs: torch.Tensor,
    lengths: torch.Tensor,
    blank: int = 0,
    beam_width: int = 100,
    top_paths: int = 1,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The likeliest label sequences; outside a captured model zeros of the right shapes.

    Returns log-probabilities of the sequences [batch, top_paths], best first, their lengths
    [batch, top_paths] and labels [batch, top_paths, time], filled up with blanks. Where fewer than
    ``top_paths`` sequences are possible, the rest has the log-probability -inf and no labels. No
    gradient flows through it.

    Args:
        probs: log-probabilities, [time, batch, classes].
        lengths: lengths of the sequences, [batch].
        blank: the class that stands for no label.
        beam_width: sequences that are followed at a time.
        top_paths: sequences that are returned.
    """
    check_tensor(_OP, probs)
    check_tensor(_OP, lengths)
    if probs.dim() != 3:
        raise createPoptorchError(f"{_OP}: probs must be rank-3, not of shape {_shape(probs)}")
    time, batch, classes = probs.shape
    if not probs.dtype.is_floating_point:
        raise createPoptorchError(f"{_OP}: probs of type {probs.dtype} are no log-probabilities")
    blank = _integer("blank", blank, 0, classes - 1)
    beam_width = _integer("beam_width", beam_width, 1, 1 << 20)
    top_paths = _integer("top_paths", top_paths, 1, beam_width)
    if running_on_ipu():
        if lengths.shape != (batch,) or lengths.dtype not in _INTEGERS:
            raise createPoptorchError(
                f"{_OP}: lengths must be {batch} integers, one for each sample, not "
                f"{lengths.dtype} of shape {_shape(lengths)}"
            )
        double = probs.dtype is torch.float64
        log_probs = probs.detach().float() if double else probs.detach()
        found = torch.ops.tessera.ctc_beam_search(log_probs, lengths, blank, beam_width, top_paths)
        return (found[0].double(), *found[1:]) if double else found
    shape = (batch, top_paths)
    sizes = torch.zeros(shape, dtype=torch.int32)
    return (
        torch.zeros(shape, dtype=probs.dtype),
        sizes,
        torch.zeros((*shape, time), dtype=torch.int32),
    )


def _shape(tensor: torch.Tensor) -> list[int]:
    return list(tensor.shape)


def _integer(name: str, value: Any, least: int, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise createPoptorchError(
            f"{_OP}: {name} must be an integer from {least} to {most}, not {value!r}"
        )
    return value
