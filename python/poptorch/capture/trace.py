# SPDX-License-Identifier: Apache-2.0
"""One run of a model's forward, and of autograd after it, recorded as one ATen graph.

Parameters, buffers and inputs are replaced by fake tensors for the time of the run, so no data is
touched; the user's module is put back whatever happens.
"""

import contextlib
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx

from poptorch.base.logging import logger
from poptorch.capture import _torch_private as private
from poptorch.capture import errors, mutations, placement, state, structure
from poptorch.capture.calls.decompositions import TABLE
from poptorch.capture.calls.intercept import Interceptor
from poptorch.capture.casting import Casting
from poptorch.capture.errors import Where
from poptorch.capture.errors.explain import explained, warnings_of_user
from poptorch.capture.loss import differentiate
from poptorch.capture.placement import Tag
from poptorch.capture.progress import Progress
from poptorch.capture.session import Body, ModelCall, Session
from poptorch.capture.slots import (
    StateSlot,
    collect_state,
    fake_state,
    fake_view,
    find_owners,
    refuse_shared,
)
from poptorch.capture.structure import Leaf
from poptorch.capture.swap import Swap
from poptorch.capture.tagger import Tagger
from poptorch.capture.text.outside import line_of
from poptorch.capture.text.row import Row
from poptorch.capture.values import frozen
from poptorch.capture.watch.host_reads import HostReads
from poptorch.capture.watch.python_state import PythonState


@dataclass
class Traced:
    """The joint graph and what its placeholders and outputs stand for.

    Attributes:
        gm: the graph.
        slots: the state that its first placeholders are, in order.
        views: state that is a view of those.
        inputs: the arguments that the other placeholders are.
        written: placeholder -> node with its final value, of those that are written to.
        result: what forward returned, fake tensors inside.
        result_leaves: per tensor of the result, the index of an output, or a constant.
        num_values: how many outputs of the graph are results; they are the first.
        has_loss: whether the output after them is the loss.
        grads: whose gradients the outputs after that are.
        checks: what the outputs after those check.
        once: the states whose new values, once per weight update, are the last outputs.
        streams: how many streams of random numbers have an op.
        bodies: those of loops and branches, by number.
        blocks: the first op of each block.
        overlapped: line of the first transfer that is to overlap.
        follows_strides: whether the strides of the inputs decide which tensors are aliases.
    """

    slots: list[StateSlot]
    views: list[StateSlot]
    inputs: list[Leaf]
    gm: torch.fx.GraphModule = field(init=False)
    written: dict[torch.fx.Node, torch.fx.Node] = field(default_factory=dict)
    result: Any = None
    result_leaves: list[int | torch.Tensor] = field(default_factory=list)
    num_values: int = 0
    has_loss: bool = False
    grads: list[StateSlot] = field(default_factory=list)
    checks: list[frozen.Check] = field(default_factory=list)
    once: list[StateSlot] = field(default_factory=list)
    streams: int = 0
    bodies: list[Body] = field(default_factory=list)
    blocks: dict[str, Tag] = field(default_factory=dict)
    overlapped: Where | None = None
    follows_strides: bool = False


def trace_model(
    model: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    training: bool,
    rows: Mapping[str, Row],
    module_scopes: bool = True,
    casting: Casting | None = None,
    progress: Callable[[float], None] | None = None,
    values_read: str = frozen.FREEZE,
    replicas: int = 1,
) -> Traced:
    """Captures one call `model(*args, **kwargs)`."""
    found = collect_state(model)
    shared = find_owners(found, training)
    slots, views = [s for s in found if s.owner is None], [s for s in found if s.owner is not None]
    scopes: dict[int, str] = {}
    for name, module in model.named_modules() if module_scopes else ():
        scopes.setdefault(id(module), name)
    inputs = structure.argument_leaves(args, kwargs)
    # Tensors of their own, because those of the slots will hold fakes.
    sources = [t.detach() for t in (*(s.tensor for s in slots), *(t for _, t in inputs))]
    session = Session(
        ModelCall(model, args, kwargs),
        training=training,
        rows=rows,
        scopes=scopes,
        values=frozen.Frozen(values_read, sources),
        casting=casting,
        progress=Progress(model, training, progress),
        replicas=replicas,
    )
    fake_mode = private.FakeTensorMode(allow_non_fake_inputs=True)
    traced = Traced(slots, views, inputs)
    placement.reset_placement()

    with fake_mode:
        for slot in slots:
            slot.fake = fake_state(slot, casting)
        fake_inputs = [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype) for _, t in inputs]

    def joint(*tensors: torch.Tensor) -> list[torch.Tensor]:
        return _run_joint(session, traced, tensors)

    fakes = [s.fake for s in slots] + fake_inputs
    state.enter(session)
    try:
        with fake_mode, private.patched_torch(), _quiet():
            gm = private.trace(joint, fakes, TABLE)
            placeholders = [n for n in gm.graph.nodes if n.op == "placeholder"]
            session.overlap.check_inputs(placeholders[len(slots) :])
            traced.gm, traced.written = mutations.make_pure(gm, fakes, TABLE)
            _check_shared(shared, traced)
    finally:
        state.leave()
        placement.reset_placement()
    traced.streams = session.streams
    traced.bodies = session.bodies
    _check_constants(traced.gm)
    traced.blocks = session.blocks
    traced.overlapped = session.overlap.where
    traced.follows_strides = session.follows_strides
    return traced


def _check_constants(module: torch.fx.GraphModule) -> None:
    """Raises if the graph has a fake among its constants: it belongs to the body of a loop."""
    for node in module.graph.nodes:
        if node.op == "get_attr" and isinstance(
            getattr(module, str(node.target), None), private.FakeTensor
        ):
            raise errors.make_error(
                "A tensor that was made in the body of poptorch.for_loop or poptorch.cond is used "
                "outside of it: only what the body returns can be used there.",
                line_of(next(iter(node.users), node)),
            )


def _check_shared(groups: list[list[StateSlot]], traced: Traced) -> None:
    """Raises if the program writes to memory that slots share without being views of each other."""
    placeholders = [n for n in traced.gm.graph.nodes if n.op == "placeholder"]
    node_of = dict(zip(traced.slots, placeholders[: len(traced.slots)], strict=True))
    for group in groups:
        if any(node_of[slot] in traced.written for slot in group):
            refuse_shared(group)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps torch from printing its own stack before an error that the user gets anyway."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    before, log.disabled = log.disabled, True
    try:
        with warnings_of_user():
            yield
    finally:
        log.disabled = before


def _run_joint(
    session: Session, traced: Traced, tensors: tuple[torch.Tensor, ...]
) -> list[torch.Tensor]:
    """Forward and backward on the fakes of state and inputs; returns the outputs of the graph."""
    model, args, kwargs = session.call
    count = len(traced.slots)
    for slot, tensor in zip(traced.slots, tensors[:count], strict=True):
        slot.fake = tensor
        for hook in (slot.tensor._backward_hooks or {}).values():
            if tensor.requires_grad:
                tensor.register_hook(hook)
    for slot in traced.views:
        slot.fake = fake_view(slot)
    session.overlap.inputs = tensors[count:]
    leaves = iter(tensors[count:])
    args = [structure.rebuild(a, leaves) for a in args]
    kwargs = structure.rebuild(dict(kwargs), leaves)
    swap = session.swap = Swap(model, [*traced.slots, *traced.views])
    hooks = private.module_hooks(session.enter_module, session.leave_module)
    python, reads = PythonState(model), HostReads()
    failure: BaseException | None = None
    with swap, hooks, Tagger(session), Interceptor(session):
        session.in_forward = True
        try:
            with torch.set_grad_enabled(session.training), reads.watched(python.namespaces):
                result = model(*args, **kwargs)
        except Exception as error:
            failure = explained(error, session)
            if failure is error:
                raise
        finally:
            session.in_forward = False
        if failure is not None:
            raise failure  # not in the handler, which would make the other exception its context
        problems = swap.problems()
        if problems:
            raise errors.make_error("; ".join(problems))
        python.warn_of_counters()
        reads.warn()
        for name in swap.frozen():
            logger.warning(
                "%s is changed in forward but is neither a parameter nor a buffer: it is a "
                "constant of the compiled program and starts with the same value in every call. "
                "Use register_buffer and change it in place to keep its value between calls.",
                name,
            )
        return _finish(session, traced, result)


def _finish(session: Session, traced: Traced, result: Any) -> list[torch.Tensor]:
    """Notes what forward returned and adds backward; returns the outputs of the graph."""
    traced.result = result
    leaves = [leaf for _, leaf in structure.tensors_of(result)]
    session.overlap.check_outputs(leaves)
    outputs: list[torch.Tensor] = []
    index_of: dict[int, int] = {}
    for leaf in leaves:
        session.ragged.refuse(leaf)
        if not isinstance(leaf, private.FakeTensor):
            warnings.warn(
                f"Output expected to be on the IPU but is on {leaf.device}: it is the same in "
                "every call, with the value it had when the model was compiled",
                stacklevel=2,
            )
            traced.result_leaves.append(leaf)
            continue
        if id(leaf) not in index_of:
            index_of[id(leaf)] = len(outputs)
            outputs.append(session.swap.fake_of(leaf))
        traced.result_leaves.append(index_of[id(leaf)])
    _check_layouts(outputs)
    if result is None and not session.training:
        logger.warning("forward returns None: is a `return` missing? The call computes nothing.")
    traced.num_values = len(outputs)
    if session.training:
        loss, gradients = differentiate(session, traced.slots, result)
        traced.has_loss = True
        traced.grads = [slot for slot, _ in gradients]
        outputs += [loss, *[gradient for _, gradient in gradients]]
    # After the gradients, because hooks of theirs may read values too.
    traced.checks = session.frozen.checks
    traced.once = [slot for slot, _ in session.once]
    new = [value for _, value in session.once]
    return [*outputs, *[check.differs for check in traced.checks], *new]


def _check_layouts(leaves: list[torch.Tensor]) -> None:
    for leaf in leaves:
        if leaf.layout != torch.strided:
            raise errors.make_error(f"forward returned a tensor of layout {leaf.layout}")
