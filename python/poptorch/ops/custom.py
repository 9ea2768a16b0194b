# SPDX-License-Identifier: Apache-2.0
"""Ops by name: the user's own and those that PopART and PopTorch ship."""

from collections.abc import Mapping
from typing import Any

import torch

from poptorch.base.errors import createPoptorchError
from poptorch.capture import running_on_ipu
from poptorch.ops.checks import check_tensor

_FLOAT_MAX = torch.finfo(torch.float32).max


def custom_op(
    inputs: list[torch.Tensor],
    name: str,
    domain: str,
    domain_version: int,
    example_outputs: list[torch.Tensor],
    attributes: dict[str, Any] | None = None,
) -> list[torch.Tensor]:
    """An op by its name; outside a captured model zeros like the examples.

    Ops of libraries that the program has loaded come first, then those of ``ai.onnx``,
    ``ai.graphcore`` and ``poptorch.custom_ops`` that ``docs/named-ops.md`` lists.

    Args:
        inputs: its tensors.
        name: its name.
        domain: its domain.
        domain_version: version of the domain; the largest version of the op up to it is used.
        example_outputs: one tensor for each result; the op decides on shapes and types.
        attributes: numbers, strings, or lists of them.
    """
    if not (isinstance(name, str) and isinstance(domain, str) and isinstance(domain_version, int)):
        raise createPoptorchError(
            "custom_op: name and domain must be strings and domain_version an int, not "
            f"{name!r}, {domain!r} and {domain_version!r}."
        )
    if attributes is not None and not isinstance(attributes, Mapping):
        raise createPoptorchError(
            f"custom_op: attributes must be a dict, not {type(attributes).__name__}."
        )
    given = {} if attributes is None else dict(attributes)
    _check_attributes(given)
    tensors = _tensors("inputs", inputs)
    examples = _tensors("example_outputs", example_outputs)
    if not running_on_ipu():
        return [torch.zeros_like(e, requires_grad=e.requires_grad) for e in examples]
    from poptorch.capture.custom.lookup import find

    _check_ranges(given)
    run = find(name, domain, domain_version)
    return list(run(tensors, given, examples))


def _tensors(what: str, given: Any) -> list[torch.Tensor]:
    if not isinstance(given, (list, tuple)):
        raise createPoptorchError(
            f"custom_op: {what} must be a list of tensors, not {type(given).__name__}."
        )
    for tensor in given:
        check_tensor("custom_op", tensor)
    return list(given)


def _check_attributes(attributes: Mapping[Any, Any]) -> None:
    for key, value in attributes.items():
        if not isinstance(key, str):
            raise ValueError("All attribute keys must be strings.")
        values = _listed(value)
        if not all(isinstance(v, (float, int, str)) for v in values):
            raise ValueError(
                "Attribute values must be floats, ints, strings or a list/tuple of float, ints of "
                f"strings. {key} is {value!r}."
            )
        if len({type(v) for v in values}) > 1:
            raise ValueError(
                f"The types in a list/tuple attribute must all be the same. {key} is {value!r}."
            )
        for text in (key, *(v for v in values if isinstance(v, str))):
            if not text.isascii():
                raise ValueError(f"{text!r} contains non-ASCII characters")


def _check_ranges(attributes: Mapping[str, Any]) -> None:
    """What an op of PopART can be given: float32, int64, lists that show their type."""
    for key, value in attributes.items():
        values = _listed(value)
        if any("\0" in text for text in (key, *(v for v in values if isinstance(v, str)))):
            raise createPoptorchError(
                f"custom_op: the text of attribute {key!r} has a zero byte, where it would end in "
                "the op."
            )
        if not values:
            raise createPoptorchError(
                f"custom_op: attribute {key} is an empty list, which has no type. Leave it out."
            )
        for number in values:
            if isinstance(number, float) and abs(number) > _FLOAT_MAX:
                side = "high" if number > 0 else "low"
                raise createPoptorchError(
                    f"{number:g} is too {side} for a Popart float attribute ({key})."
                )
            if isinstance(number, int) and not -(1 << 63) <= number < 1 << 63:
                raise createPoptorchError(f"{number} does not fit into a 64-bit attribute ({key}).")


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]
