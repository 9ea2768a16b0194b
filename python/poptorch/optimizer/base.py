# SPDX-License-Identifier: Apache-2.0
"""What the optimizers of ``poptorch.optim`` share: state that lives on the device, and the
arguments that only devices have."""

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import torch

from poptorch.base.naming import found_in
from poptorch.base.suggest import did_you_mean

#: With an underscore: attributes that appear on an optimizer are reported otherwise.
_MARKED = "_poptorch_variable"


@found_in("poptorch.optim")
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


@found_in("poptorch.optim")
def markAsVariable(optimizer: torch.optim.Optimizer, *attributes: str) -> None:
    """Let these attributes of an optimizer, of torch's or ours, change after compilation."""
    if isinstance(optimizer, Optimizer):
        for attribute in attributes:
            optimizer.variable_attrs.markAsVariable(attribute)
    else:
        vars(optimizer)[_MARKED] = marked_variable(optimizer) | set(attributes)


def marked_variable(optimizer: torch.optim.Optimizer) -> set[str]:
    """The attributes of an optimizer of torch's that were given to :func:`markAsVariable`."""
    return vars(optimizer).get(_MARKED, set())


@found_in("poptorch.optim")
class Optimizer:
    """What all optimizers of this module share: state that lives on the device."""

    #: Optimizer-wide attributes that may vary, in addition to the groups' values.
    _child_vars: tuple[str, ...] = ("loss_scaling",)

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


def given_only(**kwargs: Any) -> dict[str, Any]:
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


class TorchOptimizer(Optimizer, torch.optim.Optimizer):
    """The common constructor: torch's arguments to torch, the device's kept here."""

    _torch: type[torch.optim.Optimizer]
    _extras: dict[str, Any] = {}

    def __new__(cls, *args: Any, **kwargs: Any) -> "TorchOptimizer":
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
        given = given_only(**torch_args)
        _check_numbers({**given, **given_only(**extras)})
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
        variable = [name for name in {**given, **given_only(**extras)} if name in known]
        self.variable_attrs = VariableAttributes(variable, known)

    def _add_to_groups(self, name: str, value: float) -> None:
        """Make ``value`` the default of the groups, which torch's constructor does not know."""
        self.defaults.setdefault(name, value)
        for group in self.param_groups:
            group.setdefault(name, value)
