# SPDX-License-Identifier: Apache-2.0
"""One run of a model's forward, and of autograd behind it, recorded as one ATen graph.

Parameters, buffers and inputs are replaced by fake tensors for the time of the run, so no data is
touched; the user's module is put back whatever happens.
"""

import contextlib
import logging
import sys
import warnings
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from poptorch._logging import logger

from . import _torch_private as private
from . import constants, errors, frozen, library, mutations, placement, state, structure
from .checks import CHECKS, check_device
from .decompositions import trace_table
from .dynamic_index import DynamicViews
from .host_reads import HostReads
from .intercept import Interceptor
from .overlap import Overlap
from .progress import Progress
from .python_state import PythonState
from .ragged import RaggedLabels
from .slots import Swap, collect_state, fake_state, fake_view, find_owners, refuse_shared
from .telling import loss_hint, told, warn_of_work_on, warnings_of_user

NO_LOSS = "Couldn't find a loss in graph!"
MANY_LOSSES = (
    "Multiple independent losses found in graph. Graph must have one final loss. "
    "Wrap final graph loss in poptorch.identity_loss."
)


class Tag(NamedTuple):
    """Where a node comes from and where it is to run."""

    file: str
    line: int
    scope: str
    backward: bool
    ipu: int
    stage: int
    phase: int
    block: str | None


@dataclass
class Traced:
    """The joint graph and what its placeholders and outputs stand for."""

    gm: torch.fx.GraphModule
    slots: list  # StateSlot per leading placeholder
    views: list  # StateSlots that are views of those
    inputs: list  # (path, tensor) per following placeholder
    result: object  # what forward returned, fake tensors inside
    result_leaves: list  # per tensor of the result: ("value", index) or ("constant", tensor)
    num_values: int  # leading outputs of the graph that are results
    has_loss: bool  # the output after them is the loss
    grads: list  # slots whose gradients are the outputs after that
    written: dict = field(default_factory=dict)  # placeholder -> node with its final value
    streams: int = 0
    blocks: dict = field(default_factory=dict)  # Session.blocks
    overlapped: tuple | None = None  # line of the first transfer that is to overlap
    checks: list = field(default_factory=list)  # frozen.Check per output after those
    follows_strides: bool = False  # which tensors are aliases depends on the strides of the inputs


class Session:
    """State of one capture; placement, intercepted functions and tags find it through
    state.current()."""

    def __init__(self, training, native_ops, scopes, values, casting=None):
        self.training = training
        self.frozen = values  # frozen.Frozen
        self.views = DynamicViews()
        self.ragged = RaggedLabels()
        self.casting = casting
        self.native_ops = native_ops
        self.in_forward = False
        self.in_backward = False
        self.losses = []
        self.detached_losses = []
        self.streams = 0
        self.by_sequence = {}
        self.blocks = {}  # block -> tag of its first op that does something
        self.overlap = Overlap()
        self.convolutions = 0
        self.views_or_copies = set()  # storages of which one or the other was made, by strides
        self.follows_strides = False  # one of them was written to after that
        self.last_tag = Tag("", 0, "", False, *placement.DEFAULT)
        self.name_scopes = []
        self.hosting = False  # runs a function for real, to see what it returns
        self.cpu_ops = {}  # ID of poptorch.CPU -> function
        self.swap = None  # the Swap of the model that is captured
        self.progress = Progress()
        self.call = None  # the model and its arguments
        self.failed = None  # the exception that a torch function raised last, and its call
        self._draws = set()  # lines where Python read a random number
        self._texts = set()  # lines where a tensor became text
        self._scopes = scopes
        self._scope_stack = []

    def next_stream(self):
        """A number no other random op of this program has."""
        self.streams += 1
        return self.streams

    def on_host(self, function):
        """function() on real tensors and with the model's own state, as outside of any capture."""
        self.in_forward, self.hosting = False, True
        try:
            with self.swap.undone(), torch._C.DisableTorchFunction():
                return private.without_modes(function)
        finally:
            self.in_forward, self.hosting = True, False

    def note_write(self, func, args):
        """Notices a write whose reach depends on the strides of the inputs."""
        if self.views_or_copies and func._schema.is_mutable and isinstance(args[0], torch.Tensor):
            self.follows_strides |= private.storage_id(args[0]) in self.views_or_copies

    def warn_of_draw(self, tag):
        """Python has read a random number; says so once per line."""
        if tag[:2] not in self._draws:
            self._draws.add(tag[:2])
            logger.warning(
                "Python reads a random number: it is drawn once, while the model is captured, and "
                "what was decided with it stays in the program, at %s",
                errors.describe(tag[:2]),
            )

    def warn_of_text(self):
        """A tensor was turned into text; says so once per line."""
        where = errors.user_frame()
        if where not in self._texts:
            self._texts.add(where)
            logger.warning(
                "A tensor is turned into text while the model is captured: it has no value yet, "
                "and the text is not made again when the program runs. "
                "poptorch.ipu_print_tensor(tensor) prints the values in every call.\n  at %s",
                errors.describe(where),
            )

    def scope_of(self, module):
        """The name of a module of the model, or None."""
        return self._scopes.get(id(module))

    def enter_module(self, module, _args):
        self._scope_stack.append(self._scopes.get(id(module)))
        self.progress.enter_module(module)
        if self.casting is not None:
            self.casting.enter_module(module)

    def leave_module(self, _module, _args, _result):
        if self._scope_stack:
            self._scope_stack.pop()
            if self.casting is not None:
                self.casting.leave()

    def forward_tag(self, frame):
        scope = next((s for s in reversed(self._scope_stack) if s is not None), "")
        scope = ".".join([*self.name_scopes, scope] if scope else self.name_scopes)
        file, line = errors.user_frame(frame)
        tag = Tag(file, line, scope, False, *placement.current_placement())
        # Ops that make no autograd node see the previous one's number and must not take it over.
        self.by_sequence.setdefault(private.next_sequence_number() - 1, tag)
        return tag

    def backward_tag(self):
        number = private.running_sequence_number()
        if number is not None:
            self.progress.backward(number)
            found = self.by_sequence.get(number)
            if found is not None:
                self.last_tag = found._replace(backward=True)
        return self.last_tag


def _does_something(func, args):
    """Whether an op makes a tensor from another; not a view of it, nor the same again."""
    return (
        not any(r.alias_info for r in func._schema.returns)
        and func.overloadpacket not in (torch.ops.aten.clone, torch.ops.aten._to_copy)
        and any(isinstance(a, torch.Tensor) for a in args)
    )


_NONZERO = torch.ops.aten.nonzero.default
_REPEAT = torch.ops.aten.repeat_interleave.Tensor


class _Tagger(private.TorchDispatchMode):
    """Tags every ATen op and turns torch's errors about unknown values into ours."""

    def __init__(self, session):
        super().__init__()
        self.session = session

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        session = self.session
        if session.in_backward:
            tag = session.backward_tag()
        else:
            tag = session.forward_tag(sys._getframe(1))
            if tag.block and tag.block not in session.blocks and _does_something(func, args):
                session.blocks[tag.block] = tag
            session.convolutions += func is torch.ops.aten.convolution.default
            session.note_write(func, args)
        private.set_node_tag({"tag": tag})
        kwargs = kwargs or {}
        check = CHECKS.get(func)
        if check is not None:
            check(*args, **kwargs)
        if kwargs.get("device") is not None:
            check_device(kwargs["device"])
        try:
            if func in constants.MAYBE_STATIC:
                out = constants.static_form(func, args, kwargs)
                if out is not None:
                    if constants.draws(func, args):
                        session.warn_of_draw(tag)
                    return out
            if func in frozen.READS:
                return session.frozen.call(func, args, kwargs, tag[:2])
            if func is _NONZERO and args[0].dim() and not session.frozen.refuses:
                return session.frozen.nonzero(args[0], tag[:2])
            if func is _REPEAT and not session.frozen.refuses:
                kwargs = {"output_size": session.frozen.repeats(*args, **kwargs, where=tag[:2])}
            out = func(*args, **kwargs)
            constants.remember(func, args, kwargs, out)
            return out
        except private.DynamicOutputShapeException:
            what = errors.describe_dynamic_op(func)
            raise errors.data_dependent("shape", what, tag[:2]) from None
        except private.DataDependentOutputException:
            raise errors.data_dependent("value", str(func), tag[:2]) from None


def _reachable(starts):
    seen, todo = set(), list(starts)
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        todo += [n for n, _ in node.next_functions]
    return seen


def pick_loss(session, result):
    """The marked tensor that feeds no other marked one, and its line; an error unless there is
    exactly one."""
    marked = [(t, where) for t, where in session.losses if t.grad_fn is not None]
    if not marked:
        if len(session.detached_losses) == 1:  # nothing to train, still a loss to return
            return session.detached_losses[0]
        raise errors.make_error(
            f"{NO_LOSS} A training model must compute its loss in forward: use a loss of torch.nn, "
            "or mark your own with poptorch.identity_loss(loss, reduction='none')."
            + loss_hint(session)
        )
    inner = _reachable(n for t, _ in marked for n, _ in t.grad_fn.next_functions)
    final = [(t, where) for t, where in marked if t.grad_fn not in inner]
    if len(final) > 1:
        leaves = [t for _, t in structure.tensors_of(result)]
        returned = _reachable(t.grad_fn for t in leaves)
        final = [(t, w) for t, w in final if t.grad_fn in returned] or final
    if len(final) > 1:
        lines = "".join(f"\n  loss at {errors.describe(where)}" for _, where in final)
        raise errors.make_error(MANY_LOSSES + lines)
    return final[0]


def _check_state_of_result(leaves):
    for leaf in leaves:
        if leaf.layout != torch.strided:
            raise errors.make_error(f"forward returned a tensor of layout {leaf.layout}")


def trace_model(
    model,
    args,
    kwargs,
    *,
    training,
    native_ops,
    module_scopes=True,
    casting=None,
    progress=None,
    values_read=frozen.FREEZE,
):
    """Captures one call `model(*args, **kwargs)`; returns a Traced."""
    found = collect_state(model)
    apart = find_owners(found, training)
    slots, views = [s for s in found if s.owner is None], [s for s in found if s.owner is not None]
    scopes = {}
    for name, module in model.named_modules() if module_scopes else ():
        scopes.setdefault(id(module), name)
    inputs = structure.argument_leaves(args, kwargs)
    # Tensors of their own, because those of the slots will hold fakes.
    sources = [t.detach() for t in (*(s.tensor for s in slots), *(t for _, t in inputs))]
    values = frozen.Frozen(values_read, sources)
    session = Session(training, native_ops, scopes, values, casting)
    session.progress = Progress(model, training, progress)
    session.call = model, args, kwargs
    fake_mode = private.FakeTensorMode(allow_non_fake_inputs=True)
    table = trace_table()
    traced = Traced(None, slots, views, inputs, None, [], 0, False, [])
    placement.reset_placement()

    with fake_mode:
        for slot in slots:
            slot.fake = fake_state(slot, casting)
        fake_inputs = [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype) for _, t in inputs]

    def joint(*tensors):
        return _run_joint(model, args, kwargs, session, traced, tensors)

    fakes = [s.fake for s in slots] + fake_inputs
    state.enter(session)
    try:
        with fake_mode, private.patched_torch(), _quiet():
            gm = private.trace(joint, fakes, table)
            placeholders = [n for n in gm.graph.nodes if n.op == "placeholder"]
            session.overlap.check_inputs(placeholders[len(slots) :])
            traced.gm, traced.written = mutations.make_pure(gm, fakes, table)
            _check_apart(apart, traced)
    finally:
        state.leave()
        placement.reset_placement()
    traced.streams = session.streams
    traced.blocks = session.blocks
    traced.overlapped = session.overlap.where
    traced.follows_strides = session.follows_strides
    return traced


def _check_apart(groups, traced):
    placeholders = [n for n in traced.gm.graph.nodes if n.op == "placeholder"]
    node_of = dict(zip(traced.slots, placeholders, strict=False))
    for group in groups:
        if any(node_of[slot] in traced.written for slot in group):
            refuse_shared(group)


@contextlib.contextmanager
def _quiet():
    """Keeps torch from printing its own stack before an error that the user gets anyway."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    before, log.disabled = log.disabled, True
    try:
        with warnings_of_user():
            yield
    finally:
        log.disabled = before


def _run_joint(model, args, kwargs, session, traced, tensors):
    count = len(traced.slots)
    for slot, tensor in zip(traced.slots, tensors, strict=False):
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
    with swap, hooks, _Tagger(session), Interceptor(session):
        session.in_forward, failure = True, None
        try:
            with torch.set_grad_enabled(session.training), reads.watched(python.namespaces):
                result = model(*args, **kwargs)
        except Exception as error:
            failure = told(error, session)
            if failure is error:
                raise
        finally:
            session.in_forward = False
        if failure is not None:
            raise failure  # here, because there it would come up while handling the other
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


def _finish(session, traced, result):
    traced.result = result
    session.overlap.check_outputs([leaf for _, leaf in structure.tensors_of(result)])
    outputs, index_of = [], {}
    for _, leaf in structure.tensors_of(result):
        session.ragged.refuse(leaf)
        if not isinstance(leaf, private.FakeTensor):
            warnings.warn(
                f"Output expected to be on the IPU but is on {leaf.device}: it is the same in "
                "every call, with the value it had when the model was compiled",
                stacklevel=2,
            )
            traced.result_leaves.append(("constant", leaf))
            continue
        if id(leaf) not in index_of:
            index_of[id(leaf)] = len(outputs)
            outputs.append(session.swap.fake_of(leaf))
        traced.result_leaves.append(("value", index_of[id(leaf)]))
    _check_state_of_result(outputs)
    if result is None and not session.training:
        logger.warning("forward returns None: is a `return` missing? The call computes nothing.")
    traced.num_values = len(outputs)
    trained = _train(session, traced, result) if session.training else []
    # After the gradients, because hooks of theirs may read values too.
    traced.checks = session.frozen.checks
    return [*outputs, *trained, *[check.differs for check in traced.checks]]


def _train(session, traced, result):
    """The loss, and the gradients that there are."""
    loss, where = pick_loss(session, result)
    traced.has_loss = True
    wanted = [s for s in traced.slots if s.trainable]
    gradients = _differentiate(session, loss, wanted)
    traced.grads = [s for s, g in zip(wanted, gradients, strict=False) if g is not None]
    _warn_about_loss(loss, where, wanted, traced.grads)
    warn_of_work_on(loss, where, [leaf for _, leaf in structure.tensors_of(traced.result)])
    return [loss, *[g for g in gradients if g is not None]]


def _warn_about_loss(loss, where, wanted, graded):
    """Says what is allowed but seldom meant."""
    if wanted and not graded:
        logger.warning(
            "The loss depends on no trainable parameter: nothing will be trained.\n  at %s",
            errors.describe(where),
        )
    elif loss.numel() > 1:
        logger.warning(
            "The loss is no scalar but of shape %s: the gradient is that of the sum of its "
            'elements. Use reduction="mean", or "sum" if that is meant.\n  at %s',
            list(loss.shape),
            errors.describe(where),
        )


def _differentiate(session, loss, slots):
    if loss.grad_fn is None or not slots:
        return [None] * len(slots)
    if not loss.dtype.is_floating_point:
        raise errors.make_error(f"The loss must be of a floating-point type, not {loss.dtype}")
    session.in_backward = True
    number = loss.grad_fn._sequence_nr()
    session.progress.begin_backward(min(session.by_sequence, default=0), number)
    seed = session.by_sequence.get(number)
    if seed is not None:
        session.last_tag = seed._replace(backward=True)
    try:
        # Anomaly detection would read values, which there are none of yet.
        with torch.enable_grad(), torch.autograd.set_detect_anomaly(False):
            return torch.autograd.grad(
                loss,
                [s.tensor for s in slots],
                library.ops.loss_seed(loss.detach()),
                allow_unused=True,
            )
    except Exception as error:
        told(error, session, "backward")
        raise
    finally:
        session.in_backward = False
