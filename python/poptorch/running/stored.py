# SPDX-License-Identifier: Apache-2.0
"""What a file holds beside the program: notes as JSON, which say how to make the same call again,
and, where asked, a pickle of everything that ``poptorch.load`` needs."""

import io
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from poptorch import _core
from poptorch._version import __version__
from poptorch.base.dtypes import DTYPE_NAMES, DTYPES
from poptorch.base.errors import createPoptorchError, raise_core_error
from poptorch.capture import Capture
from poptorch.compiling.batching import Batching
from poptorch.compiling.compile import Make, tell_notes
from poptorch.compiling.inspection import Anchor
from poptorch.enums import OutputMode
from poptorch.running.arguments import Bound
from poptorch.running.template import Template


@dataclass
class Stored:
    """The pickled part of a file.

    Attributes:
        optimizer_state: of an optimizer of torch's, whose state is on the device only.
        strides: of the first call's tensors, if the results depend on them.
    """

    model: torch.nn.Module
    training: bool
    options: Any
    optimizer: Any
    optimizer_state: dict[str, Any] | None
    rng_state: list[int] | None
    capture: Capture
    batching: Batching
    rules: list[tuple[OutputMode, int]]
    anchors: list[Anchor]
    core_options: dict[str, Any]
    groupings: dict[str, Any]
    template: Template
    inputs: Bound
    strides: list[tuple[int, ...]] | None


# Pickles ------------------------------------------------------------------------------------------


def pickled(stored: Stored) -> bytes:
    """Tensors that share memory still do so when they are read."""
    out = io.BytesIO()
    try:
        torch.save(stored, out)
    except Exception as error:  # of the user's classes
        raise createPoptorchError(
            f"The model can't be pickled: {error}. Save the program alone with export_model=False, "
            "and load it with loadExecutable()."
        ) from error
    return out.getvalue()


def unpickled(model: bytes) -> Stored:
    """Runs whatever code the pickle asks for."""
    result: Stored = torch.load(io.BytesIO(model), weights_only=False)
    return result


# Notes --------------------------------------------------------------------------------------------

_LARGEST = 4096  # bytes of a tensor whose values are kept: forward may have read them


def kept_arguments(bound: Bound, tensors: list[torch.Tensor]) -> Bound:
    """A call with values for its small tensors only."""
    kept = [
        t.detach().clone() if t.nbytes <= _LARGEST else torch.empty_like(t, device="meta")
        for t in tensors
    ]
    return bound.replaced(iter(kept))


def notes_of(bound: Bound, model: torch.nn.Module, training: bool) -> str:
    """As JSON: the arguments of the first call, and which layers were in training mode."""
    notes: dict[str, Any] = {"version": __version__, "torch": torch.__version__}
    notes["training"] = training
    modes = {name: module.training for name, module in model.named_modules()}
    notes["mode"] = model.training
    notes["other_mode"] = [name for name, mode in modes.items() if mode != model.training]
    try:
        args, kwargs = _encoded(bound.args), _encoded(bound.kwargs)
        notes |= {"args": args, "kwargs": kwargs}
    except TypeError as error:
        notes["missing"] = str(error)
    return json.dumps(notes)


def _encoded(value: Any) -> Any:
    kind = type(value)
    if kind in (type(None), bool, int, float, str):
        return {"value": value}
    if isinstance(value, torch.Tensor) and value.dtype in DTYPE_NAMES:
        form = {"tensor": DTYPE_NAMES[value.dtype], "shape": list(value.shape)}
        return form if value.is_meta else form | {"values": value.tolist()}
    if kind in (list, tuple):
        return {kind.__name__: [_encoded(item) for item in value]}
    if kind is dict and all(type(key) is str for key in value):
        return {"dict": {key: _encoded(item) for key, item in value.items()}}
    raise TypeError(f"{kind.__module__}.{kind.__qualname__}")


def _decoded(note: dict[str, Any]) -> Any:
    if "value" in note:
        return note["value"]
    if "tensor" in note:
        dtype = DTYPES[note["tensor"]]
        if "values" in note:
            return torch.tensor(note["values"], dtype=dtype, device="cpu").reshape(note["shape"])
        return torch.zeros(note["shape"], dtype=dtype, device="cpu")
    if "dict" in note:
        return {key: _decoded(item) for key, item in note["dict"].items()}
    if "tuple" in note:
        return tuple(_decoded(item) for item in note["tuple"])
    return [_decoded(item) for item in note["list"]]


class Notes:
    """What :func:`notes_of` has written of a file."""

    def __init__(self, file: Any, filename: str) -> None:
        problem = createPoptorchError(f"{filename}: is damaged: its notes can't be read")
        try:
            notes = json.loads(file.host)
            self._mode, self._other = bool(notes["mode"]), set(notes["other_mode"])
            self.missing: str = notes.get("missing", "")
            self.args: list[Any] = [] if self.missing else _decoded(notes["args"])
            self.kwargs: dict[str, Any] = {} if self.missing else _decoded(notes["kwargs"])
        except (ValueError, TypeError, KeyError, RuntimeError, AttributeError):
            raise problem from None
        if not isinstance(self.args, list) or not isinstance(self.kwargs, dict):
            raise problem

    @contextmanager
    def modes(self, model: torch.nn.Module) -> Iterator[None]:
        """In here the layers are in the modes that they were compiled in."""
        layers = dict(model.named_modules())
        before = {name: layer.training for name, layer in layers.items()}
        try:
            for name, layer in layers.items():
                layer.training = self._mode != (name in self._other)
            yield
        finally:
            for name, layer in layers.items():
                layer.training = before[name]


# Files --------------------------------------------------------------------------------------------


class ExportedFile:
    """A file that was checked from its first to its last byte.

    Raises for one that is none of ours, damaged, or of another version.
    """

    def __init__(
        self, filename: str | os.PathLike[str], wrong_version: Callable[[str], Exception]
    ) -> None:
        self.name = os.fspath(filename)
        try:
            self._file = _core.ExecutableFile(os.fsencode(filename))
        except _core.Error as exc:
            raise_core_error(exc)
        if self._file.creator != __version__:
            raise wrong_version(
                f"Invalid file {self.name}: PopTorch version mismatch: File was created with "
                f"version {self._file.creator}, this is version {__version__}"
            )

    @cached_property
    def notes(self) -> Notes:
        """How the program was compiled."""
        return Notes(self._file, self.name)

    @property
    def model(self) -> bytes:
        """The pickle; empty if there is none."""
        pickle: bytes = self._file.model
        return pickle

    def program(self, core_options: dict[str, Any], captured: Capture, progress: Any) -> Any:
        """The program, for a model that was captured as ``captured``.

        The core checks that it was made with these options.
        """
        try:
            program = _core.load(self._file, core_options, progress)
        except _core.Error as exc:
            raise_core_error(exc)
        expected = [(DTYPE_NAMES[info.dtype], list(info.shape)) for info in captured.inputs]
        if [(dtype, list(shape)) for _, dtype, shape in program.inputs] != expected:
            raise createPoptorchError(f"{self.name} was made for other inputs.")
        tell_notes(program)
        return program

    def maker(self, bar: Any) -> Make:
        """Gives the program for the very graph that it was made from."""

        def make(text: str, core_options: dict[str, Any], captured: Capture) -> Any:
            program = self.program(core_options, captured, bar.core)
            if _core.graph_digest(text) != self._file.digest:
                raise createPoptorchError(
                    f"{self.name} was made from another model: its forward, its optimizer or the "
                    "shapes of its arguments were others."
                )
            return program

        return make
