# SPDX-License-Identifier: Apache-2.0
"""``IPUPrecision``: types of weights and inputs; optimizer steps are part of the program."""

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal, get_args

import torch

from lightning_ipu._mixed import mixed_context

from ...utilities.model_helpers import is_overridden
from ...utilities.rank_zero import WarningCache
from .precision import Precision

_Supported = Literal["32-true", "16-mixed", "16-true"]
_SUPPORTED = get_args(_Supported)
_warnings = WarningCache()


class IPUPrecision(Precision):
    """Precision of a program on IPUs.

    Args:
        precision: "32-true"; "16-true" for weights and inputs in float16; "16-mixed" for weights in
            float32 and inputs and most ops in float16.
    """

    def __init__(self, precision: _Supported = "32-true") -> None:
        if precision not in _SUPPORTED:
            raise ValueError(
                f"`Trainer(accelerator='ipu', precision={precision!r})` is not supported."
                f" `precision` must be one of: {', '.join(_SUPPORTED)}."
            )
        self.precision = precision
        self.is_updating = False

    def convert_module(self, module: torch.nn.Module) -> torch.nn.Module:
        """Weights in float16 for "16-true"."""
        return module.half() if self.precision == "16-true" else module

    def convert_input(self, data: Any) -> Any:
        """Unchanged: the strategy converts batches."""
        return data

    def convert_batch(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor of a batch as the program reads it."""
        if self.precision != "32-true" and tensor.dtype in (torch.float32, torch.float64):
            return tensor.half()
        return tensor

    def tensor_init_context(self) -> AbstractContextManager[Any]:
        """New tensors in float16 for "16-true"."""
        return _default_half() if self.precision == "16-true" else nullcontext()

    def module_init_context(self) -> AbstractContextManager[Any]:
        """New weights in float16 for "16-true"."""
        return self.tensor_init_context()

    def forward_context(self) -> AbstractContextManager[Any]:
        """Nothing: steps of a program are not run by Python."""
        return nullcontext()

    def capture_context(self, module: torch.nn.Module) -> AbstractContextManager[Any]:
        """Entered around a step while it is captured."""
        return mixed_context(module) if self.precision == "16-mixed" else nullcontext()

    def backward(self, tensor: Any, model: Any, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        """Nothing: backward is part of the program."""
        if is_overridden("backward", model):
            _warnings.warn("`LightningModule.backward` is ignored on IPUs.")

    # Lightning's own differs from Fabric's in the same way.
    def optimizer_step(  # type: ignore[override]
        self, optimizer: Any, model: Any, closure: Callable[[], Any], **kwargs: Any
    ) -> Any:
        """Run the closure, which updates the weights."""
        self.is_updating = True
        try:
            result = closure()
        finally:
            self.is_updating = False
        self._after_closure(model, optimizer)
        getattr(optimizer, "_optimizer", optimizer)._opt_called = True
        return result

    def clip_gradients(self, *args: Any, **kwargs: Any) -> None:
        """Nothing: clipping is part of the program."""


@contextmanager
def _default_half() -> Generator[None, None, None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float16)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
