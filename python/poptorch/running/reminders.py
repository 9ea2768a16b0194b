# SPDX-License-Identifier: Apache-2.0
"""What a user may believe to be in effect although the program was compiled before: other values of
the optimizer, ``train()`` and ``eval()``."""

import functools
import itertools
import types
from collections.abc import Iterator
from typing import Any

import torch

from poptorch.base.logging import logger
from poptorch.capture.watch.self_updates import functions_in

#: (dict, key, value): what a program assumes to be there, by identity.
Assumption = tuple[dict[str, Any], str, Any]
_NOTHING: Assumption = ({"": None}, "", None)
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
    kind: type = type(module)
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
        assumed: what every call compares with what is there.
        turns: the rest, of which every call for training compares one.
    """

    def __init__(self, captured: torch.nn.Module, model: torch.nn.Module, training: bool) -> None:
        self.given = model
        self.assumed: tuple[Assumption, ...] = ()
        self.turns: Iterator[Assumption] = itertools.repeat(_NOTHING)
        self._captured = captured
        self._model = model
        self._training = training
        self._modes: list[tuple[str, torch.nn.Module, bool]] = []  # the model's own is the first
        self._optimizer: Any = None
        self._sent: list[dict[str, Any]] = []  # values of the optimizer, then of its groups
        self._told: set[str] = set()

    def compiled(self) -> None:
        """The model was compiled in the mode that it has now."""
        self._warn_of_mode()
        layers = list(self._captured.named_modules())[1:] if self._training else []
        self._modes = [(n, m, m.training) for n, m in layers if _follows_mode(m)]
        if any(_follows_mode(module) for module in self._captured.modules()):
            self._modes.insert(0, ("model", self._model, self._model.training))
        self._told.discard("mode")
        self._assume()

    def sent(self, optimizer: Any) -> None:
        """The program has the values that the optimizer has now."""
        self._optimizer = optimizer
        self._sent = _values_of(optimizer)
        self._assume()

    def tell(self) -> None:
        """Something is no longer what a call assumes: says what, and assumes what is there now."""
        changed = [(name, now.training) for name, now, was in self._modes if now.training != was]
        if changed and "mode" not in self._told:
            self._told.add("mode")
            name, now = changed[0]
            logger.warning(
                "%s() was called on %s after it was compiled: the program does not follow and goes "
                "on in %s mode. Wrap the model again to compile it in the other mode.",
                _MODES[now],
                name if name == "model" else repr(name),
                _MODES[not now],
            )
        changes = _differences(self._sent, _values_of(self._optimizer)) if self._sent else []
        if changes and "values" not in self._told:
            self._told.add("values")
            logger.warning(
                "The optimizer has changed, %s, but the program goes on with the old values: call "
                "setOptimizer(optimizer) after scheduler.step() and after any other change.",
                ", ".join(changes),
            )
        self._assume()

    def _assume(self) -> None:
        """What is there now; the objects may be others than those that were sent, and equal."""
        fixed: list[Assumption] = []
        rest: list[Assumption] = []
        if "mode" not in self._told:
            flags = [(module.__dict__, "training", was) for _, module, was in self._modes]
            fixed, rest = flags[:1], flags[1:]
        optimizer = self._optimizer
        if optimizer is not None and "values" not in self._told:
            # Rates are what schedulers change; loading a state makes new groups.
            rest.append((optimizer.__dict__, "param_groups", optimizer.param_groups))
            for group in optimizer.param_groups:
                fixed += [(group, "lr", group["lr"])] if "lr" in group else []
                rest += [(group, k, group[k]) for k in optimizer.defaults if k in group]
            if "loss_scaling" in optimizer.__dict__:
                rest.append((optimizer.__dict__, "loss_scaling", optimizer.loss_scaling))
        self.assumed = tuple(fixed)
        self.turns = itertools.cycle(rest or [_NOTHING])

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


# Values of an optimizer --------------------------------------------------------------------------


def _values_of(optimizer: Any) -> list[dict[str, Any]]:
    own = {k: v for k, v in optimizer.__dict__.items() if k == "loss_scaling"}
    groups = [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]
    return [own, *groups]


def _differences(before: list[dict[str, Any]], now: list[dict[str, Any]]) -> list[str]:
    """What is not equal, in words."""
    found = []
    for number, (old, new) in enumerate(zip(before, now, strict=False)):
        owner = f" of group {number - 1}" if number else ""
        for key in sorted(old.keys() & new.keys()):
            if old[key] is not new[key] and not bool(old[key] == new[key]):
                found.append(f"{key}{owner} from {old[key]!r} to {new[key]!r}")
    return found
