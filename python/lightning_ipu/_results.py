# SPDX-License-Identifier: Apache-2.0
"""The outputs of one run: those of all its micro-batches, and how they are reduced."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

_BY_NAME = {"mean": "mean", "sum": "sum", "max": "max", "min": "min"}


class Results:
    """Flat outputs of a run.

    Args:
        tensors: per output, the values of all micro-batches, joined along dimension 0.
        scalars: per output, whether it is a scalar of each micro-batch.
        rows: per micro-batch, how many samples it has, if they differ.
        count: the number of micro-batches.
        columns: texts of the batch.
    """

    def __init__(
        self,
        tensors: Sequence[torch.Tensor],
        scalars: Sequence[bool],
        count: int,
        rows: list[int] | None = None,
        columns: Sequence[Any] = (),
    ) -> None:
        self.tensors = tensors
        self.count = count
        self.columns = columns
        self._scalars = scalars
        self._rows = rows

    def reduced(self, index: int, how: Any = "mean") -> torch.Tensor:
        """One value of all micro-batches."""
        value = self.tensors[index]
        if value.dim() == 0:
            return value
        name = _BY_NAME.get(getattr(how, "__name__", how), None)
        if not value.is_floating_point() and name == "mean":
            value = value.float()
        if name == "mean" and self._rows is not None and value.shape == (self.count,):
            weights = torch.tensor(self._rows, dtype=value.dtype)
            return (value * weights).sum() / weights.sum()
        if name is not None:
            return getattr(value, name)()
        return how(value)

    def micro_batches(self) -> Iterator[tuple[Sequence[torch.Tensor], Sequence[Any]]]:
        """The outputs and texts of one micro-batch after the other."""
        if self.count == 1:
            yield self.tensors, self.columns
            return
        rows = self._rows
        parts = []
        for tensor, scalar in zip(self.tensors, self._scalars, strict=True):
            if scalar:
                parts.append(tensor.unbind(0))
            elif rows is not None and tensor.shape[0] == sum(rows):
                parts.append(tensor.split(rows))
            else:
                parts.append(tensor.chunk(self.count))
        for number in range(self.count):
            yield [part[number] for part in parts], self._texts(number)

    def _texts(self, number: int) -> list[Any]:
        rows = self._rows
        if rows is None:
            return [part_of(column, number, self.count) for column in self.columns]
        start, end = sum(rows[:number]), sum(rows[: number + 1])
        return [
            column[start:end] if type(column) is not str and len(column) == sum(rows) else column
            for column in self.columns
        ]


def part_of(column: Any, number: int, count: int) -> Any:
    """The texts of one of ``count`` micro-batches."""
    if type(column) is str or len(column) % count:
        return column
    size = len(column) // count
    return column[number * size : (number + 1) * size]


def joined(
    runs: list[Results], scalars: Sequence[bool], rows: list[int], columns: Sequence[Any]
) -> Results:
    """The results of several runs, of one micro-batch each, as those of one."""
    if len({len(run.tensors) for run in runs}) > 1:
        raise ValueError(
            "A step returns, logs or keeps as many tensors as its batch has samples, and the last "
            "batch has fewer: use one tensor for all samples, or drop_last=True."
        )
    tensors: Sequence[torch.Tensor] = [
        torch.stack(values) if scalar else torch.cat(values)
        for scalar, values in zip(
            scalars, zip(*(r.tensors for r in runs), strict=True), strict=True
        )
    ]
    tensors = tensors if len(runs) > 1 else runs[0].tensors
    return Results(tensors, scalars, len(runs), rows, columns)
