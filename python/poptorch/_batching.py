# SPDX-License-Identifier: Apache-2.0
"""How many micro-batches a call holds, in which order they run, and what shape its outputs have."""

from dataclasses import dataclass

import torch

from poptorch._errors import createPoptorchError
from poptorch.enums import CommGroupType, OutputMode, ReductionType
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
    Replicas with equal weights compute what as many accumulation steps compute, so the core runs
    ``accumulation * replicas`` micro-batches per weight update.
    """

    iterations: int
    accumulation: int
    replicas: int
    group_size: int
    group_type: CommGroupType
    mode: OutputMode
    period: int
    #: The outputs of all micro-batches are needed, whatever the mode returns.
    needs_all: bool = False

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
        if self.mode == OutputMode.EveryN:
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

    @property
    def output_multiplier(self) -> int:
        """How many outputs of one micro-batch a call returns."""
        return {
            OutputMode.All: self.steps * self.replicas,
            OutputMode.EveryN: self.steps * self.replicas // self.period,
            OutputMode.Final: self.replicas,
            OutputMode.Sum: self.replicas,
        }[self.mode]

    def describe(self) -> str:
        """The product that dimension 0 of the inputs must be divisible by."""
        text = (
            f"{self.input_multiplier} (deviceIterations ({self.iterations}) * "
            f"replicationFactor ({self.replicas})"
        )
        if self.group_size > 1:
            text += f" / inputGroupSize ({self.group_size})"
        return text + f" * gradientAccumulation ({self.accumulation}))"

    # Between rows of a call and micro-batches of the core ----------------------------------------

    @property
    def shares_inputs(self) -> bool:
        """Whether groups of replicas read the same rows, which the core must be given apart."""
        return self.group_size > 1

    def spread_inputs(self, tensor: torch.Tensor) -> torch.Tensor:
        """Inputs with one slice per replica, where groups of replicas share one."""
        groups = self.replicas // self.group_size
        replicas = torch.arange(self.replicas)
        if self.group_type == CommGroupType.Orthogonal:
            group_of = replicas % groups
        else:
            group_of = replicas // self.group_size
        rows = tensor.shape[0] // self.input_multiplier
        cut = tensor.reshape(self.steps, groups, rows, *tensor.shape[1:])
        return cut[:, group_of].reshape(-1, *tensor.shape[1:])

    @property
    def core_mode(self) -> OutputMode:
        """The core knows no replicas: what is kept per replica is picked from all outputs."""
        per_replica = self.mode in (OutputMode.Final, OutputMode.Sum) and self.replicas > 1
        return OutputMode.All if per_replica or self.needs_all else self.mode

    @property
    def needs_picking(self) -> bool:
        """Whether outputs of the core still have to be reduced to those of the mode."""
        return self.core_mode != self.mode

    @property
    def core_multiplier(self) -> int:
        """Outputs of one micro-batch that the core writes in a call."""
        return self.steps * self.replicas if self.needs_picking else self.output_multiplier

    def pick(self, tensor: torch.Tensor, shape: torch.Size) -> torch.Tensor:
        """The outputs of the mode from all outputs, each of shape ``shape``."""
        cut = tensor.reshape(self.iterations, self.accumulation, self.replicas, *shape)
        if self.mode == OutputMode.Final:
            kept = cut[-1, -1]
        elif self.mode == OutputMode.Sum:
            kept = cut.sum((0, 1), dtype=cut.dtype)
        else:
            kept = cut[self.period - 1 :: self.period]
        return kept.reshape(self.output_shape(shape, self.output_multiplier))

    @staticmethod
    def output_shape(shape: torch.Size, count: int) -> torch.Size:
        """Shape of ``count`` outputs of one micro-batch; a scalar stays one if there is one."""
        if len(shape) == 0:
            return torch.Size([]) if count == 1 else torch.Size([count])
        return torch.Size([shape[0] * count, *shape[1:]])

    def core_options(self, reduction: ReductionType) -> dict[str, object]:
        """The part of the core's options that is about batching."""
        return {
            "device_iterations": self.iterations,
            "gradient_accumulation": self.accumulation * self.replicas,
            "output_mode": _CORE_MODES[self.core_mode],
            "output_return_period": self.period,
            "reduction": "mean" if reduction == ReductionType.Mean else "sum",
        }


def _popart_error(text: str) -> Exception:
    error = createPoptorchError(text)
    return type(error)(text, type="popart_exception")
