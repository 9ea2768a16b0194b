# SPDX-License-Identifier: Apache-2.0
"""What a user may believe to be in effect although the program was compiled before: other values of
the optimizer, ``train()`` and ``eval()``."""

import functools
import types
from typing import Any

import torch

from poptorch._logging import logger
from poptorch.capture.self_updates import functions_in

#: (dict, key, value): what a program assumes to be there, by identity.
Assumption = tuple[dict[str, Any], str, Any]
_MODES = {True: "train", False: "eval"}


# Modes -------------------------------------------------------------------------------------------


@functools.cache
def _reads_mode(kind: type) -> bool:
    """Whether the forward of a class, or a method that it may call, reads ``training``."""
    todo, seen = ["forward"], {"training"}
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        for base in kind.__mro__:
            function = vars(base).get(name)
            if not isinstance(function, types.FunctionType):
                continue
            for code in functions_in(function.__code__):
                if "training" in code.co_names:
                    return True
                todo += code.co_names
            break
    return False


def _follows_mode(module: torch.nn.Module) -> bool:
    """Whether a module does something else in training than otherwise."""
    kind = type(module)
    if not kind.__module__.startswith("torch."):
        return _reads_mode(kind)
    if kind.__module__.endswith(".transformer"):
        return False  # only their parts do
    if isinstance(module, torch.nn.modules.batchnorm._NormBase):
        return module.track_running_stats
    if 0 in (getattr(module, "p", None), getattr(module, "dropout", None)):
        return False
    return _reads_mode(kind)


# Reminders ---------------------------------------------------------------------------------------


class Reminders:
    """Says, once each, what a program does not follow.

    Args:
        captured: what is compiled: its own flag is that of the time of wrapping, its layers are the
            user's.
        model: the executor's model.
        training: whether it is compiled for training.

    Attributes:
        given: the module that the user has wrapped.
        assumed: what a call compares with what is there.
    """

    def __init__(self, captured: torch.nn.Module, model: torch.nn.Module, training: bool) -> None:
        self.given = model
        self.assumed: tuple[Assumption, ...] = ()
        self._captured = captured
        self._model = model
        self._training = training
        self._mode: Assumption | None = None
        self._sent: list[tuple[dict[str, Any], dict[str, Any]]] = []  # groups, and what was sent
        self._told: set[str] = set()

    def compiled(self) -> None:
        """The model was compiled in the mode that it has now."""
        self._warn_of_mode()
        self._mode = None
        if any(_follows_mode(module) for module in self._captured.modules()):
            self._mode = (self._model.__dict__, "training", self._model.training)
        self._assume()

    def sent(self, optimizer: Any) -> None:
        """The program has the values that the optimizer has now."""
        self._sent = [(group, dict(group)) for group in optimizer.param_groups]
        self._assume()

    def tell(self) -> None:
        """Something is no longer what a call assumes: says what, and assumes what is there now."""
        if self._mode is not None and self._model.training is not self._mode[2]:
            self._told.add("mode")
            logger.warning(
                "%s() was called on the model after it was compiled: the program does not follow "
                "and goes on in %s mode. Wrap the model again to compile it in the other mode.",
                _MODES[self._model.training],
                _MODES[not self._model.training],
            )
        changes = [
            f"{key} of group {number} from {sent[key]!r} to {group[key]!r}"
            for number, (group, sent) in enumerate(self._sent)
            for key in sorted(sent.keys() & group.keys() - {"params"})
            if not _equal(group[key], sent[key])
        ]
        if changes and "values" not in self._told:
            self._told.add("values")
            logger.warning(
                "The optimizer has changed, %s, but the program goes on with the old values: call "
                "setOptimizer(optimizer) after scheduler.step() and after any other change.",
                ", ".join(changes),
            )
        self._assume()

    def _assume(self) -> None:
        found = []
        if self._mode is not None and "mode" not in self._told:
            found.append(self._mode)
        if "values" not in self._told:
            # What schedulers change; the objects that are there now may be equal to others.
            found += [(group, "lr", group["lr"]) for group, _ in self._sent if "lr" in group]
        self.assumed = tuple(found)

    def _warn_of_mode(self) -> None:
        """Say what the mode means in which the model is compiled."""
        captured, given = self._captured, self.given
        left = []
        if self._training and not given.training:
            left = [
                name or type(module).__name__
                for name, module in captured.named_modules()
                if not module.training and _follows_mode(module)
            ]
        if left:
            logger.warning(
                "The model is trained in eval mode: %s%s behave as in inference (dropout is off, "
                "norms use their running statistics and leave them alone). Call train() on the "
                "model before it is wrapped if that is not meant.",
                left[0],
                f" and {len(left) - 1} more" if len(left) > 1 else "",
            )
        elif captured.training != given.training and _follows_mode(captured):
            logger.warning(
                "%s() was called on the model after it was wrapped: its layers follow, but its own "
                "flag stays training=%s, as it was when it was wrapped. Call it before wrapping "
                "the model.",
                _MODES[given.training],
                captured.training,
            )


def _equal(a: Any, b: Any) -> bool:
    return a is b or bool(a == b)
