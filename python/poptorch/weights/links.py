# SPDX-License-Identifier: Apache-2.0
"""Executors that share tensors: before one runs, it takes over what others have trained."""

import threading
import weakref
from typing import Any

import torch

from poptorch.weights.state import WeightSync, syncs_of, tensors_of

#: Held by an executor that trains shared tensors, from taking them over to the end of its run: two
#: threads must not both go on from the same weights.
turn = threading.RLock()

_executors: "weakref.WeakSet[Any]" = weakref.WeakSet()


class Links(dict[WeightSync, int]):
    """The syncs of the training executors that an executor shares tensors with, each with the
    version that it has taken over."""

    def find(self, model: torch.nn.Module, own: WeightSync) -> None:
        """Link with all that train tensors of ``model`` now."""
        found = [sync for sync in syncs_of(model) if sync is not own]
        self.clear()
        self.update((sync, -1) for sync in found)

    def have_news(self) -> bool:
        """Whether there are other weights than at the last :meth:`taken_over`."""
        return any(link.stale or link.version != seen for link, seen in list(self.items()))

    def refresh(self) -> None:
        """Fetch what was trained."""
        for link in list(self):  # another thread may add one
            link.refresh()

    def versions(self) -> dict[WeightSync, int]:
        """The versions that the host's weights have now."""
        return {link: link.version for link in list(self)}

    def taken_over(self, versions: dict[WeightSync, int]) -> None:
        """The host's weights are on the device now; they have at least these versions."""
        for link, version in versions.items():
            if link.retired:
                self.pop(link, None)
            else:
                self[link] = version


def follow(executor: Any) -> None:
    """``executor`` is told of training executors that are made later."""
    _executors.add(executor)


def announce(training: Any, model: torch.nn.Module) -> None:
    """Link all compiled executors that share tensors of ``model`` with its training executor."""
    ids = {id(tensor) for tensor in tensors_of(model)}
    for other in list(_executors):
        executable = other._executable
        if other is training or executable is None or training._sync in other._links:
            continue
        if any(id(tensor) in ids for tensor in executable.mover.tensors()):
            other._links[training._sync] = training._sync.version
