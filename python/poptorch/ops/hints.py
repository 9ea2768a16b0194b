# SPDX-License-Identifier: Apache-2.0
"""Ops that only place or tune work on an IPU: the values stay as they are."""

from typing import Any

import torch

from poptorch.base.errors import createPoptorchError
from poptorch.base.logging import logger
from poptorch.base.suggest import no_member
from poptorch.capture import running_on_ipu, state, structure, tuning
from poptorch.capture.errors import describe, user_frame
from poptorch.enums import MultiConvPlanType, OverlapMode
from poptorch.ops.checks import check_tensor


def nop(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself, as a step of its own, and so its gradient: what works on it is not fused
    with what made it. Outside a captured model, and of complex numbers, it is the tensor or a copy.
    """
    check_tensor("nop", tensor)
    if not running_on_ipu():
        return tensor
    from poptorch.capture.library import Nop

    return tensor.clone() if tensor.dtype.is_complex else Nop.apply(tensor)


def recomputationCheckpoint(*tensors: Any) -> Any:
    """Keep these tensors for the backward pass; what lies between may be computed again.

    Args:
        tensors: tensors, or one list or tuple of them. The same is returned.
    """
    given = tensors[0] if len(tensors) == 1 else tensors
    values = list(given) if isinstance(given, (list, tuple)) else [given]
    if not all(isinstance(value, torch.Tensor) for value in values):
        raise ValueError("All inputs must be tensors")
    if not running_on_ipu():
        return given
    from poptorch.capture.library import Checkpoint

    marked = [v if v.dtype.is_complex else Checkpoint.apply(v) for v in values]
    if not isinstance(given, (list, tuple)):
        return marked[0]
    return type(given)(*marked) if hasattr(given, "_fields") else type(given)(marked)


def set_available_memory(tensor: torch.Tensor, available_memory_proportion: float) -> torch.Tensor:
    """How much tile memory the op that made ``tensor`` may use for temporaries.

    Meant for products, convolutions, lookups, indexing and recurrent layers, which are found up to
    two ops back, as in the result of ``nn.Linear``. Virtual IPUs compute the same with any
    proportion; the program's summary has it beside the op.

    Args:
        tensor: a result of the op.
        available_memory_proportion: above 0, at most 1.
    """
    if not isinstance(tensor, torch.Tensor):
        raise createPoptorchError("You may only set available memory for torch.tensor values")
    proportion = available_memory_proportion
    number = isinstance(proportion, (int, float)) and not isinstance(proportion, bool)
    if not number or not 0 < proportion <= 1:
        raise createPoptorchError(
            f"The available memory proportion must be a number above 0 and at most 1, got "
            f"{proportion!r}"
        )
    if running_on_ipu() and not tuning.set_memory(tensor, float(proportion)):
        logger.warning(
            "set_available_memory has no effect: neither the op that made the tensor nor one of "
            "the two before it is a product, a convolution, a lookup or a recurrent layer, at %s",
            describe(user_frame()),
        )
    return tensor


def set_overlap_for_input(input_tensors: Any, mode: OverlapMode) -> Any:
    """How far the transfer of inputs may overlap with computation; no effect on virtual IPUs."""
    return _overlapped(input_tensors, mode, "input")


def set_overlap_for_output(output_tensors: Any, mode: OverlapMode) -> Any:
    """How far the transfer of outputs may overlap with computation; no effect on virtual IPUs."""
    return _overlapped(output_tensors, mode, "output")


def _overlapped(tensors: Any, mode: OverlapMode, what: str) -> Any:
    assert isinstance(mode, OverlapMode), no_member(OverlapMode, mode)
    leaves = structure.tensors_of(tensors)
    if not leaves or not all(isinstance(leaf, torch.Tensor) for _, leaf in leaves):
        raise createPoptorchError(f"You may only set overlap for torch.tensor {what}s")
    session = state.current()
    if session is None:
        return tensors
    mark = getattr(session.overlap, f"mark_{what}")
    marked = [mark(leaf, mode != OverlapMode.NoOverlap) for _, leaf in leaves]
    return structure.rebuild(tensors, iter(marked))


class MultiConv:
    """``with poptorch.MultiConv():`` - independent convolutions inside may run as one op.

    The values are those of separate convolutions. On virtual IPUs each is a step of its own, which
    already uses all threads; proportions of memory are kept for the program's summary.
    """

    def __init__(self) -> None:
        self.settings: dict[str, Any] = {}
        self._before = 0

    def _set(self, key: str, value: Any) -> "MultiConv":
        self.settings[key] = value
        return self

    def availableMemoryProportions(self, value: float | list[float] | None) -> "MultiConv":
        """Share of tile memory, one for all convolutions or one each; None for the default."""
        values = _each(value)
        shares = all(isinstance(v, float) and 0 <= v <= 1 for v in values)
        assert shares, "Invalid available memory proportion!"
        return self._set("availableMemoryProportions", value)

    def partialsTypes(self, value: torch.dtype | list[torch.dtype]) -> "MultiConv":
        """Accumulation type, one for all convolutions or one each."""
        values = value if isinstance(value, (list, tuple)) else [value]
        if not all(v in (torch.float, torch.half) for v in values):
            raise ValueError("Invalid partials types. Expecting torch.float or torch.half")
        return self._set("partialsTypes", value)

    def enableConvDithering(self, value: bool | list[bool] | None) -> "MultiConv":
        """Layout hint, one for all convolutions or one each; None for the default."""
        if not all(isinstance(v, bool) for v in _each(value)):
            raise ValueError("value must be bool or list of bools")
        return self._set("enableConvDithering", value)

    def planType(self, value: MultiConvPlanType | None) -> "MultiConv":
        """How the convolutions are planned; None for the default."""
        assert value is None or isinstance(value, MultiConvPlanType), "Invalid plan type!"
        return self._set("planType", value)

    def perConvReservedTiles(self, value: int) -> "MultiConv":
        """Tiles reserved for each convolution."""
        assert isinstance(value, int), f"Expected an int, got {value!r}"
        return self._set("perConvReservedTiles", value)

    def cycleBackOff(self, value: float) -> "MultiConv":
        """How much slower a plan may be for using fewer tiles."""
        assert isinstance(value, (int, float)), f"Expected a number, got {value!r}"
        return self._set("cycleBackOff", value)

    def _memory(self) -> float:
        """The proportion of the convolution that was captured last."""
        values = _each(self.settings.get("availableMemoryProportions"))
        session = state.current()
        if session is None or not values:
            return 0.0
        return values[min(session.convolutions - self._before, len(values)) - 1]

    def __enter__(self) -> "MultiConv":
        session = state.current()
        if session is not None:
            if session.conv_memory is not None:
                raise createPoptorchError("Nested poptorch.MultiConv is not supported.")
            session.conv_memory = self._memory
            self._before = session.convolutions
        return self

    def __exit__(self, *exc: object) -> None:
        session = state.current()
        if session is None:
            return
        session.conv_memory = None
        if exc[0] is not None:
            return
        count = session.convolutions - self._before
        if count == 0:
            raise createPoptorchError(
                "Unexpected end_multi_conv, is the IR malformed? There is no convolution in this "
                "poptorch.MultiConv."
            )
        for name, value in self.settings.items():
            if isinstance(value, (list, tuple)) and len(value) not in (1, count):
                raise createPoptorchError(
                    f"MultiConv: {name} has {len(value)} values, and there are {count} "
                    "convolutions."
                )


def _each(value: Any) -> list[Any]:
    """The values of a setting that may be one for all, one each or None."""
    return [] if value is None else list(value) if isinstance(value, (list, tuple)) else [value]
