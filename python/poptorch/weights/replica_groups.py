# SPDX-License-Identifier: Apache-2.0
"""Parameters with one value per group of replicas: ``executor.<name>.replicaGrouping(...)``."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from poptorch.base.errors import createPoptorchError
from poptorch.base.logging import logger
from poptorch.enums import CommGroupType, VariableRetrievalMode


@dataclass(frozen=True)
class Grouping:
    """How the replicas are grouped that share a value of a parameter."""

    kind: CommGroupType
    shards: int
    retrieval: VariableRetrievalMode

    def group_size(self, replicas: int) -> int:
        """Replicas in one group; raises if they can't be divided like this."""
        if self.kind == CommGroupType.All:
            return replicas
        size = 1 if self.kind == CommGroupType.NoGrouping else self.shards
        if size < 1 or replicas % size:
            raise createPoptorchError(
                f"A group of {size} replicas does not divide the replication factor {replicas}"
            )
        return size


class ParameterProxy:
    """What an executor returns for a parameter of its root module: the parameter, and a method."""

    def __init__(self, executor: Any, name: str, parameter: torch.nn.Parameter) -> None:
        self._executor = executor
        self._name = name
        self._parameter = parameter

    def replicaGrouping(
        self,
        comm_group_type: CommGroupType,
        shards: int,
        variable_retrieval_mode: VariableRetrievalMode,
    ) -> None:
        """Give the parameter one value per group of replicas, in a new first dimension.

        Args:
            comm_group_type: which replicas form a group.
            shards: the number of replicas in a group.
            variable_retrieval_mode: what is fetched; replicas of a group have equal values.
        """
        assert isinstance(comm_group_type, CommGroupType), "Invalid comm group type"
        assert isinstance(variable_retrieval_mode, VariableRetrievalMode), "Invalid retrieval mode"
        if self._parameter.dim() == 0:
            raise createPoptorchError(
                "Scalars cannot be passed as per-replica weight tensor values"
            )
        if self._executor.isCompiled():
            raise createPoptorchError(
                "replicaGrouping() has no effect on a compiled model: call it before the first "
                "call, or after destroy()."
            )
        self._executor._groupings[self._name] = Grouping(
            comm_group_type, shards, variable_retrieval_mode
        )

    def __getattr__(self, attribute: str) -> Any:
        if attribute in ("_executor", "_name", "_parameter"):  # while being copied or unpickled
            raise AttributeError(attribute)
        return getattr(self._parameter, attribute)

    def __repr__(self) -> str:
        return repr(self._parameter)

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        def plain(value: Any) -> Any:
            return value._parameter if isinstance(value, ParameterProxy) else value

        named = {key: plain(value) for key, value in (kwargs or {}).items()}
        return func(*map(plain, args), **named)


def group_sizes(
    groupings: dict[str, Grouping], module: torch.nn.Module, replicas: int
) -> dict[str, tuple[int, bool]]:
    """Parameter -> (replicas in a group, whether groups are orthogonal); those with one group
    have no entry."""
    result = {}
    for name, grouping in groupings.items():
        size = grouping.group_size(replicas)
        if size == replicas:
            continue
        parameter = _parameter(module, name)
        groups = replicas // size
        if parameter.shape[0] != groups:
            raise createPoptorchError(
                f"Return mismatch with possibly appended outer dimension: {name} has shape "
                f"{list(parameter.shape)}, its first dimension must be the number of groups of "
                f"replicas, {groups}"
            )
        result[name] = (size, grouping.kind == CommGroupType.Orthogonal)
    return result


def _parameter(module: torch.nn.Module, name: str) -> torch.nn.Parameter:
    parameter = module._parameters[name]
    assert parameter is not None, f"{name} was a parameter when it was grouped, and is None now"
    return parameter


@contextmanager
def one_group(
    module: torch.nn.Module, names: Iterable[str]
) -> Iterator[dict[int, tuple[str, torch.nn.Parameter]]]:
    """The module as one replica sees it: its grouped parameters without the first dimension.

    Yields the id of each stand-in, with the name and the parameter that it stands for.
    """
    kept = {name: _parameter(module, name) for name in names}
    standins = {}
    try:
        for name, parameter in kept.items():
            standin = torch.nn.Parameter(parameter.detach()[0].clone(), parameter.requires_grad)
            module._parameters[name] = standin
            standins[id(standin)] = (name, parameter)
        yield standins
    finally:
        module._parameters.update(kept)


def warn_if_unused(names: Iterable[str], captured: Any) -> None:
    """Log the grouped parameters that the program does not use."""
    used = {name for info in captured.params for name in info.all_names}
    for name in names:
        if name not in used:
            logger.warning("Parameter name %s was not found", name)
