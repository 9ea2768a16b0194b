# SPDX-License-Identifier: Apache-2.0
"""``PoplarExecutor`` itself, and the functions that wrap a model in one."""

from typing import Any

import torch

from poptorch._version import __version__
from poptorch.base.errors import createPoptorchError
from poptorch.base.suggest import did_you_mean
from poptorch.compiling.inspection import Inspection
from poptorch.ops.blocks import module_repr
from poptorch.options import Options
from poptorch.running.executor.files import ExecutorFiles
from poptorch.weights.replica_groups import ParameterProxy
from poptorch.weights.state import is_wrapped, shallow_copy


class PoplarExecutor(ExecutorFiles, Inspection):
    """A wrapped model; made by :func:`trainingModel` and :func:`inferenceModel`.

    Attributes that it does not define are those of the user's model.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        options: Options | None,
        training: bool,
        poptorch_version: str,
        optimizer: Any = None,
        user_model: torch.nn.Module | None = None,
    ) -> None:
        super().__init__(model if user_model is None else user_model, options, training, optimizer)
        self._poptorch_version = poptorch_version

    def __getattr__(self, attribute: str) -> Any:
        model = self.__dict__.get("_user_model")
        if model is None:
            raise AttributeError(attribute)
        if attribute in model._parameters and model._parameters[attribute] is not None:
            return ParameterProxy(self, attribute, model._parameters[attribute])
        try:
            return getattr(model, attribute)
        except AttributeError as error:
            if error.name not in (attribute, None):
                raise  # of a property, which exists
            known = [name for name in (*dir(type(self)), *dir(model)) if name[0] != "_"]
            meant = did_you_mean(attribute, known)
            raise AttributeError(
                f"{str(error).rstrip('.')}, nor has its executor.{meant}",
                name=attribute,
                obj=self,
            ) from None

    def __repr__(self) -> str:
        return module_repr(self._user_model)

    def __reduce__(self) -> Any:
        """In another process it is a wrapper that has not been compiled, with these weights."""
        rng_state = self.rng_state if self._executable is not None else self._rng_words
        return (
            _restored,
            (self._user_model, self._options, self._training, self._optimizer, rng_state),
        )


def trainingModel(
    model: torch.nn.Module | PoplarExecutor,
    options: Options | None = None,
    optimizer: torch.optim.Optimizer | None = None,
) -> PoplarExecutor:
    """Wrap a model so that a call runs forward, backward and the weight update.

    Args:
        model: computes its loss in forward. While it is wrapped its class changes: reading its
            weights fetches the newest ones.
        options: how to compile and run it; frozen by this.
        optimizer: of ``poptorch.optim`` or ``torch.optim``; SGD with a rate of 0.01 if None.
    """
    module = _module_of(model)
    if is_wrapped(module):
        raise RuntimeError(
            "Model has already been wrapped in 'poptorch.trainingModel'. Call destroy() on that "
            "executor, or wrap the model for inference."
        )
    return PoplarExecutor(module, options, True, __version__, optimizer, module)


def inferenceModel(
    model: torch.nn.Module | PoplarExecutor, options: Options | None = None
) -> PoplarExecutor:
    """Wrap a model so that a call runs its forward.

    Args:
        model: a module, or an executor of one. If it is wrapped for training, newly trained
            weights are taken over before each call.
        options: how to compile and run it; frozen by this.
    """
    module = _module_of(model)
    executor = PoplarExecutor(shallow_copy(module), options, False, __version__)
    executor._reminders.given = module
    return executor


def _module_of(model: Any) -> torch.nn.Module:
    """The user's module; raises for what can't be wrapped."""
    module = model._user_model if isinstance(model, PoplarExecutor) else model
    if not isinstance(module, torch.nn.Module):
        advice = "call functions in the forward of one"
        if isinstance(module, type) and issubclass(module, torch.nn.Module):
            advice = f"pass an object, {module.__name__}(...), instead of the class"
        raise createPoptorchError(
            f"A model must be a torch.nn.Module, not {type(module).__name__}: {advice}"
        )
    if isinstance(module, torch.jit.ScriptModule):
        raise createPoptorchError(
            "A scripted model can't be wrapped: wrap a torch.nn.Module whose forward calls it"
        )
    return module


def _restored(
    model: torch.nn.Module,
    options: Options,
    training: bool,
    optimizer: Any,
    rng_state: list[int] | None,
) -> PoplarExecutor:
    """An executor from a pickle."""
    if training:
        executor = trainingModel(model, options, optimizer)
    else:
        executor = inferenceModel(model, options)
    executor._rng_words = rng_state
    return executor
