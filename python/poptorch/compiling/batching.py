# SPDX-License-Identifier: Apache-2.0
"""How many micro-batches a call holds, in which order they run, and what shape its outputs have."""

from dataclasses import dataclass

import torch

from poptorch.base.errors import createPoptorchError
from poptorch.enums import CommGroupType, OutputMode
from poptorch.options import Options

_CORE_MODES = {
    OutputMode.Final: "final",
    OutputMode.EveryN: "every_n",
    OutputMode.All: "all",
    OutputMode.Sum: "sum",
}


@dataclass(frozen=True)
class Batching:
    """The numbers of one executor.

    Replicas vary fastest in the rows of a call, then accumulation steps, then device iterations.
    """

    iterations: int
    accumulation: int
    replicas: int
    group_size: int
    group_type: CommGroupType
    mode: OutputMode
    period: int

    @classmethod
    def of(cls, options: Options, training: bool) -> "Batching":
        """The numbers of ``options``; raises if they can't be run."""
        result = cls(
            options.device_iterations,
            options.Training.gradient_accumulation if training else 1,
            options.replication_factor,
            options.input_group_size,
            options.input_cgt,
            OutputMode(options.output_mode),
            options.output_return_period,
        )
        result._check()
        return result

    def _check(self) -> None:
        if self.iterations < 1:
            raise _popart_error(
                f"'Batches per step' must be greater than zero: deviceIterations is "
                f"{self.iterations}"
            )
        if self.accumulation < 1:
            raise _popart_error(f"gradientAccumulation must be positive, not {self.accumulation}")
        if self.replicas < 1:
            raise _popart_error(f"replicationFactor must be positive, not {self.replicas}")
        if self.mode != OutputMode.EveryN:
            return
        if self.period > self.iterations:
            raise _popart_error(
                "Return period must be <= to the number of batches per step: "
                f"{self.period} > {self.iterations}"
            )
        if self.iterations % self.period:
            raise _popart_error(
                "Return period must be a factor of the number of batches per step: "
                f"{self.period} does not divide {self.iterations}"
            )

    @property
    def input_multiplier(self) -> int:
        """Micro-batches in the inputs of one call."""
        return self.iterations * (self.replicas // self.group_size) * self.accumulation

    @property
    def steps(self) -> int:
        """Micro-batches that one replica runs in a call."""
        return self.iterations * self.accumulation

    def returned_steps(self, mode: OutputMode, period: int) -> list[int]:
        """The micro-batches of a replica after which an output is returned."""
        if mode == OutputMode.All:
            return list(range(self.steps))
        if mode == OutputMode.EveryN:
            return [i for i in range(self.steps) if (i // self.accumulation + 1) % period == 0]
        return [self.steps - 1]

    def output_count(self, mode: OutputMode, period: int) -> int:
        """How many outputs of one micro-batch a call returns."""
        return len(self.returned_steps(mode, period)) * self.replicas

    def describe(self) -> str:
        """The product that dimension 0 of the inputs must be divisible by."""
        text = (
            f"{self.input_multiplier} (deviceIterations ({self.iterations}) * "
            f"replicationFactor ({self.replicas})"
        )
        if self.group_size > 1:
            text += f" / inputGroupSize ({self.group_size})"
        return text + f" * gradientAccumulation ({self.accumulation}))"

    def written_back(self, tensor: torch.Tensor) -> torch.Tensor:
        """New values of an input from all micro-batches: those of a group's first replica."""
        if self.group_size == 1:
            return tensor
        groups = self.replicas // self.group_size
        first = torch.arange(groups)
        if self.group_type != CommGroupType.Orthogonal:
            first *= self.group_size
        rows = tensor.shape[0] // (self.steps * self.replicas)
        cut = tensor.reshape(self.steps, self.replicas, rows, *tensor.shape[1:])
        return cut[:, first].reshape(-1, *tensor.shape[1:])

    @staticmethod
    def output_shape(shape: torch.Size, count: int) -> torch.Size:
        """Shape of ``count`` outputs of one micro-batch; a scalar stays one if there is one."""
        if len(shape) == 0:
            return torch.Size([]) if count == 1 else torch.Size([count])
        return torch.Size([shape[0] * count, *shape[1:]])

    def core_options(self, rules: list[tuple[OutputMode, int]]) -> dict[str, object]:
        """The part of the core's options that is about batching; ``rules`` of the outputs."""
        return {
            "device_iterations": self.iterations,
            "gradient_accumulation": self.accumulation,
            "replicas": self.replicas,
            "input_group": self.group_size,
            "orthogonal_groups": self.group_type == CommGroupType.Orthogonal,
            "outputs": [(_CORE_MODES[mode], period) for mode, period in rules],
        }


def _popart_error(text: str) -> Exception:
    error = createPoptorchError(text)
    return type(error)(text, type="popart_exception")
