# SPDX-License-Identifier: Apache-2.0
"""What cannot be done on IPUs, each with an error that says what to do instead."""

import inspect
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch

_HOOKS = ("transfer_batch_to_device", "on_after_batch_transfer")
_GRADIENT_HOOKS = ("on_after_backward", "on_before_optimizer_step")


def check_trainer(
    trainer: Any,
    module: Any,
    datamodule: Any,
    error: type[Exception],
    is_overridden: Callable[..., bool],
    allow_hooks: bool,
) -> None:
    """Before anything of a run is set up."""
    for hook in () if allow_hooks else _HOOKS:
        for owner in (module, datamodule):
            if owner is not None and is_overridden(hook, owner):
                raise error(
                    f"Overriding `{hook}` is not supported with IPUs: data goes to them from the "
                    "host. `IPUStrategy(allow_batch_transfer_hooks=True)` calls it on the host."
                )
    if trainer._accelerator_connector._num_nodes_flag > 1:
        raise error("IPUs are used on one machine: `num_nodes` must be 1.")
    if trainer._accelerator_connector._layer_sync is not None:
        raise error("`sync_batchnorm=True` is not supported with IPUs.")
    for callback in trainer.callbacks:
        if any(c.__name__ == "GradientAccumulationScheduler" for c in type(callback).__mro__):
            raise error(
                "IPUs do not support GradientAccumulationScheduler: the factor is part of the "
                "compiled program. Use `Trainer(accumulate_grad_batches=...)`."
            )


def check_steps(module: Any, methods: Iterable[str], error: type[Exception]) -> None:
    """Of a module whose steps are to be compiled."""
    for method in methods:
        step = getattr(module, method, None)
        if step is not None and "dataloader_iter" in inspect.signature(step).parameters:
            raise error(
                f"`{method}(dataloader_iter)` is not supported with IPUs: a program gets whole "
                f"batches. Use `{method}(batch, batch_idx)`."
            )


def check_optimizers(optimizers: list[Any], error: type[Exception]) -> None:
    """After ``configure_optimizers``."""
    if len(optimizers) > 1:
        raise error("IPUs currently only support one optimizer.")
    for optimizer in optimizers:
        if isinstance(optimizer, torch.optim.LBFGS):
            raise error("IPUs do not support LBFGS, which runs the step several times per update.")


def check_module(module: Any, error: type[Exception], is_overridden: Callable[..., bool]) -> None:
    """Of a module that is to be trained."""
    if not module.automatic_optimization:
        raise error(
            "IPUs do not support manual optimization: forward, backward and update are one "
            "program. Remove `automatic_optimization = False`."
        )
    for hook in _GRADIENT_HOOKS:
        if is_overridden(hook, module):
            warnings.warn(
                f"`{hook}` is called, but gradients stay on the IPUs: `.grad` is None there.",
                stacklevel=2,
            )
    if is_overridden("configure_gradient_clipping", module):
        raise error(
            "Overriding `configure_gradient_clipping` is not supported with IPUs: gradients are "
            "not on the host. Use `Trainer(gradient_clip_val=...)`."
        )
