# SPDX-License-Identifier: Apache-2.0
"""Values on their way between the host's tensors and the states of a program."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from poptorch.base.dtypes import DTYPE_NAMES, DTYPES
from poptorch.base.errors import createPoptorchError
from poptorch.base.memory import address, check_memory
from poptorch.capture.state import lock
from poptorch.weights.state import original_class

_plain = torch._C.DisableTorchFunctionSubclass
_AGAIN = "call destroy() to compile the model again"


def named_state(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor, bool]]:
    """(name, tensor, whether it is a parameter) for every name that the model has for a tensor."""
    for prefix, module in model.named_modules(remove_duplicate=False):
        for is_param, tensors in ((True, module._parameters), (False, module._buffers)):
            for name, tensor in tensors.items():
                if tensor is not None:
                    yield f"{prefix}.{name}" if prefix else name, tensor, is_param


class StateMover:
    """Copies between the tensors of a model and the states of a program, by name.

    Args:
        program: whose states they are.
        model: is asked for its tensors again at each upload, as they may have been replaced.
        infos: the StateInfo of each state.
    """

    def __init__(self, program: Any, model: torch.nn.Module, infos: Iterable[Any]) -> None:
        self._program = program
        self._model = model
        self._states = {state.name: state for state in program.states}
        # A parameter that the graph does not use has no state: it stays on the host.
        self._infos = {info.name: info for info in infos if info.name in self._states}
        self._tensors = {name: info.tensor for name, info in self._infos.items()}
        self._names = {other: name for name, i in self._infos.items() for other in i.all_names}
        self._names |= {v: name for name, i in self._infos.items() for v, _ in i.views}
        now = {name: tensor for name, tensor, _ in named_state(model)}
        self._known = {name: id(tensor) for name, tensor in now.items()}
        pairs = [(name, view) for name, info in self._infos.items() for view, _ in info.views]
        self._views = {(a, b): _relation(now[a], now[b]) for a, b in pairs}
        self._modules = dict(model.named_modules(remove_duplicate=False))

    def tensors(self) -> Iterator[torch.Tensor]:
        """The host's tensors that have a state."""
        yield from self._tensors.values()

    def upload(self, names: Iterable[str] | None = None) -> bool:
        """Host to device; says whether tensors of the model were found to be replaced."""
        with lock, _plain():
            replaced = self._take_over()
            for name in self._tensors if names is None else self._states_of(names):
                tensor = self._checked(name).to(self._dtype(name)).contiguous()
                tensor = tensor.resolve_conj().resolve_neg()
                self._program.write_state(name, address(tensor, name), tensor.nbytes)
        return replaced

    def download(self) -> None:
        """Device to host."""
        with lock, _plain():
            for name in self._tensors:
                tensor = self._checked(name)
                dtype = self._dtype(name)
                in_place = tensor.is_contiguous() and tensor.dtype == dtype
                if in_place and not tensor.is_conj() and not tensor.is_neg():
                    self._program.read_state(name, address(tensor, name), tensor.nbytes)
                else:
                    value = read_state(self._program, self._states[name])
                    with torch.inference_mode(tensor.is_inference()), torch.no_grad():
                        tensor.copy_(value)

    # Tensors of the model that were replaced since it was compiled --------------------------------

    def _take_over(self) -> bool:
        """Use the tensors that the model has now, if the program fits them."""
        now = {name: tensor for name, tensor, _ in named_state(self._model)}
        known = {name: id(tensor) for name, tensor in now.items()}
        for (name, view), relation in self._views.items():
            if _relation(now.get(name), now.get(view)) != relation:
                raise createPoptorchError(
                    f"{name} and {view} shared their memory in another way when the model was "
                    f"compiled: {_AGAIN}."
                )
        if known == self._known:
            return False
        modules = dict(self._model.named_modules(remove_duplicate=False))
        changed = {name for name in self._names if name not in now}
        changed |= {n for n in now.keys() - self._known.keys() if self._is_replaced(n, modules)}
        if changed:
            raise createPoptorchError(
                f"The model has got or lost parameters or buffers since it was compiled "
                f"({', '.join(sorted(changed))}): {_AGAIN}."
            )
        for name, module in self._modules.items():
            kind, kind_now = (
                original_class(module),
                original_class(modules[name] if name in modules else module),
            )
            if kind_now is not kind:
                raise createPoptorchError(
                    f"{name} was a {kind.__name__} when the model was compiled, and was replaced "
                    f"by a {kind_now.__name__}: {_AGAIN}."
                )
        self._tensors = {name: self._successor(info, now) for name, info in self._infos.items()}
        self._known, self._modules = known, modules
        return True

    def _is_replaced(self, name: str, modules: dict[str, torch.nn.Module]) -> bool:
        """Whether a new tensor came with a module that took the place of another. One that was just
        added is as unknown to the program as any other new attribute."""
        owner = name
        while owner:
            owner = owner.rpartition(".")[0]
            if owner in self._modules:
                return modules[owner] is not self._modules[owner]
        return False

    def _successor(self, info: Any, now: dict[str, torch.Tensor]) -> torch.Tensor:
        tensor = now[info.name]
        if tensor is self._tensors[info.name]:
            return tensor
        apart = [name for name in info.all_names if now[name] is not tensor]
        if apart:
            raise createPoptorchError(
                f"{info.name} and {apart[0]} were one tensor when the model was compiled, and "
                f"are two now: {_AGAIN}."
            )
        if info.trainable:
            raise createPoptorchError(
                f"{info.name} is another parameter than the one that the optimizer trains: it was "
                "replaced after the model was compiled. Change the values in place, as in "
                f"`with torch.no_grad(): parameter.copy_(values)`, or call destroy() and wrap the "
                "model again with an optimizer of its new parameters."
            )
        return tensor

    # Checks ---------------------------------------------------------------------------------------

    def _states_of(self, names: Iterable[str]) -> Iterator[str]:
        for name in names:
            if name in self._names:
                yield self._names[name]
            elif name not in self._known:
                raise createPoptorchError(f"{name} is no parameter or buffer of the model")

    def _dtype(self, name: str) -> torch.dtype:
        return DTYPES[self._states[name].dtype]

    def _checked(self, name: str) -> torch.Tensor:
        check_memory(self._tensors[name], name)
        tensor = self._tensors[name].data
        dtype, shape = self._states[name].dtype, self._states[name].shape
        same = DTYPE_NAMES.get(tensor.dtype) == dtype or _is_wide_statistic(name, dtype, tensor)
        if list(tensor.shape) != list(shape) or not same:
            raise createPoptorchError(
                f"{name} was compiled as {dtype}{list(shape)} but is now "
                f"{DTYPE_NAMES.get(tensor.dtype, tensor.dtype)}{list(tensor.shape)} on the host: "
                f"{_AGAIN}."
            )
        return tensor


def _relation(tensor: torch.Tensor | None, view: torch.Tensor | None) -> Any:
    """How a view lies in the memory of a tensor; None if it is not there."""
    if tensor is None or view is None:
        return None
    if tensor.untyped_storage()._cdata != view.untyped_storage()._cdata:
        return None
    offset = view.storage_offset() - tensor.storage_offset()
    return offset, view.shape, view.stride(), tensor.shape, tensor.stride()


def _is_wide_statistic(name: str, dtype: str, tensor: torch.Tensor) -> bool:
    """Whether the program keeps in float32 what the host has in half precision."""
    statistic = name.rpartition(".")[2] in ("running_mean", "running_var")
    return statistic and dtype == "f32" and tensor.dtype in (torch.float16, torch.bfloat16)


def read_state(program: Any, state: Any) -> torch.Tensor:
    """The value of a state of ``program``."""
    result = torch.empty(tuple(state.shape), dtype=DTYPES[state.dtype], device="cpu")
    program.read_state(state.name, address(result, state.name), result.nbytes)
    return result


def write_state(program: Any, state: Any, value: torch.Tensor) -> None:
    """Set a state of ``program``."""
    check_memory(value, f"The value for {state.name}")
    tensor = value.detach().to(DTYPES[state.dtype]).reshape(tuple(state.shape)).contiguous()
    tensor = tensor.resolve_conj().resolve_neg()
    program.write_state(state.name, address(tensor, state.name), tensor.nbytes)
