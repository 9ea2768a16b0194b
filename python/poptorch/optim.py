# SPDX-License-Identifier: Apache-2.0
"""Optimizers of the API: PyTorch's, with the arguments that only devices have. Their ``step`` never
runs; the class chooses the algorithm of the compiled program and supplies its values."""

import math
from collections.abc import Callable
from typing import Any

import torch

from poptorch.base.logging import logger
from poptorch.optimizer.base import (
    Optimizer,
    TorchOptimizer,
    VariableAttributes,
    given_only,
    markAsVariable,
)

__all__ = [
    "LAMB",
    "SGD",
    "Adam",
    "AdamW",
    "Optimizer",
    "RMSprop",
    "VariableAttributes",
    "markAsVariable",
]

_ADAM_EXTRAS: dict[str, Any] = {
    "loss_scaling": 1.0,
    "accum_type": torch.float32,
    "first_order_momentum_accum_type": torch.float32,
    "second_order_momentum_accum_type": torch.float32,
}


class SGD(TorchOptimizer, torch.optim.SGD):
    """Stochastic gradient descent, with or without momentum.

    Args:
        params, lr, momentum, dampening, weight_decay, nesterov, maximize: as in
            ``torch.optim.SGD``.
        foreach, differentiable: accepted for the sake of the signature, no effect.
        loss_scaling: factor on the loss during the backward pass, divided out of the gradients.
        velocity_scaling: factor on the velocity of the combined variant.
        use_combined_accum: keep the gradient accumulator and the velocity in one tensor.
        accum_type, velocity_accum_type: types of the accumulators.
        max_grad_norm: limit of the norm over all gradients.

    An argument that is given may change after compilation, one left out is a constant.
    """

    _torch = torch.optim.SGD
    _extras = {
        "loss_scaling": 1.0,
        "use_combined_accum": False,
        "accum_type": torch.float32,
        "velocity_accum_type": torch.float32,
        "max_grad_norm": math.inf,
    }

    def __init__(
        self,
        params: Any,
        lr: float,
        momentum: float | None = None,
        dampening: float | None = None,
        weight_decay: float | None = None,
        nesterov: bool | None = None,
        maximize: bool | None = None,
        foreach: bool | None = None,
        differentiable: bool | None = None,
        loss_scaling: float | None = None,
        velocity_scaling: float | None = None,
        use_combined_accum: bool | None = None,
        accum_type: torch.dtype | None = None,
        velocity_accum_type: torch.dtype | None = None,
        max_grad_norm: float | None = None,
    ) -> None:
        if velocity_scaling is not None and not use_combined_accum:
            logger.warning("velocity_scaling is only used with use_combined_accum=True: ignored")
            velocity_scaling = None
        if use_combined_accum:
            self._child_vars = ("loss_scaling", "velocity_scaling")
        self._setup(
            params,
            given_only(
                lr=lr,
                momentum=momentum,
                dampening=dampening,
                weight_decay=weight_decay,
                nesterov=nesterov,
                maximize=maximize,
            ),
            given_only(
                loss_scaling=loss_scaling,
                velocity_scaling=velocity_scaling,
                use_combined_accum=use_combined_accum,
                accum_type=accum_type,
                velocity_accum_type=velocity_accum_type,
                max_grad_norm=max_grad_norm,
            ),
        )
        self._add_to_groups(
            "velocity_scaling", 1.0 if velocity_scaling is None else velocity_scaling
        )


class Adam(TorchOptimizer, torch.optim.Adam):
    """Adam, with weight decay added to the gradient.

    Args:
        params, lr, betas, eps, weight_decay, amsgrad, maximize: as in ``torch.optim.Adam``.
        foreach, capturable, differentiable, fused: accepted, no effect.
        loss_scaling: factor on the loss during the backward pass, divided out of the gradients.
        accum_type, first_order_momentum_accum_type, second_order_momentum_accum_type: types of
            the accumulators.
        max_grad_norm: limit of the norm over all gradients.
    """

    _torch = torch.optim.Adam
    _extras = {**_ADAM_EXTRAS, "max_grad_norm": math.inf}

    def __init__(
        self,
        params: Any,
        lr: float | None = None,
        betas: tuple[float, float] | None = None,
        eps: float | None = None,
        weight_decay: float | None = None,
        amsgrad: bool | None = None,
        foreach: bool | None = None,
        maximize: bool | None = None,
        capturable: bool | None = None,
        differentiable: bool | None = None,
        fused: bool | None = None,
        loss_scaling: float | None = None,
        accum_type: torch.dtype | None = None,
        first_order_momentum_accum_type: torch.dtype | None = None,
        second_order_momentum_accum_type: torch.dtype | None = None,
        max_grad_norm: float | None = None,
    ) -> None:
        self._setup(
            params,
            given_only(
                lr=lr,
                betas=betas,
                eps=eps,
                weight_decay=weight_decay,
                amsgrad=amsgrad,
                maximize=maximize,
            ),
            given_only(
                loss_scaling=loss_scaling,
                accum_type=accum_type,
                first_order_momentum_accum_type=first_order_momentum_accum_type,
                second_order_momentum_accum_type=second_order_momentum_accum_type,
                max_grad_norm=max_grad_norm,
            ),
        )


class AdamW(TorchOptimizer, torch.optim.AdamW):
    """Adam with decoupled weight decay.

    Args:
        params, lr, betas, eps, weight_decay, amsgrad, maximize: as in ``torch.optim.AdamW``.
        foreach, capturable, differentiable, fused: accepted, no effect.
        loss_scaling: factor on the loss during the backward pass, divided out of the gradients.
        bias_correction: divide the moments by ``1 - beta ** step``.
        accum_type, first_order_momentum_accum_type, second_order_momentum_accum_type: types of
            the accumulators.
        max_grad_norm: limit of the norm over all gradients.
    """

    _torch = torch.optim.AdamW
    _extras = {**_ADAM_EXTRAS, "bias_correction": True, "max_grad_norm": math.inf}

    def __init__(
        self,
        params: Any,
        lr: float | None = None,
        betas: tuple[float, float] | None = None,
        eps: float | None = None,
        weight_decay: float | None = None,
        amsgrad: bool | None = None,
        maximize: bool | None = None,
        foreach: bool | None = None,
        capturable: bool | None = None,
        differentiable: bool | None = None,
        fused: bool | None = None,
        loss_scaling: float | None = None,
        bias_correction: bool | None = None,
        accum_type: torch.dtype | None = None,
        first_order_momentum_accum_type: torch.dtype | None = None,
        second_order_momentum_accum_type: torch.dtype | None = None,
        max_grad_norm: float | None = None,
    ) -> None:
        self._setup(
            params,
            given_only(
                lr=lr,
                betas=betas,
                eps=eps,
                weight_decay=weight_decay,
                amsgrad=amsgrad,
                maximize=maximize,
            ),
            given_only(
                loss_scaling=loss_scaling,
                bias_correction=bias_correction,
                accum_type=accum_type,
                first_order_momentum_accum_type=first_order_momentum_accum_type,
                second_order_momentum_accum_type=second_order_momentum_accum_type,
                max_grad_norm=max_grad_norm,
            ),
        )


class RMSprop(TorchOptimizer, torch.optim.RMSprop):
    """RMSprop, plain or centred, with PyTorch's or TensorFlow's arithmetic.

    Args:
        params, lr, alpha, eps, weight_decay, momentum, centered, maximize: as in
            ``torch.optim.RMSprop``.
        foreach, differentiable: accepted, no effect.
        loss_scaling: factor on the loss during the backward pass, divided out of the gradients.
        accum_type, first_order_momentum_accum_type, second_order_momentum_accum_type: types of
            the accumulators.
        use_tf_variant: epsilon inside the square root, learning rate inside the momentum.
    """

    _torch = torch.optim.RMSprop
    _extras = {**_ADAM_EXTRAS, "use_tf_variant": False}

    def __init__(
        self,
        params: Any,
        lr: float | None = None,
        alpha: float | None = None,
        eps: float | None = None,
        weight_decay: float | None = None,
        momentum: float | None = None,
        centered: bool | None = None,
        foreach: bool | None = None,
        maximize: bool | None = None,
        differentiable: bool | None = None,
        loss_scaling: float | None = None,
        accum_type: torch.dtype | None = None,
        first_order_momentum_accum_type: torch.dtype | None = None,
        second_order_momentum_accum_type: torch.dtype | None = None,
        use_tf_variant: bool | None = None,
    ) -> None:
        self._setup(
            params,
            given_only(
                lr=lr,
                alpha=alpha,
                eps=eps,
                weight_decay=weight_decay,
                momentum=momentum,
                centered=centered,
                maximize=maximize,
            ),
            given_only(
                loss_scaling=loss_scaling,
                accum_type=accum_type,
                first_order_momentum_accum_type=first_order_momentum_accum_type,
                second_order_momentum_accum_type=second_order_momentum_accum_type,
                use_tf_variant=use_tf_variant,
            ),
        )


class _LambOnHost(torch.optim.Optimizer):
    """LAMB for the CPU: the arithmetic of the device in plain PyTorch."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
    ) -> None:
        if lr < 0 or eps < 0 or weight_decay < 0:
            raise ValueError("lr, eps and weight_decay must not be negative")
        if not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"betas must be in [0, 1), got {betas}")
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults)


class LAMB(TorchOptimizer, _LambOnHost):
    """Layer-wise adaptive moments.

    Args:
        params, lr, betas, eps, weight_decay: as in ``torch.optim.AdamW``.
        bias_correction: divide the moments by ``1 - beta ** step``.
        loss_scaling: factor on the loss during the backward pass, divided out of the gradients.
        max_weight_norm: upper limit of the weight norm in the trust ratio.
        accum_type, first_order_momentum_accum_type, second_order_momentum_accum_type: types of
            the accumulators.
    """

    _torch = _LambOnHost
    _child_vars = ("loss_scaling", "max_weight_norm")
    _extras = {**_ADAM_EXTRAS, "bias_correction": True, "max_weight_norm": 65500.0}
    bias_correction: bool
    max_weight_norm: float

    def __init__(
        self,
        params: Any,
        lr: float | None = None,
        betas: tuple[float, float] | None = None,
        eps: float | None = None,
        weight_decay: float | None = None,
        bias_correction: bool | None = None,
        loss_scaling: float | None = None,
        max_weight_norm: float | None = None,
        accum_type: torch.dtype | None = None,
        first_order_momentum_accum_type: torch.dtype | None = None,
        second_order_momentum_accum_type: torch.dtype | None = None,
    ) -> None:
        self._setup(
            params,
            given_only(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay),
            given_only(
                bias_correction=bias_correction,
                loss_scaling=loss_scaling,
                max_weight_norm=max_weight_norm,
                accum_type=accum_type,
                first_order_momentum_accum_type=first_order_momentum_accum_type,
                second_order_momentum_accum_type=second_order_momentum_accum_type,
            ),
        )
        self._add_to_groups("max_weight_norm", self.max_weight_norm)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update on the CPU, with the arithmetic of the device."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is not None:
                    self._update(param, param.grad, group)
        return loss

    def _update(self, param: torch.Tensor, gradient: torch.Tensor, group: dict[str, Any]) -> None:
        state = self.state[param]
        if not state:
            state["step"] = 0
            state["exp_avg"] = torch.zeros_like(param)
            state["exp_avg_sq"] = torch.zeros_like(param)
        state["step"] += 1
        beta1, beta2 = group["betas"]
        mean = state["exp_avg"].lerp_(gradient, 1 - beta1)
        square = state["exp_avg_sq"].lerp_(gradient.square(), 1 - beta2)
        if self.bias_correction:
            mean = mean / (1 - beta1 ** state["step"])
            square = square / (1 - beta2 ** state["step"])
        update = mean / (square.sqrt() + group["eps"]) + group["weight_decay"] * param
        weight_norm = float(param.float().norm().clamp(max=group["max_weight_norm"]))
        update_norm = float(update.float().norm())
        ratio = weight_norm / update_norm if weight_norm and update_norm else 1.0
        param.sub_(update, alpha=group["lr"] * ratio)
