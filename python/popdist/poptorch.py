# SPDX-License-Identifier: Apache-2.0
"""Options whose replicas and processes are those that the launcher chose."""

from typing import Any, NoReturn

import poptorch
from poptorch.options import _DistributedOptions

import popdist

__all__ = ["Options"]


def _refuse(name: str) -> NoReturn:
    raise RuntimeError(f"Cannot call `{name}` with popdist.poptorch.Options: the launcher decides.")


class _Distributed(_DistributedOptions):
    def __init__(self) -> None:
        super().__init__()
        self.set(
            distributed_process_id=popdist.getInstanceIndex(),
            num_distributed_processes=popdist.getNumInstances(),
        )
        object.__setattr__(self, "_fixed", True)

    def disable(self) -> Any:
        _refuse("Distributed.disable")

    def setEnvVarNames(self, var_num_processes: str, var_process_id: str) -> Any:
        if "_fixed" in self.__dict__:
            _refuse("Distributed.setEnvVarNames")

    def configureProcessId(self, process_id: int, num_processes: int) -> Any:
        _refuse("Distributed.configureProcessId")


class Options(poptorch.Options):
    """``poptorch.Options`` of one instance.

    Args:
        ipus_per_replica: how many the model is annotated for.
    """

    def __init__(self, ipus_per_replica: int = 1) -> None:
        popdist.checkNumIpusPerReplica(ipus_per_replica)
        super().__init__()
        object.__setattr__(self, "_distributed", _Distributed())
        self.set(replication_factor=popdist.getNumLocalReplicas())
        object.__setattr__(self, "_ipus_per_replica", ipus_per_replica)

    @property
    def ipus_per_replica(self) -> int:
        """How many IPUs the model is annotated for."""
        return self._ipus_per_replica

    def replicationFactor(self, replication_factor: int) -> Any:
        _refuse("replicationFactor")

    def useIpuId(self, ipu_id: int) -> Any:
        _refuse("useIpuId")
