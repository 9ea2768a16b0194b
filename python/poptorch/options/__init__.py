# SPDX-License-Identifier: Apache-2.0
"""``Options``, its sub-objects, and the strategies, which belong to the options in the manual."""

from poptorch.options.attribute import Attribute
from poptorch.options.backend import _PopartOptions
from poptorch.options.options import Options
from poptorch.options.sections import (
    TensorLocationSettings,
    _DistributedOptions,
    _JitOptions,
    _PrecisionOptions,
    _TensorLocationOptions,
    _TrainingOptions,
)
from poptorch.options.storage import OptionsDict
from poptorch.options.strategies import (
    BlockId,
    PipelinedExecution,
    _DefaultStageManager,
    _IExecutionStrategy,
    _IPhasedExecution,
)
from poptorch.options.text import ConfigFileError

__all__ = [
    "Attribute",
    "BlockId",
    "ConfigFileError",
    "Options",
    "OptionsDict",
    "PipelinedExecution",
    "TensorLocationSettings",
    "_DefaultStageManager",
    "_DistributedOptions",
    "_IExecutionStrategy",
    "_IPhasedExecution",
    "_JitOptions",
    "_PopartOptions",
    "_PrecisionOptions",
    "_TensorLocationOptions",
    "_TrainingOptions",
]
