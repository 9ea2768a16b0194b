# SPDX-License-Identifier: Apache-2.0
"""Annotations of a model's parts: blocks, name scopes, and how annotated modules are shown.

They act only while a model is captured; the strategy of the options says where a block runs.
"""

import builtins
import functools
import itertools
import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from poptorch.base.errors import createPoptorchError
from poptorch.capture import leave_block, running_on_ipu, set_placement, state
from poptorch.capture.errors import make_error, user_frame

_strategy: Any = None
_next_id = 0
_written = itertools.count()  # numbers BeginBlock calls


class Begin(NamedTuple):
    """A block that began while a model was captured."""

    block: str
    ipu: int
    stage: int
    phase: int
    where: tuple[str, int]
    by: Any = None  # the hook or module that began it


_begun: list[Begin] = []


@contextmanager
def placing(strategy: Any) -> Iterator[list[Begin]]:
    """Blocks that begin inside are placed by ``strategy``; yields the list of them."""
    global _strategy, _begun
    Block.useAutoId()
    strategy.onStartTracing()
    _strategy, _begun = strategy, []
    try:
        yield _begun
    finally:
        _strategy = None
        strategy.onEndTracing()


def _begin(user_id: str | None, ipu_id: int | None, by: Any = None) -> str | None:
    """Start a block; returns its id, a new one if none is given."""
    global _next_id
    if _strategy is None or not running_on_ipu():
        return user_id
    if user_id is None:
        user_id = str(_next_id)
        _next_id += 1
    stage, phase, ipu = _strategy.getStage(user_id, _ipu_number(ipu_id))
    if ipu < 0:
        got = ipu if ipu_id is None else ipu_id
        raise make_error(f"Block {user_id!r} needs the number of an IPU, got {got!r}", user_frame())
    set_placement(ipu, stage, phase, user_id)
    _begun.append(Begin(user_id, ipu, stage, phase, user_frame(), by))
    return user_id


def _ipu_number(ipu_id: Any) -> int | None:
    """The number of an IPU, which may be written as a string; -1 if it is none."""
    if ipu_id is None:
        return None
    try:
        return int(ipu_id) if isinstance(ipu_id, str) else operator.index(ipu_id)
    except (TypeError, ValueError):
        return -1


class Block(torch.nn.Module):
    """``with poptorch.Block("B1", ipu_id=0):`` - ops captured inside belong to the block.

    Args:
        user_id: name that stages refer to; blocks of one name are one block.
        ipu_id: the IPU it runs on, unless its stage names one.
    """

    def __init__(self, user_id: str | None = None, ipu_id: int | None = None) -> None:
        super().__init__()
        self._user_id = user_id
        self._ipu_id = ipu_id
        self._where = user_frame()

    def __enter__(self) -> "Block":
        _begin(self._user_id, self._ipu_id, self)
        return self

    def __exit__(self, *exc: object) -> None:
        if running_on_ipu():
            leave_block()

    @staticmethod
    def useAutoId() -> None:
        """Number blocks without a name from 0 again; call it first in forward."""
        global _next_id
        _next_id = 0

    @staticmethod
    def start(user_id: str | None = None, ipu_id: int | None = None) -> None:
        """Start a block that lasts until the next one starts."""
        _begin(user_id, ipu_id)


class _BlockHook:
    """The forward-pre-hook of an annotated module. An automatic id is taken once and kept."""

    def __init__(self, user_id: str | None, ipu_id: int | None) -> None:
        self._user_id = user_id
        self._ipu_id = ipu_id
        self._where = user_frame()
        self._order = next(_written)

    def __call__(self, module: torch.nn.Module, args: Any) -> None:
        self._user_id = _begin(self._user_id, self._ipu_id, self)

    def __repr__(self) -> str:
        return f"BeginBlock(user_id={self._user_id}, ipu_id={self._ipu_id})"


class LegacyBeginBlockFn(torch.nn.Module):
    """What ``BeginBlock`` makes of a function: a module that starts the block and calls it."""

    def __init__(
        self, layer_to_call: Callable[..., Any], user_id: str | None = None, ipu_id: Any = None
    ) -> None:
        super().__init__()
        self._layer_to_call = layer_to_call
        self._user_id = user_id
        self._ipu_id = ipu_id
        self._where = user_frame()
        self._order = next(_written)

    def __call__(self, *input: Any, **kwargs: Any) -> Any:
        """Start the block and call the function."""
        self._user_id = _begin(self._user_id, self._ipu_id, self)
        return self._layer_to_call(*input, **kwargs)


def _block_hooks(module: torch.nn.Module) -> list[int]:
    hooks = module._forward_pre_hooks
    return [key for key, hook in hooks.items() if isinstance(hook, _BlockHook)]


def annotations(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module, Any]]:
    """Name, module and annotation of every part of ``model`` that is to begin a block."""
    for name, module in model.named_modules():
        if isinstance(module, (Block, LegacyBeginBlockFn)):
            yield name, module, module
        for key in _block_hooks(module):
            yield name, module, module._forward_pre_hooks[key]


def BeginBlock(
    layer_to_call: torch.nn.Module | Callable[..., Any],
    user_id: str | None = None,
    ipu_id: int | None = None,
) -> torch.nn.Module:
    """Start a block when ``layer_to_call`` runs; it lasts until the next block starts.

    A module is changed in place and returned; for a function a module that calls it is returned.
    """
    if not isinstance(layer_to_call, torch.nn.Module):
        if not callable(layer_to_call):
            raise createPoptorchError("module is not an instance of torch.nn.Module or function.")
        return LegacyBeginBlockFn(layer_to_call, user_id, ipu_id)
    if _block_hooks(layer_to_call):
        raise createPoptorchError("module has already been assigned to a block.")
    layer_to_call.register_forward_pre_hook(_BlockHook(user_id, ipu_id))
    return layer_to_call


def BlockFunction(user_id: str | None = None, ipu_id: int | None = None) -> Callable[..., Any]:
    """Decorator: the body of the function runs inside a :class:`Block`."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def inside(*args: Any, **kwargs: Any) -> Any:
            with Block(user_id, ipu_id):
                return function(*args, **kwargs)

        return inside

    return decorate


def removeBlocks(module: torch.nn.Module) -> None:
    """Remove the blocks of ``BeginBlock`` from a module and everything in it."""
    assert isinstance(module, torch.nn.Module), f"Expected a torch.nn.Module, got {module!r}"
    for part in module.modules():
        for key in _block_hooks(part):
            del part._forward_pre_hooks[key]


class NameScope:
    """``with poptorch.NameScope("encoder"):`` - a prefix for the names of ops captured inside."""

    def __init__(self, name: str) -> None:
        assert isinstance(name, str), "Parameter to NameScope must be a string"
        self.name = name

    def __enter__(self) -> "NameScope":
        push_name_scope(self.name)
        return self

    def __exit__(self, *exc: object) -> None:
        pop_name_scope()


def push_name_scope(name: str) -> None:
    """Begin a name scope of the running capture."""
    session = state.current()
    if session is not None:
        session.name_scopes.append(name)


def pop_name_scope() -> None:
    """End the innermost name scope."""
    session = state.current()
    if session is not None and session.name_scopes:
        session.name_scopes.pop()


def module_repr(m: torch.nn.Module) -> str:
    """The text of a module like ``repr``, with forward-pre-hooks such as blocks in front."""
    if not isinstance(m, torch.nn.Module):
        return repr(m)
    hooks = [
        repr(hook) if isinstance(hook, _BlockHook) else getattr(hook, "__name__", repr(hook))
        for hook in m._forward_pre_hooks.values()
    ]
    prefix = "".join(f"{hook} " for hook in hooks)
    if type(m).__repr__ is not torch.nn.Module.__repr__:
        return prefix + repr(m)
    extra = m.extra_repr()
    children = [f"({name}): {module_repr(child)}" for name, child in m.named_children()]
    if not children:
        return f"{prefix}{m._get_name()}({extra})"
    lines = [line for text in (*filter(None, [extra]), *children) for line in text.split("\n")]
    body = "\n".join(f"  {line}" for line in lines)
    return f"{prefix}{m._get_name()}(\n{body}\n)"


def print(m: Any) -> None:  # noqa: A001
    """Print a module with its blocks, or anything else as Python does."""
    builtins.print(module_repr(m) if isinstance(m, torch.nn.Module) else m)
