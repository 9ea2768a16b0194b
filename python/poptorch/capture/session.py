# SPDX-License-Identifier: Apache-2.0
"""What one capture knows and keeps while it runs."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch
import torch.fx

from poptorch.base.logging import logger
from poptorch.capture import _torch_private as private
from poptorch.capture import errors, placement
from poptorch.capture.calls.handler import TorchCall
from poptorch.capture.casting import Casting
from poptorch.capture.errors import Where
from poptorch.capture.overlap import Overlap
from poptorch.capture.placement import Tag
from poptorch.capture.progress import Progress
from poptorch.capture.slots import StateSlot
from poptorch.capture.swap import Swap
from poptorch.capture.text.row import Row
from poptorch.capture.values.dynamic_index import DynamicViews
from poptorch.capture.values.frozen import Frozen
from poptorch.capture.values.ragged import RaggedLabels

if TYPE_CHECKING:
    from poptorch.capture.flow.lift import Lifter

_T = TypeVar("_T")


class ModelCall(NamedTuple):
    """The call that is captured."""

    model: torch.nn.Module
    args: Sequence[Any]
    kwargs: Mapping[str, Any]


class Body(NamedTuple):
    """The body of a loop or a branch.

    Attributes:
        module: a graph without in-place ops, from its inputs to a list of results.
        results: the type of each result.
        origin: number of its trace, which forward and backward share.
    """

    module: torch.fx.GraphModule
    results: list[tuple[torch.dtype, tuple[int, ...]]]
    origin: int


class MarkedLoss(NamedTuple):
    """The result of a loss function or of identity_loss, and its line."""

    tensor: torch.Tensor
    where: Where


class Session:
    """State of one capture. Whoever is called in forward finds it through state.current().

    Args:
        call: the call to capture.
        training: whether its loss is differentiated.
        rows: the rows of the core by name.
        scopes: names of the modules by their ids.
        values: answers to Python reading a tensor.
        casting: rules for operands of float16 and float32; None leaves all types to torch.
        progress: is told how far the capture is.
        replicas: how many replicas the program will have.
    """

    def __init__(
        self,
        call: ModelCall,
        *,
        training: bool,
        rows: Mapping[str, Row],
        scopes: dict[int, str],
        values: Frozen,
        casting: Casting | None,
        progress: Progress,
        replicas: int = 1,
    ) -> None:
        self.call = call
        self.training = training
        self.rows = rows
        self.frozen = values
        self.casting = casting
        self.progress = progress
        self.replicas = replicas
        self.views = DynamicViews()
        self.ragged = RaggedLabels()
        self.overlap = Overlap()
        self.swap: Swap  # of the model's state, from the start of forward
        self.in_forward = False
        self.in_backward = False
        self.hosting = False  # inside on_host()
        self.losses: list[MarkedLoss] = []
        self.bodies: list[Body] = []  # of loops and branches, by number
        self.lifters: list[Lifter] = []  # of the bodies that are being traced, outermost first
        self.inner_losses: list[Where] = []  # lines of losses in bodies
        self.detached_losses: list[MarkedLoss] = []  # without a gradient
        self.streams = 0
        self.convolutions = 0
        self.conv_memory: Callable[[], float] | None = None  # of an open MultiConv, per convolution
        # New values of states once per weight update, which ops of libraries give.
        self.once: list[tuple[StateSlot, torch.Tensor]] = []
        self.cpu_ops: dict[str, Any] = {}  # ID of poptorch.CPU -> function
        self.name_scopes: list[str] = []
        self.checkpoints: tuple[int, ...] = ()  # regions that are open now
        self._regions = 0
        self._pieces = 0  # of the products that are captured now
        self.by_sequence: dict[int, Tag] = {}  # number of an autograd node -> its forward op
        self.blocks: dict[str, Tag] = {}  # block -> its first op that does something
        self.last_tag = Tag("", 0, "", False, *placement.DEFAULT)
        self.views_or_copies: set[int] = set()  # storages of which strides chose a view or a copy
        self.follows_strides = False  # one of them was written to after that
        self.failed: tuple[Exception, TorchCall] | None = None  # what torch raised last
        self._draws: set[Where] = set()  # lines where Python read a random number
        self._texts: set[Where] = set()  # lines where a tensor became text
        self._scopes = scopes
        self._scope_stack: list[str | None] = []

    def lift(self, tensors: _T) -> _T:
        """Tensors as the body that is being traced has them, if one is."""
        return self.lifters[-1].lift_all(tensors) if self.lifters else tensors

    def next_stream(self) -> int:
        """A number no other random op of this program has."""
        self.streams += 1
        return self.streams

    def on_host(self, function: Callable[[], _T]) -> _T:
        """function() on real tensors and with the model's own state, as outside of any capture."""
        self.in_forward, self.hosting = False, True
        try:
            with self.swap.undone(), torch._C.DisableTorchFunction():
                return private.without_modes(function)
        finally:
            self.in_forward, self.hosting = True, False

    def note_write(self, func: torch._ops.OpOverload, args: tuple[Any, ...]) -> None:
        """Notices a write whose reach depends on the strides of the inputs."""
        if self.views_or_copies and func._schema.is_mutable and isinstance(args[0], torch.Tensor):
            self.follows_strides |= private.storage_id(args[0]) in self.views_or_copies

    @contextlib.contextmanager
    def checkpointed(self) -> Iterator[None]:
        """Ops captured inside are made again in backward; only what they read is kept."""
        self._regions += 1
        before, self.checkpoints = self.checkpoints, (*self.checkpoints, self._regions)
        try:
            yield
        finally:
            self.checkpoints = before

    @contextlib.contextmanager
    def serialized(self, pieces: int) -> Iterator[None]:
        """Products captured inside are done in pieces, with what follows them."""
        before, self._pieces = self._pieces, pieces
        try:
            yield
        finally:
            self._pieces = before

    def warn_of_draw(self, where: Where) -> None:
        """Python has read a random number; says so once per line."""
        if where not in self._draws:
            self._draws.add(where)
            logger.warning(
                "Python reads a random number: it is drawn once, while the model is captured, and "
                "what was decided with it stays in the program, at %s",
                errors.describe(where),
            )

    def warn_of_text(self) -> None:
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

    def scope_of(self, module: torch.nn.Module | None) -> str | None:
        """The name of a module of the model, or None."""
        return self._scopes.get(id(module))

    def enter_module(self, module: torch.nn.Module, _args: Any) -> None:
        """Forward calls a module: a hook of torch."""
        self._scope_stack.append(self._scopes.get(id(module)))
        self.progress.enter_module(module)
        if self.casting is not None:
            self.casting.enter_module(module)

    def leave_module(self, _module: torch.nn.Module, _args: Any, _result: Any) -> None:
        """The call of a module has ended: a hook of torch."""
        if self._scope_stack:
            self._scope_stack.pop()
            if self.casting is not None:
                self.casting.leave()

    def forward_tag(self, frame: FrameType) -> Tag:
        """The tag of the op that forward calls from `frame`."""
        scope = next((s for s in reversed(self._scope_stack) if s is not None), "")
        scope = ".".join([*self.name_scopes, scope] if scope else self.name_scopes)
        file, line = errors.user_frame(frame)
        tag = Tag(
            file,
            line,
            scope,
            False,
            *placement.current_placement(),
            checkpoints=self.checkpoints,
            pieces=self._pieces,
        )
        # Ops that make no autograd node see the previous one's number and must not take it over.
        self.by_sequence.setdefault(private.next_sequence_number() - 1, tag)
        return tag

    def backward_tag(self) -> Tag:
        """The tag of the op that autograd calls: that of the op whose gradient it computes."""
        number = private.running_sequence_number()
        if number is not None:
            if not self.lifters:
                self.progress.backward(number)
            found = self.by_sequence.get(number)
            if found is not None:
                self.last_tag = found._replace(backward=True)
        return self.last_tag
