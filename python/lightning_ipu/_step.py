# SPDX-License-Identifier: Apache-2.0
"""One step function of a LightningModule as a module that poptorch can wrap, and the programs made
of it: one for whole batches, others for what is left at the end of a dataset."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from lightning_ipu._effects import FrozenIndex, Recorder
from lightning_ipu._results import Results, joined, part_of
from lightning_ipu._tree import Column, Slot, filled, is_texts, mapped, marked_texts, taken


class StepModule(torch.nn.Module):
    """``forward`` takes the tensors of a batch and returns all that the step lets out.

    Args:
        module: the LightningModule.
        method: name of its step function.
        training: whether the step returns a loss.
        context: entered around the step while it is captured.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        method: str,
        training: bool,
        context: Callable[[], AbstractContextManager[Any]],
    ) -> None:
        super().__init__()
        self.module = module
        # One object for all copies of this module: capture runs a copy.
        self.shared: dict[str, Any] = {
            "method": method,
            "is_training": training,
            "context": context,
        }

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Called once, by capture."""
        shared = self.shared
        recorder = Recorder(self.module)
        values = [
            tensor.reshape(()) if is_number else tensor
            for tensor, is_number in zip(tensors, shared["numbers"], strict=True)
        ]
        count, columns = shared["count"], shared["columns"]
        texts = [marked_texts(i, part_of(c, 0, count)) for i, c in enumerate(columns)]
        batch = filled(shared["batch"], values, texts)
        with recorder.recording(), shared["context"]():
            rest = [FrozenIndex(r) if type(r) is int else r for r in shared["rest"][:1]]
            result = getattr(self.module, shared["method"])(batch, *rest, *shared["rest"][1:])
            if shared["is_training"]:
                result = _with_loss(result)
        # What effects refer to comes first: they were numbered without the result.
        out = recorder.tensors
        structure = shared["result"] = taken(result, out)
        if shared["is_training"]:
            # What is only logged may be a loss of torch's too, but is none of this program's.
            loss = out[(structure if type(structure) is Slot else structure["loss"]).index]
            out = [tensor if tensor is loss else tensor.detach() for tensor in out]
        recorder.tensors = []  # effects live on, and would keep the whole trace alive
        shared["effects"] = recorder.effects
        shared["scalars"] = [t.dim() == 0 for t in out]
        if not out:  # a program has an output
            shared["scalars"] = [True]
            return (tensors[0].flatten()[0] * 1,)
        return tuple(out)


def _with_loss(result: Any) -> Any:
    """The result of a training step with its loss marked as such."""
    import poptorch

    loss = result.get("loss") if isinstance(result, dict) else result
    if not isinstance(loss, torch.Tensor):
        raise TypeError(
            f"`training_step` returned {'None' if loss is None else type(result)}: on IPUs it must "
            "return a loss (a tensor, or a dict with the key 'loss') on every step, because the "
            "step is compiled. Multiply the loss by zero to skip an update."
        )
    marked = poptorch.identity_loss(loss, reduction="mean" if loss.numel() > 1 else "none")
    return {**result, "loss": marked} if isinstance(result, dict) else marked


class _Program:
    """An executor of a step for batches of one size."""

    def __init__(
        self, module: StepModule, executor: Any, count: int, make_room: Callable[[], None]
    ) -> None:
        self.shared = module.shared
        self.executor = executor
        self.count = count
        self._make_room = make_room

    def run(self, batch: Any, rest: tuple[Any, ...]) -> Results:
        """Run it, after compiling it if need be."""
        executor = self.executor
        if not executor.isAttachedToDevice():
            self._make_room()
        if executor.isCompiled():
            tensors, columns = _tensors(batch, self.count)
            outputs = executor(*tensors)
        else:
            outputs = self.first(executor, batch, rest)
            columns = self.shared["columns"]
        return Results(outputs, self.shared["scalars"], self.count, columns=columns)

    def first(self, call: Any, batch: Any, rest: tuple[Any, ...]) -> Any:
        """The call that compiles, which may be ``executor.compile``."""
        structure, tensors, numbers, columns = _taken_apart(batch, self.count)
        self.shared.update(
            batch=structure, numbers=numbers, rest=rest, columns=columns, count=self.count
        )
        # Evaluation runs in inference mode, whose tensors training could not use.
        with torch.inference_mode(False), torch.enable_grad():
            return call(*tensors)


def _taken_apart(batch: Any, count: int) -> tuple[Any, list[torch.Tensor], list[bool], list[Any]]:
    """A batch's structure, its tensors, which of them were numbers, and its texts."""
    tensors: list[torch.Tensor] = []
    numbers: list[bool] = []
    columns: list[Any] = []

    def take(leaf: Any) -> Any:
        if is_texts(leaf):
            columns.append(leaf)
            return Column(len(columns) - 1)
        is_number = type(leaf) in (int, float)
        if is_number:
            dtype = torch.int32 if type(leaf) is int else torch.float32
            leaf = torch.full((count,), leaf, dtype=dtype)
        if not isinstance(leaf, torch.Tensor):
            return leaf
        tensors.append(leaf)
        numbers.append(is_number)
        return Slot(len(tensors) - 1)

    return mapped(batch, take, is_texts), tensors, numbers, columns


def _tensors(batch: Any, count: int) -> tuple[Any, Any]:
    """Tensors and texts."""
    kind = type(batch)
    if kind is torch.Tensor:
        return (batch,), ()
    if kind in (list, tuple) and all(type(item) is torch.Tensor for item in batch):
        return batch, ()
    _, tensors, _, columns = _taken_apart(batch, count)
    return tensors, columns


def rows_of(batch: Any, count: int = 1) -> int:
    """The number of samples of a batch."""
    tensors, _ = _tensors(batch, count)
    return tensors[0].shape[0] if len(tensors) and tensors[0].dim() else 0


class Step:
    """A step function of a module, for the batches of one loader.

    Args:
        make_module: makes a module of the step.
        make_executor: makes an executor of it, of one micro-batch per call if told so.
        count: micro-batches in a whole batch.
        make_room: called before one attaches; takes others off their devices.
    """

    def __init__(
        self,
        make_module: Callable[[], StepModule],
        make_executor: Callable[[StepModule, bool], Any],
        count: int,
        make_room: Callable[[], None],
    ) -> None:
        self._make_room = make_room
        self._make_module = make_module
        self._make_executor = make_executor
        self._count = count
        self._whole = self._program(False)
        self._whole_rows: int | None = None
        self._tails: dict[int, _Program] = {}

    def _program(self, single: bool) -> _Program:
        module = self._make_module()
        executor = self._make_executor(module, single)
        return _Program(module, executor, 1 if single else self._count, self._make_room)

    @property
    def executor(self) -> Any:
        """The executor for whole batches."""
        return self._whole.executor

    @property
    def executors(self) -> list[Any]:
        """All executors."""
        return [self.executor, *(tail.executor for tail in self._tails.values())]

    def compile(self, batch: Any, rest: tuple[Any, ...]) -> None:
        """Compile for batches like this one."""
        self._whole.first(self.executor.compile, batch, rest)

    def run(
        self, batch: Any, rest: tuple[Any, ...], micro_rows: Callable[[], int | None] | None = None
    ) -> tuple[Any, Results]:
        """Run a batch; returns the structure of its result, and the values, with all effects done.

        Args:
            batch: the batch.
            rest: further arguments of the step, which the program keeps as they are at first.
            micro_rows: tells the samples of a micro-batch, where batches may be short.
        """
        rows = rows_of(batch, self._count)
        program = self._whole
        size = None
        if micro_rows is None and self._whole_rows not in (None, rows):
            raise ValueError(
                f"`{program.shared['method']}` got a batch of {rows} samples, but the program was "
                f"compiled for {self._whole_rows}: all training batches must have one size. Use "
                "drop_last=True."
            )
        if micro_rows is not None and rows != self._whole_rows:
            size = micro_rows()
            if size is None and self._whole_rows is not None:
                size = self._whole_rows // self._count
        if size is not None and rows != size * self._count:
            program, results = self._run_parts(batch, rest, rows, size)
        else:
            if self._whole_rows not in (None, rows):  # the loader was made anew, of another size
                for executor in self.executors:
                    executor.destroy()
                self._tails = {}
                program = self._whole = self._program(False)
            results = program.run(batch, rest)
            self._whole_rows = rows
        values: dict[int, Any] = {}
        for effect in program.shared["effects"]:
            effect(results, values)
        return program.shared["result"], results

    def _run_parts(
        self, batch: Any, rest: tuple[Any, ...], rows: int, size: int
    ) -> tuple[_Program, Results]:
        """A short batch as micro-batches of the usual size, and a last one of what remains."""
        sizes = [size] * (rows // size) + ([rows % size] if rows % size else [])
        runs = []
        start = 0
        for count in sizes:
            if count not in self._tails:
                self._tails[count] = self._program(True)
            program = self._tails[count]
            end = start + count
            part = _rows_between(batch, rows, start, end)
            runs.append(program.run(part, rest))
            start = end
        columns = _tensors(batch, 1)[1]
        return program, joined(runs, program.shared["scalars"], sizes, columns)


def _rows_between(batch: Any, rows: int, start: int, end: int) -> Any:
    def cut(leaf: Any) -> Any:
        is_column = type(leaf) in (list, tuple) and len(leaf) == rows
        is_tensor = isinstance(leaf, torch.Tensor) and leaf.dim()
        return leaf[start:end] if is_column or is_tensor else leaf

    return mapped(batch, cut, is_texts)
