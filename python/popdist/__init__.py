# SPDX-License-Identifier: Apache-2.0
"""What PopTorch programs ask PopDist for: how many instances there are and which one this is.
Programs import it whether or not a launcher started them; here one instance runs."""

import os
from collections.abc import Callable, Iterable
from typing import Any

__all__ = [
    "checkNumIpusPerReplica",
    "execute_on_instances",
    "getInstanceIndex",
    "getLocalInstanceIndex",
    "getNumInstances",
    "getNumIpusPerReplica",
    "getNumLocalReplicas",
    "getNumTotalReplicas",
    "getReplicaIndexOffset",
    "init",
    "isPopdistEnvSet",
    "synchronize",
]


def _number(name: str, default: int) -> int:
    text = os.environ.get(f"POPDIST_{name}", str(default))
    if not text.isdecimal():
        raise RuntimeError(
            f"The environment variable POPDIST_{name} must be a number, not {text!r}"
        )
    return int(text)


def isPopdistEnvSet() -> bool:
    """Whether a launcher started this program."""
    return "POPDIST_NUM_TOTAL_REPLICAS" in os.environ


def getNumTotalReplicas() -> int:
    """Replicas of all instances."""
    return _number("NUM_TOTAL_REPLICAS", 1)


def getNumLocalReplicas() -> int:
    """Replicas of this instance."""
    return max(1, _number("NUM_LOCAL_REPLICAS", 1))


def getReplicaIndexOffset() -> int:
    """Index of the first replica of this instance among all."""
    return _number("REPLICA_INDEX_OFFSET", 0)


def getNumIpusPerReplica() -> int:
    """IPUs that each replica has."""
    return _number("NUM_IPUS_PER_REPLICA", 1)


def checkNumIpusPerReplica(ipus_per_replica: int) -> None:
    """Raise unless the launcher gave each replica so many IPUs."""
    if isPopdistEnvSet() and ipus_per_replica != getNumIpusPerReplica():
        raise RuntimeError(
            f"The program uses {ipus_per_replica} IPUs per replica, but the launcher gave it "
            f"{getNumIpusPerReplica()}"
        )


def getNumInstances() -> int:
    """Instances, all with equally many replicas."""
    return getNumTotalReplicas() // getNumLocalReplicas()


def getInstanceIndex() -> int:
    """Which of them this is."""
    return getReplicaIndexOffset() // getNumLocalReplicas()


def getLocalInstanceIndex() -> int:
    """Which of the instances of this machine this is."""
    return _number("LOCAL_INSTANCE_INDEX", 0)


def _one_instance(what: str) -> None:
    if getNumInstances() > 1:
        raise RuntimeError(
            f"popdist.{what}() with {getNumInstances()} instances is not available yet: processes "
            "do not exchange values."
        )


def init() -> None:
    """Connect the instances: nothing to do for one."""
    _one_instance("init")


def synchronize() -> None:
    """Wait until all instances are here."""
    _one_instance("synchronize")


def execute_on_instances(
    instances: Iterable[int], function: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    """Call ``function`` in these instances; None in the others."""
    return function(*args, **kwargs) if getInstanceIndex() in set(instances) else None
