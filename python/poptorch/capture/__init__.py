# SPDX-License-Identifier: Apache-2.0
"""Capture of a PyTorch model as text IR.

    captured = capture(model, args, kwargs, training=True, rows=rows, name="training")
    text = captured.with_optimizer(['optimize "sgd" 0 [%0] {momentum=1, nesterov=0}'])

The way of a capture through this folder:

1. `structure` finds the tensors of the call, `slots` those of the model; `swap` puts fakes in their
   place.
2. `trace` runs forward once. Two modes see it: `calls` gets the calls of torch, `tagger` the ATen
   ops that they become, which are recorded. `session` is what they know of the capture: `placement`
   on IPUs, `casting`, transfers that `overlap`, `progress`. `values` answers where Python reads a
   tensor, `watch` notices what forward does with Python's own values.
3. `loss` picks the loss and has autograd add its gradients to the same graph.
4. `mutations` makes in-place ops pure.
5. `text` writes the graph, and `lower` says which rows of the core an ATen op becomes.

`errors` has the words for what goes wrong on the way, `library` our own ops, `_torch_private` all
of torch's private API. The heavy parts of torch are only loaded by the first capture.
"""

import contextlib
import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import torch

from poptorch.capture import structure
from poptorch.capture.placement import (
    PlacedOp,
    Tag,
    current_placement,
    leave_block,
    reset_placement,
    set_placement,
)
from poptorch.capture.state import lock, running_on_ipu

if TYPE_CHECKING:
    from poptorch.capture.casting import Casting
    from poptorch.capture.errors import Where
    from poptorch.capture.slots import StateSlot
    from poptorch.capture.text.emit import Emitted
    from poptorch.capture.text.row import Row
    from poptorch.capture.text.value import Value
    from poptorch.capture.trace import Traced

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
        once: whether that is once per weight update, and so the same in all replicas.
        views: (name, tensor) of parameters and buffers that are views of it.
    """

    name: str
    all_names: list[str]
    tensor: torch.Tensor
    trainable: bool
    value: str
    updated: bool = False
    once: bool = False
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
        buffers: buffers the program uses; the random state is the core's own and not listed.
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
        placed: the ops of a model with blocks, in order.
        dead_blocks: first ops of the blocks none of whose ops the results need.
        overlapped: (file, line) of the first transfer that is to overlap with computation, or None.
        checks: values that Python read in forward, with the (file, line) of each. The last outputs
            say, in this order, whether a call has another value.
        follows_strides: whether results depend on the strides of the first inputs, because the
            program writes to a view of one that would be a copy with other strides.
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
    host_ops: "list[tuple[str, Where]]"
    source_lines: "list[Where]"
    uses_rng: bool
    placed: list[PlacedOp] = field(default_factory=list)
    dead_blocks: dict[str, Tag] = field(default_factory=dict)
    overlapped: "Where | None" = None
    checks: "list[tuple[str, Where]]" = field(default_factory=list)
    follows_strides: bool = False
    _result: Any = None
    _leaves: list[int | torch.Tensor] = field(default_factory=list)
    _head: list[str] = field(default_factory=list)
    _tail: list[str] = field(default_factory=list)

    def with_optimizer(self, lines: Iterable[str]) -> str:
        """The text with `optimize` lines put in."""
        indented = [f"  {line.strip()}" for line in lines]
        return "\n".join([*self._head, *indented, *self._tail]) + "\n"

    def without_text(self) -> "Capture":
        """What calls of the program need, without fakes: a pickle may have it."""
        tensors = iter([torch.empty(0) for _ in self._leaves])
        return replace(
            self,
            text="",
            constants={},
            host_ops=[],
            source_lines=[],
            placed=[],
            dead_blocks={},
            _result=structure.rebuild(self._result, tensors),
            _head=[],
            _tail=[],
        )

    def output_names(self) -> dict[int, str]:
        """How messages call the outputs that forward returned."""
        names: dict[int, str] = {}
        paths = structure.tensors_of(self._result, "result")
        for (path, _), leaf in zip(paths, self._leaves, strict=True):
            if isinstance(leaf, int):
                names.setdefault(leaf, path)
        return names

    def rebuild(self, tensors: Sequence[Any]) -> Any:
        """What forward returned, with its tensors replaced by the program's outputs.

        `tensors` has one entry per output; write-backs and checks may be left out.
        """
        found = [tensors[leaf] if isinstance(leaf, int) else leaf for leaf in self._leaves]
        return structure.rebuild(self._result, iter(found))


def identity_loss(x: torch.Tensor, reduction: Literal["sum", "mean", "none"]) -> torch.Tensor:
    """Marks `x`, reduced by "sum", "mean" or "none", as the loss of the model.

    Needed for a loss that is not one of torch.nn's, or that combines several. Outside a captured
    model it only computes the reduction.
    """
    from poptorch.capture.calls.losses import identity_loss as mark

    return mark(x, reduction)


def capture(
    model: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    training: bool,
    rows: "Mapping[str, Row]",
    name: str,
    loss_scaling: bool = False,
    module_scopes: bool = True,
    casting: "Casting | None" = None,
    progress: Callable[[float], None] | None = None,
    values_read: str = "freeze",
    replicas: int = 1,
    facts: Mapping[str, int] | None = None,
) -> Capture:
    """Captures one call `model(*args, **kwargs)` as text IR.

    Args:
        model: the user's module; it is run once on fake tensors and left as it was.
        args: positional arguments with micro-batch tensors, in any nesting.
        kwargs: keyword arguments, likewise.
        training: whether to differentiate the loss that the model computes.
        rows: the rows of the core by name.
        name: name of the graph.
        loss_scaling: backward starts with the state for the loss scaling instead of 1.
        module_scopes: whether locations in the text name the module of an op.
        casting: a casting.Casting; None leaves all types to torch.
        progress: called with the fraction that is done, now and then.
        values_read: what reading a value in forward does, one of frozen.MODES.
        replicas: how many replicas the program will have.
        facts: what ops of libraries may ask of the program besides.
    """
    from poptorch import _core
    from poptorch.capture.text.emit import emit
    from poptorch.capture.trace import trace_model

    with lock, _deeper():
        known = {"training": int(training), "replicas": replicas, **(facts or {})}
        _core.custom_facts(list(known.items()))
        trace = functools.partial(
            trace_model,
            model,
            training=training,
            rows=rows,
            module_scopes=module_scopes,
            casting=casting,
            progress=progress,
            values_read=values_read,
            replicas=replicas,
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
        emitted = emit(traced, rows, name, loss_scaling)
    return _result(traced, emitted)


@contextlib.contextmanager
def _deeper() -> Iterator[None]:
    """Models may nest as deep as in eager.

    A level of modules takes about twice as many frames here, and a half more of the C stack.
    """
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


def _contiguous(
    args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]] | None:
    """A call's (args, kwargs) with contiguous tensors; None if they are already."""
    tensors = [t for _, t in structure.argument_leaves(args, kwargs)]
    if all(t.is_contiguous() for t in tensors):
        return None
    leaves = iter([t.contiguous() for t in tensors])
    return [structure.rebuild(a, leaves) for a in args], structure.rebuild(dict(kwargs), leaves)


def _result(traced: "Traced", e: "Emitted") -> Capture:
    updated = {id(v) for v in e.updated}
    once = {id(s) for s in traced.once}
    graded = {id(s) for s in traced.grads}

    def info(slot: "StateSlot", value: "Value") -> StateInfo:
        return StateInfo(
            name=slot.names[0],
            all_names=list(slot.names),
            tensor=slot.tensor,
            trainable=id(slot) in graded,
            value=f"%{value.number}",
            updated=id(value) in updated,
            once=id(slot) in once,
            views=[(n, v.tensor) for v in traced.views if v.owner is slot for n in v.names],
        )

    return Capture(
        text="\n".join([*e.head, *e.tail]) + "\n",
        params=[info(s, v) for s, v in e.params],
        buffers=[info(s, v) for s, v in e.buffers],
        constants=e.constants,
        inputs=[
            InputInfo(v.name, v.dtype, v.shape, used)
            for v, used in zip(e.inputs, e.inputs_used, strict=True)
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


def _without_fakes(traced: "Traced") -> Any:
    """The result's structure; its fake tensors would keep the whole trace alive."""
    leaves = [torch.empty(0) for _ in traced.result_leaves]
    return structure.rebuild(traced.result, iter(leaves))
