# SPDX-License-Identifier: Apache-2.0
"""Capture of a PyTorch model as text IR.

    captured = capture(model, args, kwargs, training=True, native_ops=ops, name="training")
    text = captured.with_optimizer(['optimize "sgd" 0 [%0] {momentum=1, nesterov=0}'])

The heavy parts of torch are only loaded by the first capture.
"""

import contextlib
import functools
import sys
from dataclasses import dataclass, field
from typing import Any

import torch

from . import structure
from .placement import current_placement, leave_block, reset_placement, set_placement
from .state import lock, running_on_ipu

__all__ = [
    "Capture",
    "InputInfo",
    "OutputInfo",
    "StateInfo",
    "capture",
    "current_placement",
    "identity_loss",
    "leave_block",
    "reset_placement",
    "running_on_ipu",
    "set_placement",
]


@dataclass
class StateInfo:
    """A parameter or buffer that the program uses.

    Attributes:
        name: its name in the text.
        all_names: all names the model knows it by.
        tensor: the user's tensor.
        trainable: whether it has a gradient.
        value: how the text refers to it, for example "%3".
        updated: whether the program gives it a new value by itself (running statistics).
        views: (name, tensor) of parameters and buffers that look at its memory.
    """

    name: str
    all_names: list[str]
    tensor: torch.Tensor
    trainable: bool
    value: str
    updated: bool = False
    views: list[tuple[str, torch.Tensor]] = field(default_factory=list)


@dataclass
class InputInfo:
    """A tensor argument; `used` is False if the program never reads it."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    used: bool


@dataclass
class OutputInfo:
    """A tensor that the program returns, per micro-batch."""

    dtype: torch.dtype
    shape: tuple[int, ...]


@dataclass
class Capture:
    """A captured model.

    Attributes:
        text: the IR without its `optimize` lines.
        params: parameters the program uses, in the order of the text.
        buffers: buffers the program uses; the random state "rng" is the core's own and not listed.
        constants: tensors the text refers to by name.
        inputs: one per tensor among (args, kwargs), in the order of structure.argument_leaves and
            of the text.
        outputs: one per value on the text's `output` line: results, input write-backs, checks.
        input_writebacks: (input index, output index) of inputs that forward changes in place.
        loss_index: which output is the loss, None if forward does not return it.
        loss_value: how the text refers to the loss, None in inference.
        host_ops: (ATen op, (file, line)) of each op that torch runs on the host.
        source_lines: (file, line) of each location in the text.
        uses_rng: whether the program draws random numbers.
        placed: of a model with blocks, a placement.PlacedOp per op.
        dead_blocks: tags of blocks none of whose ops the results need.
        overlapped: (file, line) of the first transfer that is to overlap with computation, or None.
        checks: (value, (file, line)) per output, of the last ones, that says whether a value that
            Python read in forward is another one.
        follows_strides: whether results depend on the strides of the first inputs: views of them
            are written to that are copies with other strides.
    """

    text: str
    params: list[StateInfo]
    buffers: list[StateInfo]
    constants: dict[str, torch.Tensor]
    inputs: list[InputInfo]
    outputs: list[OutputInfo]
    input_writebacks: list[tuple[int, int]]
    loss_index: int | None
    loss_value: str | None
    host_ops: list[tuple[str, tuple[str, int]]]
    source_lines: list[tuple[str, int]]
    uses_rng: bool
    placed: list = field(default_factory=list)
    dead_blocks: dict = field(default_factory=dict)
    overlapped: tuple | None = None
    checks: list[tuple[str, tuple[str, int]]] = field(default_factory=list)
    follows_strides: bool = False
    _result: Any = None
    _leaves: list = field(default_factory=list)
    _head: list = field(default_factory=list)
    _tail: list = field(default_factory=list)

    def with_optimizer(self, lines):
        """The text with `optimize` lines put in."""
        indented = [f"  {line.strip()}" for line in lines]
        return "\n".join([*self._head, *indented, *self._tail]) + "\n"

    def output_names(self) -> dict[int, str]:
        """How messages call the outputs that forward returned."""
        names: dict[int, str] = {}
        paths = structure.tensors_of(self._result, "result")
        for (path, _), (kind, leaf) in zip(paths, self._leaves, strict=True):
            if kind == "value":
                names.setdefault(leaf, path)
        return names

    def rebuild(self, tensors):
        """What forward returned, with its tensors replaced by the program's outputs.

        `tensors` has one entry per output; write-backs and checks may be left out.
        """
        found = [tensors[leaf] if kind == "value" else leaf for kind, leaf in self._leaves]
        return structure.rebuild(self._result, iter(found))


def identity_loss(x, reduction):
    """Marks `x`, reduced by "sum", "mean" or "none", as the loss of the model.

    Needed for a loss that is not one of torch.nn's, or that combines several. Outside a captured
    model it
    just computes the reduction.
    """
    from .intercept import identity_loss as mark

    return mark(x, reduction)


def capture(
    model,
    args,
    kwargs,
    *,
    training,
    native_ops,
    name,
    loss_scaling=False,
    module_scopes=True,
    casting=None,
    progress=None,
    values_read="freeze",
):
    """Captures one call `model(*args, **kwargs)` as text IR; returns a Capture.

    Args:
        model: the user's module; it is run once on fake tensors and left as it was.
        args: positional arguments with micro-batch tensors, in any nesting.
        kwargs: keyword arguments, likewise.
        training: whether to differentiate the loss that the model computes.
        native_ops: names of the rows that the core has.
        name: name of the graph.
        loss_scaling: backward starts with the state "loss:scale" instead of 1.
        module_scopes: whether locations in the text name the module of an op.
        casting: a casting.Casting; None leaves all types to torch.
        progress: called with the fraction that is done, now and then.
        values_read: what reading a value in forward does, one of frozen.MODES.
    """
    from .emit import emit
    from .trace import trace_model

    native_ops = frozenset(native_ops)
    with lock, _deeper():
        trace = functools.partial(
            trace_model,
            model,
            training=training,
            native_ops=native_ops,
            module_scopes=module_scopes,
            casting=casting,
            progress=progress,
            values_read=values_read,
        )
        try:
            traced = trace(args, kwargs)
        except (RuntimeError, ValueError) as error:
            # PyTorch refuses a view that needs other strides. On contiguous inputs, which is what
            # an IPU has, it may be one.
            dense = _contiguous(args, kwargs) if str(error).startswith(_NO_VIEW) else None
            if dense is None:
                raise
            traced = trace(*dense)
        emitted = emit(traced, native_ops, name, loss_scaling)
    return _result(traced, emitted)


@contextlib.contextmanager
def _deeper():
    """A level of modules takes about twice as many frames in a capture as in eager, and a half more
    of the C stack: the limit of both is that of eager again."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, min(4 * before, 24_000)))
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


_NO_VIEW = (
    "view size is not compatible with input tensor's size and stride",
    "Cannot view a tensor",
)


def _contiguous(args, kwargs):
    """A call's (args, kwargs) with contiguous tensors; None if they are already."""
    tensors = [t for _, t in structure.argument_leaves(args, kwargs)]
    if all(t.is_contiguous() for t in tensors):
        return None
    leaves = iter([t.contiguous() for t in tensors])
    return [structure.rebuild(a, leaves) for a in args], structure.rebuild(dict(kwargs), leaves)


def _result(traced, e):
    updated = {id(v) for v in e.updated}
    graded = {id(s) for s in traced.grads}

    def info(slot, value):
        return StateInfo(
            name=slot.names[0],
            all_names=list(slot.names),
            tensor=slot.tensor,
            trainable=id(slot) in graded,
            value=f"%{value.number}",
            updated=id(value) in updated,
            views=[(n, v.tensor) for v in traced.views if v.owner is slot for n in v.names],
        )

    return Capture(
        text="\n".join([*e.head, *e.tail]) + "\n",
        params=[info(s, v) for s, v in e.params],
        buffers=[info(s, v) for s, v in e.buffers],
        constants=e.constants,
        inputs=[
            InputInfo(v.name, v.dtype, v.shape, used)
            for v, used in zip(e.inputs, e.inputs_used, strict=False)
        ],
        outputs=[OutputInfo(v.dtype, v.shape) for v in e.outputs],
        input_writebacks=e.input_writebacks,
        loss_index=e.loss_index,
        loss_value=None if e.loss is None else f"%{e.loss.number}",
        host_ops=e.host_ops,
        source_lines=[(tag.file, tag.line) for tag in e.locations],
        uses_rng=e.uses_rng,
        placed=e.placed,
        dead_blocks=e.dead_blocks,
        overlapped=traced.overlapped,
        checks=[(check.value, check.where) for check in traced.checks],
        follows_strides=traced.follows_strides,
        _result=_without_fakes(traced),
        _leaves=traced.result_leaves,
        _head=e.head,
        _tail=e.tail,
    )


def _without_fakes(traced):
    """The result's structure; its fake tensors would keep the whole trace alive."""
    leaves = [torch.empty(0) for _ in traced.result_leaves]
    return structure.rebuild(traced.result, iter(leaves))
