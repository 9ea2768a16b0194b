# SPDX-License-Identifier: Apache-2.0
"""Helpers that programs import from PopTorch's private module of this name: tensors inside of
tuples, lists, dicts and types with a registered parser."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from poptorch.capture import structure

__all__ = ["combine_batch_tensors_gen", "flattenTensorStructure", "reconstructTensorStructure"]


def flattenTensorStructure(tensors: Any, canonical_structure: Any = None) -> list[torch.Tensor]:
    """The tensors inside a structure, in a fixed order.

    Args:
        tensors: the structure.
        canonical_structure: one of the same form, whose dicts give the order of the keys.
    """
    return [tensor for _, tensor in structure.tensors_of(_in_order(tensors, canonical_structure))]


def _in_order(value: Any, canonical: Any) -> Any:
    if isinstance(value, dict) and isinstance(canonical, dict):
        return {key: _in_order(value[key], canonical[key]) for key in canonical}
    if type(value) in (list, tuple) and type(canonical) in (list, tuple):
        return [_in_order(*pair) for pair in zip(value, canonical, strict=True)]
    return value


def reconstructTensorStructure(
    structure_to_rebuild: Any,
    values: Any,
    filter_fn: Callable[[Any], bool] = lambda t: isinstance(t, torch.Tensor),
) -> Any:
    """The same structure with its tensors replaced, in order, by ``values``.

    Args:
        structure_to_rebuild: the structure.
        values: a tensor for each that it has.
        filter_fn: says of a tensor whether it is replaced.
    """
    replacements = iter(values)
    found = structure.tensors_of(structure_to_rebuild)
    leaves = [next(replacements) if filter_fn(tensor) else tensor for _, tensor in found]
    return structure.rebuild(structure_to_rebuild, iter(leaves))


def combine_batch_tensors_gen(tensors: Sequence[Sequence[torch.Tensor]]) -> Iterator[torch.Tensor]:
    """For the flat tensors of several batches: each tensor joined over the batches."""
    for parts in zip(*tensors, strict=True):
        yield torch.cat(parts)
