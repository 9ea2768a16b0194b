# SPDX-License-Identifier: Apache-2.0
"""The sub-objects of ``Options``: Jit, Precision, Training, Distributed, TensorLocations. Plain
setters come from the rows of ``table``; here are those that set several values or another one."""

import os

import torch

from poptorch.base.logging import logger
from poptorch.base.naming import found_in
from poptorch.enums import ReductionType
from poptorch.options.backend import BackendOptions
from poptorch.options.storage import OptionsDict, option_setter
from poptorch.options.values import partials_name


@found_in("poptorch.options")
class _JitOptions(OptionsDict):
    """Kept for old programs: there is one way to capture a model."""

    section = "Jit"

    @option_setter
    def traceModel(self, trace_model: bool) -> "_JitOptions":
        """Changes nothing: PopTorch up to 3.0 had two ways to capture a model, here is one."""
        assert isinstance(trace_model, bool), f"traceModel needs a bool, got {trace_model!r}"
        self.checkIsFrozen("traceModel")
        logger.warning("Jit.traceModel is deprecated and has no effect")
        return self


@found_in("poptorch.options")
class _PrecisionOptions(BackendOptions):
    """Options about number formats."""

    section = "Precision"

    @option_setter
    def setPartialsType(self, dtype: torch.dtype) -> "_PrecisionOptions":
        """The type in which matmuls and convolutions accumulate: torch.float or torch.half."""
        name = partials_name(dtype)
        self.checkIsFrozen("setPartialsType")
        self._backend.set("partialsTypeMatMuls", name)
        self._merge_convolution_option("partialsType", name)
        return self

    @option_setter
    def runningVarianceAlwaysFloat(self, value: bool) -> "_PrecisionOptions":
        """The name of ``runningStatisticsAlwaysFloat`` up to PopTorch 2.1."""
        return self.runningStatisticsAlwaysFloat(value)


@found_in("poptorch.options")
class _TrainingOptions(BackendOptions):
    """Options that only training models use."""

    section = "Training"

    @option_setter
    def setConvolutionDithering(self, enabled: bool) -> "_TrainingOptions":
        """Tile layout hint; recorded, no effect on virtual IPUs."""
        self._merge_convolution_option("enableConvDithering", "true" if enabled else "false")
        return self

    @option_setter
    def accumulationReductionType(self, reduction_type: ReductionType) -> "_TrainingOptions":
        """The name of ``accumulationAndReplicationReductionType`` up to PopTorch 2.1."""
        return self.accumulationAndReplicationReductionType(reduction_type)


@found_in("poptorch.options")
class _DistributedOptions(OptionsDict):
    """How many processes train together, and which of them this is."""

    section = "Distributed"

    def __init__(self) -> None:
        super().__init__()
        self.setEnvVarNames("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK")

    @option_setter
    def disable(self) -> "_DistributedOptions":
        """Use one process."""
        return self.configureProcessId(0, 1)

    @option_setter
    def setEnvVarNames(self, var_num_processes: str, var_process_id: str) -> "_DistributedOptions":
        """Read the process count and index from these environment variables."""
        return self.configureProcessId(
            _environment_number(var_process_id, 0), _environment_number(var_num_processes, 1)
        )

    @option_setter
    def configureProcessId(self, process_id: int, num_processes: int) -> "_DistributedOptions":
        """Set the process count and the index of this process."""
        self.set(distributed_process_id=process_id, num_distributed_processes=num_processes)
        return self

    @property
    def processId(self) -> int:
        """Index of this process."""
        return self.distributed_process_id

    @property
    def numProcesses(self) -> int:
        """Number of processes."""
        return self.num_distributed_processes


@found_in("poptorch.options")
class TensorLocationSettings(OptionsDict):
    """Where a kind of tensor is stored: on chip, in streaming memory, shared out to replicas."""

    section = "TensorLocationSettings"

    @option_setter
    def useOnChipStorage(self, use: bool | None = True) -> "TensorLocationSettings":
        """Keep the tensors on chip; None removes the setting."""
        if use is None:
            self.deleteIfExists("onChip")
            return self
        assert isinstance(use, bool), f"Expected a bool or None, got {use!r}"
        self.createOrSet(onChip=int(use))
        return self


@found_in("poptorch.options")
class _TensorLocationOptions(OptionsDict):
    """Where weights, activations and optimizer state are stored."""

    section = "TensorLocations"


def _environment_number(variable: str, default: int) -> int:
    assert isinstance(variable, str), f"Expected the name of a variable, got {variable!r}"
    text = os.environ.get(variable, str(default))
    try:
        return int(text)
    except ValueError:
        raise ValueError(
            f"The environment variable {variable} must be a number, not {text!r}"
        ) from None
