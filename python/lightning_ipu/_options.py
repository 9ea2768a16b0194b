# SPDX-License-Identifier: Apache-2.0
"""poptorch's options of a program that Lightning runs."""

from typing import Any


def generated_options(replicas: int, iterations: int, accumulation: int) -> Any:
    """Options for a trainer whose user gave none."""
    import poptorch

    options = poptorch.Options()
    options.deviceIterations(iterations)
    options.replicationFactor(replicas)
    options.Training.gradientAccumulation(accumulation)
    options.showCompilationProgressBar(False)
    # A pipeline would ask for as much accumulation as it has stages; this runs with any.
    options.setExecutionStrategy(poptorch.ShardedExecution())
    return options


def run_options(options: Any, single: bool) -> Any:
    """A copy for an executor: every micro-batch's outputs are needed, whatever is returned.

    Args:
        options: the user's or generated ones.
        single: for one micro-batch per call instead.
    """
    import poptorch

    result = options.clone()
    result.outputMode(poptorch.OutputMode.All)
    if single:
        result.deviceIterations(1)
        result.replicationFactor(1)
        result.setExecutionStrategy(poptorch.ShardedExecution())  # nothing to fill a pipeline with
    return result
