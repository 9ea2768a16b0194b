# SPDX-License-Identifier: Apache-2.0
"""What a step does to the host: ``self.log``, torchmetrics objects, lists and attributes of the
module. Recorded while the step is captured, done with real values after every run."""

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch

from lightning_ipu._results import Results
from lightning_ipu._tree import Slot, Text, filled, mapped, taken, tensors_of

_FROZEN = ("current_epoch", "global_step")
_FROZEN_CALLS = ("optimizers", "lr_schedulers")
_METRIC_CALLS = ("forward", "update", "compute", "reset")
# Attributes of every module, which are not the user's.
_OWN = frozenset(torch.nn.Module().__dict__) | {"_trainer", "_fabric", "_log_hyperparams"}


class MetricValue:
    """Stands for the value of a metric while a step is captured: it can be logged, and no more."""

    def __init__(self, event: int, key: str | None = None) -> None:
        self.event = event
        self.key = key

    def real(self, values: dict[int, Any]) -> Any:
        """The value itself, after the metric was called."""
        return values[self.event] if self.key is None else values[self.event][self.key]

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(_ONLY_LOGGED)


_ONLY_LOGGED = (
    "The value of a torchmetrics object is known after a step has run: the step can only log it. "
    "Compute with the functions of torchmetrics.functional instead."
)


def _refuse(self: MetricValue, *other: Any) -> Any:
    raise TypeError(_ONLY_LOGGED)


for _name in "add radd sub rsub mul rmul truediv neg float bool lt le gt ge".split():
    setattr(MetricValue, f"__{_name}__", _refuse)


class FrozenIndex(int):
    """The number of the batch that a step is captured with; a decision made by it is for ever."""

    __hash__ = int.__hash__


def _deciding(name: str, base: type, what: str) -> Callable[..., Any]:
    plain = getattr(base, name)

    def use(self: Any, *other: Any) -> Any:
        warn_of_user(
            f"A step decides something by {what}, but is compiled once: the program keeps what was "
            f"decided for {base(self)!r}."
        )
        return plain(self, *other)

    return use


for _name in ("__mod__", "__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__bool__"):
    setattr(FrozenIndex, _name, _deciding(_name, int, "its batch_idx"))
for _name in ("__eq__", "__ne__", "__add__", "__format__", "__contains__", "startswith", "split"):
    setattr(Text, _name, _deciding(_name, str, "a text of its batch"))
Text.__hash__ = str.__hash__  # type: ignore[method-assign]

Effect = Callable[[Results, dict[int, Any]], None]


class Recorder:
    """Collects the effects of one step and the tensors they need."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.tensors: list[torch.Tensor] = []
        self.effects: list[Effect] = []
        self._module = module

    @contextmanager
    def recording(self) -> Iterator[None]:
        """While inside, the module's effects are recorded instead of done."""
        module = self._module
        before = _containers(module)
        metrics = [(metric, metric.__dict__.copy()) for metric in _metrics(module)]
        for metric, _ in metrics:
            for name in _METRIC_CALLS:
                metric.__dict__[name] = self._metric_call(metric, name)
        try:
            with _as_subclass(module, self._overrides()), _as_subclass(module._trainer, _frozen()):
                yield
        finally:
            for metric, own in metrics:
                for name in _METRIC_CALLS:  # torchmetrics has some of them there itself
                    metric.__dict__.pop(name)
                    if name in own:
                        metric.__dict__[name] = own[name]
            self._take_changes(before)

    def _overrides(self) -> dict[str, Any]:
        recorder = self

        def log(self: Any, name: str, value: Any, *args: Any, **kwargs: Any) -> None:
            recorder._log(name, value, args, kwargs)

        return {"log": log, **{name: _frozen_call(name) for name in _FROZEN_CALLS}}

    # Recording -----------------------------------------------------------------------------------

    def _keep(self, value: Any) -> Any:
        return taken(value, self.tensors)

    def _log(self, name: str, value: Any, args: Any, kwargs: dict[str, Any]) -> None:
        for tensor in tensors_of(value) if isinstance(value, (torch.Tensor, dict)) else ():
            if tensor.numel() != 1:
                raise ValueError(
                    f"`self.log({name!r}, ...)` got a tensor of shape {tuple(tensor.shape)}: it "
                    "must have a single element. Log its `.mean()`, for example."
                )
        # Not copied: a metric is a module, which is no structure.
        kept = self._keep(value) if isinstance(value, (torch.Tensor, dict)) else value
        names = ("prog_bar", "logger", "on_step", "on_epoch", "reduce_fx")
        named = {**dict(zip(names, args, strict=False)), **kwargs}
        reduce_fx = named.get("reduce_fx", "mean")
        module: Any = self._module  # a LightningModule

        def replay(results: Results, values: dict[int, Any]) -> None:
            real = kept
            if isinstance(kept, Slot):
                real = results.reduced(kept.index, reduce_fx)
            elif isinstance(kept, MetricValue):
                real = kept.real(values)
            elif isinstance(kept, dict):
                real = mapped(
                    kept,
                    lambda v: results.reduced(v.index, reduce_fx) if isinstance(v, Slot) else v,
                )
            if named.get("batch_size") is not None:
                module.log(
                    name, real, **{**named, "batch_size": named["batch_size"] * results.count}
                )
            else:
                module.log(name, real, **named)

        self.effects.append(replay)

    def _metric_call(self, metric: Any, method: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            event = len(self.effects)
            start = len(self.tensors)
            kept = self._keep((args, kwargs))
            scalars = any(t.dim() == 0 for t in self.tensors[start:])

            def replay(results: Results, values: dict[int, Any]) -> None:
                function = getattr(metric, method)
                if scalars:
                    returned = [
                        function(*a, **k)
                        for a, k in (filled(kept, *part) for part in results.micro_batches())
                    ]
                    if method == "forward":
                        values[event] = _mean(returned)
                else:
                    a, k = filled(kept, results.tensors, results.columns)
                    values[event] = function(*a, **k)

            self.effects.append(replay)
            if method not in ("forward", "compute"):
                return None
            if hasattr(metric, "keys"):  # a collection
                return {key: MetricValue(event, key) for key in metric.keys()}
            return MetricValue(event)

        return call

    # Lists and attributes ------------------------------------------------------------------------

    def _take_changes(self, before: dict[int, tuple[Any, Any]]) -> None:
        """Replace tensors that the capture left in lists and attributes by recorded effects."""
        module = self._module
        for container, _ in _containers(module).values():
            old = before.get(id(container), (None, None))[1]
            if isinstance(container, list):
                self._take_appended(container, len(old) if old is not None else 0)
                continue
            for key, value in list(container.items()):
                if key in _OWN and "_parameters" in container:
                    continue  # torch's own part of a module
                if old is not None and key in old and old[key] is value:
                    continue
                if not _has_fakes(value) or isinstance(value, list) and id(value) in before:
                    continue
                kept = self._keep(value)
                if old is not None and key in old:
                    container[key] = old[key]
                else:
                    del container[key]
                self.effects.append(_setter(container, key, kept))

    def _take_appended(self, items: list[Any], length: int) -> None:
        added = items[length:]
        if not any(_has_fakes(item) for item in added):
            return
        kept = self._keep(added)
        del items[length:]

        def replay(results: Results, values: dict[int, Any]) -> None:
            for part in results.micro_batches():
                items.extend(filled(kept, *part))

        self.effects.append(replay)


@contextmanager
def _as_subclass(instance: Any, overrides: dict[str, Any]) -> Iterator[None]:
    """While inside, an object is of a class of its own that overrides some attributes."""
    cls = type(instance)
    names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__}
    instance.__class__ = type(cls.__name__, (cls,), {**names, **overrides})
    try:
        yield
    finally:
        instance.__class__ = cls


def _frozen() -> dict[str, Any]:
    """Attributes of a trainer that say where it is."""

    def reader(name: str) -> property:
        def read(self: Any) -> Any:
            value = getattr(super(type(self), self), name)
            warn_of_user(
                f"`{name}` is read in a step, which is compiled once: the program keeps its value "
                f"{value}. Pass what changes in the batch."
            )
            return value

        return property(read)

    return {name: reader(name) for name in _FROZEN}


def _frozen_call(name: str) -> Callable[..., Any]:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        warn_of_user(
            f"`self.{name}()` is called in a step, which is compiled once: what is read from it "
            "stays as it is now. Read it in `on_train_batch_end`."
        )
        return getattr(super(type(self), self), name)(*args, **kwargs)

    return call


def _setter(container: dict[Any, Any], key: Any, kept: Any) -> Effect:
    def replay(results: Results, values: dict[int, Any]) -> None:
        *_, last = results.micro_batches()
        container[key] = filled(kept, *last)

    return replay


def _containers(module: Any) -> dict[int, tuple[Any, Any]]:
    """Attributes of the user's modules, and lists and dicts that they hold, each with a copy."""
    found: dict[int, tuple[Any, Any]] = {}

    def walk(value: Any) -> None:
        if id(value) in found or type(value) not in (list, dict):
            return
        found[id(value)] = (value, value.copy())
        for item in value if type(value) is list else value.values():
            walk(item)

    for child in module.modules():
        own = {k: v for k, v in child.__dict__.items() if k not in _OWN}
        found[id(child.__dict__)] = (child.__dict__, own)
        for value in own.values():
            walk(value)
    return found


def _has_fakes(value: Any) -> bool:
    found = False

    def look(leaf: Any) -> None:
        nonlocal found
        # What capture makes is a tensor of a class of its own, or has one inside.
        found = found or type(leaf) is Text or (isinstance(leaf, torch.Tensor) and _is_traced(leaf))

    mapped(value, look)
    return found


def _is_traced(tensor: torch.Tensor) -> bool:
    return type(tensor) not in (torch.Tensor, torch.nn.Parameter) or torch._is_functional_tensor(
        tensor
    )


def _mean(values: list[Any]) -> Any:
    if isinstance(values[0], dict):
        return {key: _mean([value[key] for value in values]) for key in values[0]}
    return torch.stack([torch.as_tensor(value) for value in values]).mean()


def _metrics(module: torch.nn.Module) -> list[Any]:
    torchmetrics = sys.modules.get("torchmetrics")
    if torchmetrics is None:
        return []
    kinds = (torchmetrics.Metric, torchmetrics.MetricCollection)
    found: list[Any] = []
    inside: set[int] = set()
    for child in module.modules():
        if isinstance(child, kinds) and id(child) not in inside:
            found.append(child)
            inside.update(id(m) for m in child.modules())
    return found


_PACKAGES = ("lightning_ipu", "lightning", "pytorch_lightning", "torch", "poptorch", "warnings")


def warn_of_user(text: str) -> None:
    """Warn at the line of the user's that led here."""
    frame: FrameType | None = sys._getframe(1)
    level = 2
    while frame is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] not in _PACKAGES:
            break
        frame, level = frame.f_back, level + 1
    warnings.warn(text, stacklevel=level)
