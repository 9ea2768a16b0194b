# SPDX-License-Identifier: Apache-2.0
"""Flattening of arguments and results: tensors are leaves, all else is part of the structure."""

import torch

_NUMBERED = (list, tuple)
# type -> parser with yieldTensors(struct) and reconstruct(original, iterator); filled by
# registerCustomArgParser.
custom_parsers = {}


def parser_for(value):
    """The custom parser for a value, by exact type first, then by isinstance, or None."""
    if not custom_parsers:
        return None
    found = custom_parsers.get(type(value))
    if found is not None:
        return found
    return next((p for t, p in custom_parsers.items() if isinstance(value, t)), None)


def is_namedtuple(value):
    """Whether a value is an instance of a named tuple class."""
    return isinstance(value, tuple) and hasattr(value, "_fields")


def tensors_of(value, path="", out=None):
    """List of (path, tensor) for all tensors inside a structure, in a fixed order."""
    out = [] if out is None else out
    if isinstance(value, torch.Tensor):
        out.append((path, value))
        return out
    parser = parser_for(value)
    if parser is not None:
        for i, leaf in enumerate(parser.yieldTensors(value)):
            out.append((f"{path}[{i}]", leaf))
    elif is_namedtuple(value):
        for field, item in zip(value._fields, value, strict=False):
            tensors_of(item, f"{path}.{field}", out)
    elif isinstance(value, _NUMBERED):
        for i, item in enumerate(value):
            tensors_of(item, f"{path}[{i}]", out)
    elif isinstance(value, dict):
        for key, item in value.items():
            tensors_of(item, f"{path}[{key!r}]" if path else str(key), out)
    return out


def rebuild(value, leaves):
    """The same structure with its tensors replaced, in order, by those of the iterator `leaves`."""
    if isinstance(value, torch.Tensor):
        return next(leaves)
    parser = parser_for(value)
    if parser is not None:
        return parser.reconstruct(value, leaves)
    if is_namedtuple(value):
        return type(value)(*[rebuild(v, leaves) for v in value])
    if isinstance(value, _NUMBERED):
        return type(value)([rebuild(v, leaves) for v in value])
    if isinstance(value, dict):
        items = {k: rebuild(v, leaves) for k, v in value.items()}
        if type(value) is dict:
            return items
        if hasattr(value, "default_factory"):
            return type(value)(value.default_factory, items)
        return type(value)(items)
    return value


def argument_leaves(args, kwargs):
    """(path, tensor) of every tensor of a call, positional arguments first."""
    out = []
    for i, value in enumerate(args):
        tensors_of(value, f"args[{i}]", out)
    tensors_of(dict(kwargs), "", out)
    return out
