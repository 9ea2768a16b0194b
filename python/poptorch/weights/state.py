# SPDX-License-Identifier: Apache-2.0
"""The host's side of the weights: while a model is wrapped for training, its module and tensors
have classes that fetch new weights when they are looked at."""

import copyreg
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from poptorch.base.errors import createPoptorchError
from poptorch.base.memory import check_memory
from poptorch.capture.state import current as running_capture
from poptorch.capture.state import lock as capture_lock

_plain = torch._C.DisableTorchFunctionSubclass

# What the pickles of Python itself name; typeshed leaves them out.
_NEW_OBJECT, _RECONSTRUCT = vars(copyreg)["__newobj__"], vars(copyreg)["_reconstructor"]
_NEW_PARAMETER = torch.nn.Parameter.__new__.__code__

# Looking at these does not need the newest values.
_METADATA = frozenset(
    getattr(torch.Tensor, name).__get__
    for name in (
        "shape",
        "dtype",
        "device",
        "layout",
        "requires_grad",
        "is_leaf",
        "grad",
        "grad_fn",
        "ndim",
        "is_cpu",
        "is_cuda",
        "is_sparse",
        "is_quantized",
        "is_meta",
        "_version",
    )
) | frozenset(
    (
        torch.Tensor.size,
        torch.Tensor.dim,
        torch.Tensor.numel,
        torch.Tensor.nelement,
        torch.Tensor.element_size,
        torch.Tensor.stride,
        torch.Tensor.is_contiguous,
        torch.Tensor.is_floating_point,
        torch.Tensor.is_complex,
        torch.Tensor.__len__,
        torch.Tensor.requires_grad.__set__,  # type: ignore[attr-defined]  # a descriptor
        torch.Tensor.requires_grad_,
    )
)


class WeightSync:
    """Which side has the newest weights of one training executor.

    Attributes:
        stale: the program has trained since the host's weights were last fetched.
        version: grows whenever the host's weights change.
        retired: the executor trains no more; others may still have to take over what it fetched.
    """

    def __init__(self, download: Callable[[], None]) -> None:
        # A strong reference: as long as someone has a tensor of the model, its values can be had.
        self._download = download
        self.stale = False
        self.version = 0
        self.retired = False

    def refresh(self) -> bool:
        """Fetch the weights if the host's are old; says whether it had to."""
        # A model that is being captured has no values; they were fetched before.
        if not self.stale or running_capture() is not None:
            return False
        self._download()
        return True

    def fetched(self) -> None:
        """The host has the newest weights now."""
        self.stale = False
        self.version += 1


# Classes of watched tensors -----------------------------------------------------------------------


def refresh_all(types: Any) -> None:
    """Fetch the newest values of all tensors that have one of these classes."""
    for kind in types:
        for sync in getattr(kind, "_poptorch_syncs", ()):
            sync.refresh()


class Watched:
    """Mixin of the classes that tensors of a training model have."""

    _poptorch_syncs: tuple[WeightSync, ...] = ()

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func not in _METADATA:
            refresh_all(types)
        with _plain():
            out = func(*args, **(kwargs or {}))
        if func is torch.Tensor.detach and sys._getframe(1).f_code is _NEW_PARAMETER:
            # nn.Parameter(tensor) wants the class of its argument. It shares the memory, so it has
            # to fetch new values too.
            out.__class__ = type(args[0])
        return out

    def as_subclass(self, cls: type) -> Any:
        """A view of another class, of the newest values."""
        refresh_all((type(self),))
        return super().as_subclass(cls)  # type: ignore[misc]


class _WatchedParameter(Watched, torch.nn.Parameter):
    # torch's own has no types.
    def __repr__(self, *args: Any, **kwargs: Any) -> str:  # type: ignore[override]
        refresh_all((type(self),))
        with _plain():
            return repr(torch.nn.Parameter(self.data, self.requires_grad))

    def __reduce_ex__(self, proto: Any) -> Any:
        # In a file or another process it is an ordinary parameter.
        refresh_all((type(self),))
        with _plain():
            return torch.nn.Parameter(self.data, self.requires_grad).__reduce_ex__(proto)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        refresh_all((type(self),))
        with _plain():
            memo[id(self)] = result = torch.nn.Parameter(self.data.clone(), self.requires_grad)
        return result


class _WatchedBuffer(Watched, torch.Tensor):
    # torch's own has no types.
    def __repr__(self, *args: Any, **kwargs: Any) -> str:  # type: ignore[override]
        refresh_all((type(self),))
        with _plain():
            return repr(self.data)

    def __reduce_ex__(self, proto: Any) -> Any:
        refresh_all((type(self),))
        with _plain():
            return self.data.__reduce_ex__(proto)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        refresh_all((type(self),))
        with _plain():
            memo[id(self)] = result = self.data.clone()
        return result


def _watched_class(base: type, syncs: tuple[WeightSync, ...]) -> type:
    """The class of a tensor whose values ``syncs`` know; the plain class if there are none."""
    parameter = issubclass(base, torch.nn.Parameter)
    if not syncs:
        return torch.nn.Parameter if parameter else torch.Tensor
    parent = _WatchedParameter if parameter else _WatchedBuffer
    name = "PoptorchParameter" if parameter else "PoptorchBuffer"
    return type(name, (parent,), {"_poptorch_syncs": syncs, "__module__": __name__})


class TensorWatch:
    """Gives the tensors of a module watched classes, and takes them away again."""

    def __init__(self, module: torch.nn.Module, sync: WeightSync) -> None:
        self._module = module
        self._sync = sync

    def check(self) -> None:
        """Raise if a buffer has a class of its own, which could not be watched."""
        for name, buffer in self._module.named_buffers():
            if type(buffer) is not torch.Tensor and not isinstance(buffer, Watched):
                check_memory(buffer, name)
                raise createPoptorchError(
                    f"All buffers must be an instance of torch.Tensor: {name} is {type(buffer)}"
                )

    def start(self) -> None:
        """Watch all tensors of the module."""
        self._change(lambda syncs: syncs if self._sync in syncs else (*syncs, self._sync))

    def stop(self) -> None:
        """Watch them no longer; other executors that share them still do."""
        self._change(lambda syncs: tuple(s for s in syncs if s is not self._sync))

    def _change(self, change: Callable[[tuple[WeightSync, ...]], tuple[WeightSync, ...]]) -> None:
        classes: dict[Any, type] = {}
        for tensor in tensors_of(self._module):
            kind = type(tensor)
            if kind not in (torch.Tensor, torch.nn.Parameter) and not issubclass(kind, Watched):
                continue
            if kind not in classes:
                classes[kind] = _watched_class(kind, change(getattr(kind, "_poptorch_syncs", ())))
            tensor.__class__ = classes[kind]


def tensors_of(module: torch.nn.Module) -> Iterator[torch.Tensor]:
    yield from module.parameters()
    yield from module.buffers()


def syncs_of(module: torch.nn.Module) -> list[WeightSync]:
    """The executors that train tensors of ``module``."""
    found: dict[int, WeightSync] = {}
    for tensor in tensors_of(module):
        for sync in getattr(type(tensor), "_poptorch_syncs", ()):
            found[id(sync)] = sync
    return list(found.values())


@contextmanager
def plain_tensors(module: torch.nn.Module) -> Iterator[None]:
    """The tensors of ``module`` with torch's own classes, for capture."""
    changed = [(t, type(t)) for t in tensors_of(module) if isinstance(t, Watched)]
    for tensor, kind in changed:
        tensor.__class__ = _watched_class(kind, ())
    try:
        yield
    finally:
        for tensor, kind in changed:
            tensor.__class__ = kind


# The class of a wrapped module --------------------------------------------------------------------


def is_wrapped(module: object) -> bool:
    """Whether ``module`` is wrapped for training."""
    return hasattr(type(module), "_poptorch_executor")


def executor_of(module: torch.nn.Module) -> Any:
    """The executor that ``module`` is wrapped in."""
    return vars(type(module))["_poptorch_executor"]


def original_class(module: torch.nn.Module) -> type[torch.nn.Module]:
    """The class that the user gave the module."""
    return type(module).__bases__[0] if is_wrapped(module) else type(module)


def wrap_module(module: torch.nn.Module, executor: Any) -> None:
    """Make ``module`` fetch new weights when it is called or its state is read."""
    original = type(module)

    def refresh() -> bool:
        return executor.copyWeightsToHostIfNeeded()

    class Wrapped(original):  # type: ignore[misc, valid-type]
        _poptorch_executor = executor

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            refresh()
            return super().__call__(*args, **kwargs)

        def state_dict(self, *args: Any, **kwargs: Any) -> Any:
            """Copies of the state with torch's own classes; equal tensors are copied once."""
            refresh()
            state = super().state_dict(*args, **kwargs)
            with capture_lock:  # those of one step
                return _plain_copy(state)

        def named_parameters(self, *args: Any, **kwargs: Any) -> Any:
            refresh()
            return super().named_parameters(*args, **kwargs)

        def named_buffers(self, *args: Any, **kwargs: Any) -> Any:
            refresh()
            return super().named_buffers(*args, **kwargs)

        def copyWeightsToHostIfNeeded(self) -> bool:
            """Fetch the weights from the device if the host's are old."""
            return refresh()

        def destroy(self) -> None:
            """Destroy the executor that this module is wrapped in."""
            executor.destroy()

        def __copy__(self) -> Any:
            result = object.__new__(type(self))
            result.__dict__.update(self.__dict__)
            return result

        def __reduce_ex__(self, proto: Any) -> Any:
            refresh()
            reduced = super().__reduce_ex__(proto)
            if reduced[0] is not _NEW_OBJECT:
                return reduced
            # Plain Python makes the object again, so a file needs no poptorch to be read.
            return (_RECONSTRUCT, (original, object, None), *reduced[2:])

    Wrapped.__name__ = f"Poptorch{original.__name__}"
    Wrapped.__qualname__ = Wrapped.__name__
    Wrapped.__module__ = original.__module__
    Wrapped.__doc__ = original.__doc__
    module.__class__ = Wrapped


def unwrap_module(module: torch.nn.Module) -> None:
    """Give ``module`` the user's class back."""
    module.__class__ = original_class(module)


def shallow_copy(module: torch.nn.Module) -> torch.nn.Module:
    """A module of the user's class that shares tensors and children with ``module``."""
    # Not through __new__ of the class: that of a torch.fx.GraphModule makes a class per object.
    result: torch.nn.Module = object.__new__(original_class(module))
    result.__dict__.update(module.__dict__)
    return result


def _plain_copy(state: Any) -> Any:
    copies: dict[int, torch.Tensor] = {}
    result: Any = OrderedDict()
    for name, value in state.items():
        if not isinstance(value, torch.Tensor):
            result[name] = value
            continue
        with _plain():
            key = value.data_ptr() or id(value)
            key = hash((key, value.shape, value.stride(), value.dtype))
            if key not in copies:
                kept = value.data.clone()
                if isinstance(value, torch.nn.Parameter):  # keep_vars=True
                    kept = torch.nn.Parameter(kept, value.requires_grad)
                copies[key] = kept
        result[name] = copies[key]
    if hasattr(state, "_metadata"):
        result._metadata = state._metadata
    return result
