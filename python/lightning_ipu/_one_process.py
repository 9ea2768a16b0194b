# SPDX-License-Identifier: Apache-2.0
"""What a strategy says about processes: replicas run in one."""

from typing import Any


class OneProcess:
    """Collectives of one process."""

    global_rank = local_rank = node_rank = 0
    world_size = 1
    is_global_zero = True

    def model_to_device(self) -> None:
        """Nothing: weights go to the program when it is compiled."""

    def reduce(self, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        """The value itself: programs reduce over replicas."""
        return tensor

    def barrier(self, name: str | None = None) -> None:
        """Nothing to wait for."""

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        """The object itself."""
        return obj

    def all_gather(self, tensor: Any, group: Any = None, sync_grads: bool = False) -> Any:
        """The value itself."""
        return tensor

    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:
        """The decision itself."""
        return decision
