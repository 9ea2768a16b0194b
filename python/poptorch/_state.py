# SPDX-License-Identifier: Apache-2.0
"""Weights on two sides: the host's tensors and the states of a program. While a model is wrapped
for training, its module and tensors have classes that fetch new weights when they are looked at."""

import copyreg
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from poptorch._errors import createPoptorchError

_plain = torch._C.DisableTorchFunctionSubclass

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
        torch.Tensor.requires_grad.__set__,
        torch.Tensor.requires_grad_,
    )
)


class WeightSync:
    """Which side has the newest weights of one training executor.

    Attributes:
        stale: the program has trained since the host's weights were last fetched.
        version: grows whenever the host's weights change.
    """

    def __init__(self, download: Callable[[], None]) -> None:
        # A strong reference: as long as someone has a tensor of the model, its values can be had.
        self._download = download
        self.stale = False
        self.version = 0

    def refresh(self) -> bool:
        """Fetch the weights if the host's are old; says whether it had to."""
        if not self.stale:
            return False
        self._download()
        return True

    def fetched(self) -> None:
        """The host has the newest weights now."""
        self.stale = False
        self.version += 1


# Classes of watched tensors -----------------------------------------------------------------------


def _refresh_all(types: Any) -> None:
    for kind in types:
        for sync in getattr(kind, "_poptorch_syncs", ()):
            sync.refresh()


class _Watched:
    """Mixin of the classes that tensors of a training model have."""

    _poptorch_syncs: tuple[WeightSync, ...] = ()

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func not in _METADATA:
            _refresh_all(types)
        with _plain():
            return func(*args, **(kwargs or {}))


class _WatchedParameter(_Watched, torch.nn.Parameter):
    def __repr__(self, *args: Any, **kwargs: Any) -> str:
        _refresh_all((type(self),))
        with _plain():
            return repr(torch.nn.Parameter(self.data, self.requires_grad))

    def __reduce_ex__(self, proto: Any) -> Any:
        # In a file or another process it is an ordinary parameter.
        _refresh_all((type(self),))
        with _plain():
            return torch.nn.Parameter(self.data, self.requires_grad).__reduce_ex__(proto)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        _refresh_all((type(self),))
        with _plain():
            memo[id(self)] = result = torch.nn.Parameter(self.data.clone(), self.requires_grad)
        return result


class _WatchedBuffer(_Watched, torch.Tensor):
    def __repr__(self, *args: Any, **kwargs: Any) -> str:
        _refresh_all((type(self),))
        with _plain():
            return repr(self.data)

    def __reduce_ex__(self, proto: Any) -> Any:
        _refresh_all((type(self),))
        with _plain():
            return self.data.__reduce_ex__(proto)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        _refresh_all((type(self),))
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
            if type(buffer) is not torch.Tensor and not isinstance(buffer, _Watched):
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
        for tensor in _tensors(self._module):
            kind = type(tensor)
            if kind not in (torch.Tensor, torch.nn.Parameter) and not issubclass(kind, _Watched):
                continue
            if kind not in classes:
                classes[kind] = _watched_class(kind, change(getattr(kind, "_poptorch_syncs", ())))
            tensor.__class__ = classes[kind]


def _tensors(module: torch.nn.Module) -> Iterator[torch.Tensor]:
    yield from module.parameters()
    yield from module.buffers()


def syncs_of(module: torch.nn.Module) -> list[WeightSync]:
    """The executors that train tensors of ``module``."""
    found: dict[int, WeightSync] = {}
    for tensor in _tensors(module):
        for sync in getattr(type(tensor), "_poptorch_syncs", ()):
            found[id(sync)] = sync
    return list(found.values())


@contextmanager
def plain_tensors(module: torch.nn.Module) -> Iterator[None]:
    """The tensors of ``module`` with torch's own classes, for capture."""
    changed = [(t, type(t)) for t in _tensors(module) if isinstance(t, _Watched)]
    for tensor, kind in changed:
        tensor.__class__ = _watched_class(kind, ())
    try:
        yield
    finally:
        for tensor, kind in changed:
            tensor.__class__ = kind


# The class of a wrapped module --------------------------------------------------------------------


def is_wrapped(module: torch.nn.Module) -> bool:
    """Whether ``module`` is wrapped for training."""
    return hasattr(type(module), "_poptorch_executor")


def original_class(module: torch.nn.Module) -> type:
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
            return _plain_copy(super().state_dict(*args, **kwargs))

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
            result = type(self).__new__(type(self))
            result.__dict__.update(self.__dict__)
            return result

        def __reduce_ex__(self, proto: Any) -> Any:
            refresh()
            reduced = super().__reduce_ex__(proto)
            if reduced[0] is not copyreg.__newobj__:
                return reduced
            # Plain Python makes the object again, so a file needs no poptorch to be read.
            return (copyreg._reconstructor, (original, object, None), *reduced[2:])

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
    cls = original_class(module)
    result = cls.__new__(cls)
    result.__dict__.update(module.__dict__)
    return result


def _plain_copy(state: Any) -> Any:
    copies: dict[int, torch.Tensor] = {}
    result = OrderedDict()
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


# Moving weights -----------------------------------------------------------------------------------


class StateMover:
    """Copies between the host's tensors and the states of a program, by name."""

    def __init__(self, program: Any, tensors: dict[str, torch.Tensor]) -> None:
        self._program = program
        types = {name: (dtype, shape) for name, dtype, shape in program.states}
        # A parameter that the graph does not use has no state: it stays on the host.
        self._tensors = {name: tensor for name, tensor in tensors.items() if name in types}
        self._types = types

    def upload(self, names: Any = None) -> None:
        """Host to device."""
        with _plain():
            for name in self._tensors if names is None else names:
                tensor = self._checked(name).to(self._dtype(name)).contiguous()
                self._program.write_state(name, tensor.data_ptr(), tensor.nbytes)

    def download(self) -> None:
        """Device to host."""
        with _plain():
            for name in self._tensors:
                tensor = self._checked(name)
                target = (
                    tensor
                    if tensor.is_contiguous() and tensor.dtype == self._dtype(name)
                    else torch.empty(tensor.shape, dtype=self._dtype(name))
                )
                self._program.read_state(name, target.data_ptr(), target.nbytes)
                if target is not tensor:
                    tensor.copy_(target)

    def _dtype(self, name: str) -> torch.dtype:
        return DTYPES[self._types[name][0]]

    def _checked(self, name: str) -> torch.Tensor:
        tensor = self._tensors[name].data
        dtype, shape = self._types[name]
        same = DTYPE_NAMES.get(tensor.dtype) == dtype or _is_wide_statistic(name, dtype, tensor)
        if list(tensor.shape) != list(shape) or not same:
            raise createPoptorchError(
                f"{name} was compiled as {dtype}{list(shape)} but is now "
                f"{DTYPE_NAMES.get(tensor.dtype, tensor.dtype)}{list(tensor.shape)} on the host: "
                "call destroy() to compile the model again."
            )
        return tensor


def _is_wide_statistic(name: str, dtype: str, tensor: torch.Tensor) -> bool:
    """Whether the program keeps in float32 what the host has in half precision."""
    statistic = name.rpartition(".")[2] in ("running_mean", "running_var")
    return statistic and dtype == "f32" and tensor.dtype in (torch.float16, torch.bfloat16)


DTYPES = {
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f64": torch.float64,
    "i64": torch.int64,
    "i32": torch.int32,
    "i16": torch.int16,
    "i8": torch.int8,
    "u8": torch.uint8,
    "bool": torch.bool,
    "u16": torch.uint16,
    "u32": torch.uint32,
    "u64": torch.uint64,
    "c32": torch.complex32,
    "c64": torch.complex64,
    "c128": torch.complex128,
}
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}


def read_state(program: Any, name: str, dtype: str, shape: Any) -> torch.Tensor:
    """The value of a state of ``program``."""
    result = torch.empty(tuple(shape), dtype=DTYPES[dtype])
    program.read_state(name, result.data_ptr(), result.nbytes)
    return result


def write_state(program: Any, name: str, dtype: str, shape: Any, value: torch.Tensor) -> None:
    """Set a state of ``program``."""
    tensor = value.to(DTYPES[dtype]).reshape(tuple(shape)).contiguous()
    program.write_state(name, tensor.data_ptr(), tensor.nbytes)


# Random numbers -----------------------------------------------------------------------------------

_RNG_STATE = "rng"
_NEVER_SEEDED = 67280421310721


def choose_seed(options: Any) -> int:
    """The options' seed; else that of ``torch.manual_seed`` if it was called; else a random one."""
    if options.exists("random_seed"):
        return options.random_seed
    seed = torch.initial_seed()
    if seed != _NEVER_SEEDED:
        return seed & (2**63 - 1)
    return int(torch.empty((), dtype=torch.int64).random_(generator=_fresh_generator()).item())


def _fresh_generator() -> torch.Generator:
    generator = torch.Generator()
    generator.seed()
    return generator


def _rng_entry(program: Any) -> tuple[str, Any] | None:
    return next(
        ((dtype, shape) for name, dtype, shape in program.states if name == _RNG_STATE), None
    )


def seed_rng(program: Any, seed: int) -> None:
    """Start the program's random numbers at ``seed``: its state is a pair (seed, count)."""
    entry = _rng_entry(program)
    if entry is not None:
        signed = (seed + 2**63) % 2**64 - 2**63
        write_state(program, _RNG_STATE, *entry, torch.tensor([signed, 0]))


def read_rng(program: Any) -> list[int]:
    """The state of the random numbers as 32-bit words; empty if the program draws none."""
    entry = _rng_entry(program)
    if entry is None:
        return []
    words = read_state(program, _RNG_STATE, *entry).view(torch.int32)
    return (words.to(torch.int64) % 2**32).tolist()


def write_rng(program: Any, words: list[int]) -> None:
    """Set the state that :func:`read_rng` returned."""
    entry = _rng_entry(program)
    if entry is None:
        return
    signed = torch.tensor([(w + 2**31) % 2**32 - 2**31 for w in words], dtype=torch.int32)
    expected = torch.empty(tuple(entry[1]), dtype=DTYPES[entry[0]])
    if signed.nbytes != expected.nbytes:
        raise createPoptorchError(
            f"The random state has {expected.nbytes // 4} words, not {len(words)}"
        )
    write_state(program, _RNG_STATE, *entry, signed.view(expected.dtype))
