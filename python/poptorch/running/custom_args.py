# SPDX-License-Identifier: Apache-2.0
"""Argument and result types of the user's own: how their tensors are found and put back."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import torch

from poptorch.base.errors import createPoptorchError
from poptorch.capture import structure


class ICustomArgParser(ABC):
    """Says how the tensors of a type are found, in a fixed order, and how they are put back."""

    @abstractmethod
    def yieldTensors(self, struct: Any) -> Iterator[torch.Tensor]:
        """Yield every tensor of ``struct``."""

    @abstractmethod
    def reconstruct(self, original_structure: Any, tensor_iterator: Iterator[torch.Tensor]) -> Any:
        """A structure like the original with the tensors of the iterator, in the same order."""


def registerCustomArgParser(arg_data_type: type, arg_parser: ICustomArgParser | None) -> None:
    """Use ``arg_parser`` for arguments and results of ``arg_data_type``; None removes it."""
    if arg_parser is None:
        structure.custom_parsers.pop(arg_data_type, None)
        return
    if not isinstance(arg_parser, ICustomArgParser):
        raise createPoptorchError("arg_parser must inherit from ICustomArgParser")
    structure.custom_parsers[arg_data_type] = arg_parser
