# SPDX-License-Identifier: Apache-2.0
"""Optimizers of the API: PyTorch's, with the arguments that only devices have. Their ``step`` never
runs; the class chooses the algorithm of the compiled program and supplies its values."""

import inspect
import math
from collections.abc import Callable, Iterable
from typing import Any

import torch

from poptorch._logging import logger
from poptorch._suggest import did_you_mean

__all__ = ["LAMB", "SGD", "Adam", "AdamW", "Optimizer", "RMSprop", "VariableAttributes"]


class VariableAttributes:
    """Which attributes of an optimizer may change after compilation."""

    def __init__(self, variable_attributes: Iterable[str], allowed_attributes: Iterable[str]):
        self._variable = set(variable_attributes)
        self._allowed = list(allowed_attributes)

    def isConstant(self, attr: str) -> bool:
        """Whether ``attr`` is fixed when the program is compiled."""
        return attr not in self._variable

    def markAsConstant(self, attr: str) -> None:
        """Fix ``attr`` when the program is compiled."""
        self._check(attr)
        self._variable.discard(attr)

    def markAsVariable(self, attr: str) -> None:
        """Let ``attr`` change after compilation."""
        self._check(attr)
        self._variable.add(attr)

    def _check(self, attr: str) -> None:
        assert attr in self._allowed, f"Unknown attribute {attr}, allowed values: {self._allowed}"


class Optimizer:
    """What all optimizers of this module share: state that lives on the device."""

    #: Optimizer-wide attributes that may vary, in addition to the groups' values.
    _child_vars = ("loss_scaling",)

    def __init__(self) -> None:
        self.variable_attrs = VariableAttributes((), ())
        self.loss_scaling = 1.0
        self._clear_state()

    def _clear_state(self) -> None:
        self._state_dict: dict[str, Any] = {"ipu_state": None, "ipu_param": None}
        # Set by the executor: reads the device's state into this object.
        self._fetch_state: Callable[[], None] | None = None
        self.host_state_is_dirty = False
        self.ipu_state_is_dirty = False

    def __getstate__(self) -> dict[str, Any]:
        self._fetch_if_needed()
        state = dict(self.__dict__)
        state["_fetch_state"] = None
        # What is loaded from a file has to be sent to the next device.
        state["host_state_is_dirty"] = self.has_state()
        state["ipu_state_is_dirty"] = False
        return state

    def _fetch_if_needed(self) -> None:
        if self.ipu_state_is_dirty and self._fetch_state is not None:
            self._fetch_state()

    def state_dict(self) -> dict[str, Any]:
        """PyTorch's state and groups, and the state on the device.

        ``ipu_state`` and ``ipu_param`` map names to tensors; both are None before the first run.
        """
        self._fetch_if_needed()
        return {**super().state_dict(), **self._state_dict}  # type: ignore[misc]

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what :meth:`state_dict` returned; it is sent to the device before the next run."""
        plain = {key: value for key, value in state.items() if key in ("state", "param_groups")}
        super().load_state_dict(plain)  # type: ignore[misc]
        if not ("ipu_state" in state and "ipu_param" in state):
            raise RuntimeError("Only IPU optimizer states can be loaded onto the IPU.")
        self.set_state_dict(state)

    def get_state_dict(self) -> dict[str, Any]:
        """The state kept on the host, without asking the device."""
        return self._state_dict

    def set_state_dict(self, state: dict[str, Any]) -> None:
        """Replace the device's state by ``state`` before the next run."""
        if not state:
            raise RuntimeError("Cannot load optimizer state dictionary because it is empty.")
        self._state_dict = {key: state[key] for key in ("ipu_state", "ipu_param")}
        self.host_state_is_dirty = self.has_state()
        self.ipu_state_is_dirty = False

    def has_state(self) -> bool:
        """Whether there is state of a device on the host."""
        return self._state_dict["ipu_state"] is not None


def _given(**kwargs: Any) -> dict[str, Any]:
    return {key: value for key, value in kwargs.items() if value is not None}


def _check_accum_types(**types: torch.dtype) -> None:
    for name, dtype in types.items():
        assert dtype in (torch.float16, torch.float32), (
            f"Accumulation types must be either torch.float32 or torch.float16: {name} is {dtype}"
        )


_NUMBERS = frozenset(
    ("lr", "momentum", "dampening", "weight_decay", "eps", "alpha")
    + ("loss_scaling", "velocity_scaling", "max_grad_norm", "max_weight_norm")
)


def _check_numbers(values: dict[str, Any]) -> None:
    for name, value in values.items():
        if name == "betas":
            ok = isinstance(value, tuple) and len(value) == 2
            assert ok and all(isinstance(beta, (int, float)) for beta in value), (
                f"betas must be a tuple of two numbers, got {value!r}"
            )
        elif name in _NUMBERS:
            assert isinstance(value, (int, float)) and not isinstance(value, bool), (
                f"Expected a number for {name}, got {value!r}"
            )


#: Names that other libraries have for arguments.
_ALSO_KNOWN_AS = {"learning_rate": " Did you mean lr?", "beta1": " Did you mean betas?"}


class _TorchOptimizer(Optimizer):
    """The common constructor: torch's arguments to torch, the device's kept here."""

    _torch: type[torch.optim.Optimizer]
    _extras: dict[str, Any] = {}

    def __new__(cls, *args: Any, **kwargs: Any) -> "_TorchOptimizer":
        """Name the argument that was meant, where Python only says that one is unknown."""
        known = inspect.signature(cls.__init__).parameters
        if not any(p.kind is inspect.Parameter.VAR_KEYWORD for p in known.values()):
            for name in kwargs:
                if name not in known:
                    raise TypeError(
                        f"{cls.__name__}.__init__() got an unexpected keyword argument '{name}'."
                        f"{did_you_mean(name, known) or _ALSO_KNOWN_AS.get(name, '')}"
                    )
        return super().__new__(cls)

    def _setup(self, params: Any, torch_args: dict[str, Any], extras: dict[str, Any]) -> None:
        Optimizer.__init__(self)
        given = _given(**torch_args)
        _check_numbers({**given, **_given(**extras)})
        accepted = inspect.signature(self._torch.__init__).parameters
        passed = {key: value for key, value in given.items() if key in accepted}
        self._torch.__init__(self, params, **passed)
        for name, default in self._extras.items():
            value = extras.get(name)
            setattr(self, name, default if value is None else value)
        _check_accum_types(
            **{name: getattr(self, name) for name in self._extras if name.endswith("accum_type")}
        )
        known = [*self.defaults, *self._child_vars]
        variable = [name for name in {**given, **_given(**extras)} if name in known]
        self.variable_attrs = VariableAttributes(variable, known)

    def _add_to_groups(self, name: str, value: float) -> None:
        """Make ``value`` the default of the groups, which torch's constructor does not know."""
        self.defaults.setdefault(name, value)
        for group in self.param_groups:
            group.setdefault(name, value)


_ADAM_EXTRAS: dict[str, Any] = {
    "loss_scaling": 1.0,
    "accum_type": torch.float32,
    "first_order_momentum_accum_type": torch.float32,
    "second_order_momentum_accum_type": torch.float32,
}


class SGD(_TorchOptimizer, torch.optim.SGD):
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
            _given(
                lr=lr,
                momentum=momentum,
                dampening=dampening,
                weight_decay=weight_decay,
                nesterov=nesterov,
                maximize=maximize,
            ),
            _given(
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


class Adam(_TorchOptimizer, torch.optim.Adam):
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
            _given(
                lr=lr,
                betas=betas,
                eps=eps,
                weight_decay=weight_decay,
                amsgrad=amsgrad,
                maximize=maximize,
            ),
            _given(
                loss_scaling=loss_scaling,
                accum_type=accum_type,
                first_order_momentum_accum_type=first_order_momentum_accum_type,
                second_order_momentum_accum_type=second_order_momentum_accum_type,
                max_grad_norm=max_grad_norm,
            ),
        )


class AdamW(_TorchOptimizer, torch.optim.AdamW):
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
            _given(
                lr=lr,
                betas=betas,
                eps=eps,
                weight_decay=weight_decay,
                amsgrad=amsgrad,
                maximize=maximize,
            ),
            _given(
                loss_scaling=loss_scaling,
                bias_correction=bias_correction,
                accum_type=accum_type,
                first_order_momentum_accum_type=first_order_momentum_accum_type,
                second_order_momentum_accum_type=second_order_momentum_accum_type,
                max_grad_norm=max_grad_norm,
            ),
        )


class RMSprop(_TorchOptimizer, torch.optim.RMSprop):
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
            _given(
                lr=lr,
                alpha=alpha,
                eps=eps,
                weight_decay=weight_decay,
                momentum=momentum,
                centered=centered,
                maximize=maximize,
            ),
            _given(
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


class LAMB(_TorchOptimizer, _LambOnHost):
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
            _given(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay),
            _given(
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
                    self._update(param, group)
        return loss

    def _update(self, param: torch.Tensor, group: dict[str, Any]) -> None:
        state = self.state[param]
        if not state:
            state["step"] = 0
            state["exp_avg"] = torch.zeros_like(param)
            state["exp_avg_sq"] = torch.zeros_like(param)
        state["step"] += 1
        beta1, beta2 = group["betas"]
        mean = state["exp_avg"].lerp_(param.grad, 1 - beta1)
        square = state["exp_avg_sq"].lerp_(param.grad.square(), 1 - beta2)
        if self.bias_correction:
            mean = mean / (1 - beta1 ** state["step"])
            square = square / (1 - beta2 ** state["step"])
        update = mean / (square.sqrt() + group["eps"]) + group["weight_decay"] * param
        weight_norm = float(param.float().norm().clamp(max=group["max_weight_norm"]))
        update_norm = float(update.float().norm())
        ratio = weight_norm / update_norm if weight_norm and update_norm else 1.0
        param.sub_(update, alpha=group["lr"] * ratio)
