# SPDX-License-Identifier: Apache-2.0
"""PopTorch's API on virtual IPUs: models are captured, compiled and run by Tessera's C++ core."""

# First, so that torch's OpenMP runtime is the one that the core finds loaded.
import torch  # noqa: F401, I001
from lightning_ipu._hook import autoload

from poptorch._version import __version__
from poptorch.base.logging import logger, setLogLevel
from poptorch.base.errors import Error, RecoverableError, UnrecoverableError, createPoptorchError
from poptorch import enums, poptorch_core
from poptorch.enums import *  # noqa: F403
from poptorch.options.strategies import (
    BlockId,
    ParallelPhasedExecution,
    Phase,
    PipelinedExecution,
    SerialPhasedExecution,
    ShardedExecution,
    Stage,
)
from poptorch.options import Attribute, ConfigFileError, Options, TensorLocationSettings
from poptorch import autocasting, ops, optim, profiling
from poptorch.autocasting import autocast
from poptorch.ops import *  # noqa: F403
from poptorch.ops.blocks import module_repr, print
from poptorch.capture import running_on_ipu as isRunningOnIpu
from poptorch.running.custom_args import ICustomArgParser, registerCustomArgParser
from poptorch.base.device import ipuHardwareIsAvailable, ipuHardwareVersion
from poptorch.compiling.hooks import registerPostCompileHook, registerPreCompileHook
from poptorch.base.process import install
from poptorch.base.suggest import did_you_mean
from poptorch._utils import flattenTensorStructure, reconstructTensorStructure  # noqa: F401
from poptorch.dataloader import AsynchronousDataAccessor, DataLoader
from poptorch.running.executor import PoplarExecutor, inferenceModel, trainingModel
from poptorch.running.loading import load

__all__ = [
    "AsynchronousDataAccessor",
    "Attribute",
    "BlockId",
    "ConfigFileError",
    "DataLoader",
    "Error",
    "ICustomArgParser",
    "Options",
    "ParallelPhasedExecution",
    "Phase",
    "PipelinedExecution",
    "PoplarExecutor",
    "RecoverableError",
    "SerialPhasedExecution",
    "ShardedExecution",
    "Stage",
    "TensorLocationSettings",
    "UnrecoverableError",
    "__version__",
    "autocast",
    "autocasting",
    "createPoptorchError",
    "enums",
    "inferenceModel",
    "ipuHardwareIsAvailable",
    "ipuHardwareVersion",
    "isRunningOnIpu",
    "load",
    "logger",
    "module_repr",
    "ops",
    "optim",
    "poptorch_core",
    "print",
    "profiling",
    "registerCustomArgParser",
    "registerPostCompileHook",
    "registerPreCompileHook",
    "setLogLevel",
    "trainingModel",
    *enums.__all__,
    *ops.__all__,
]


def __getattr__(name: str) -> object:
    raise AttributeError(
        f"module 'poptorch' has no attribute '{name}'.{did_you_mean(name, __all__)}"
    )


install()
# Lightning's IPUs, where torch's own way of loading them is switched off.
autoload()
del autoload, install
