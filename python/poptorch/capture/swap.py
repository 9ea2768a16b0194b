# SPDX-License-Identifier: Apache-2.0
"""Fakes in place of the state of a model while it is captured.

A fake takes the place of a tensor within the tensor object itself. So it is found by every way that
forward may take to it: a module, a list, a closure, a helper object.
"""

import contextlib
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, NamedTuple

import torch

from poptorch.capture import _torch_private as private
from poptorch.capture.slots import StateSlot

_Tensors = MutableMapping[str, torch.Tensor | None]  # a module's parameters or buffers


class _Dict(NamedTuple):
    """The parameters or the buffers of a module, and what they were before."""

    kind: str
    tensors: _Tensors
    before: dict[str, torch.Tensor | None]


class _Saved(NamedTuple):
    """A module as it was before."""

    module: torch.nn.Module
    attributes: dict[str, Any]
    dicts: list[_Dict]


class _Plain(NamedTuple):
    """A tensor that is an attribute but no state, and its version before forward."""

    name: str
    module: torch.nn.Module
    key: str
    tensor: torch.Tensor
    version: int


class Swap:
    """Fakes in the place of a model's state, and everything back afterwards."""

    def __init__(self, model: torch.nn.Module, slots: list[StateSlot]) -> None:
        self.model = model
        self.slots = slots
        self.names = {id(s.tensor): s.names[0] for s in slots}
        self.saved: list[_Saved] = []
        self.plain: list[_Plain] = []

    def __enter__(self) -> "Swap":
        for prefix, module in self.model.named_modules():
            attributes = dict(module.__dict__)
            made = _made_by_hooks(module)
            for key, value in attributes.items():
                state = id(value) in self.names or key in made
                if isinstance(value, torch.Tensor) and not state:
                    name = f"{prefix}.{key}" if prefix else key
                    self.plain.append(_Plain(name, module, key, value, _version(value)))
            self.saved.append(
                _Saved(
                    module,
                    attributes,
                    [
                        _Dict("Parameter", module._parameters, dict(module._parameters)),
                        _Dict("Buffer", module._buffers, dict(module._buffers)),
                    ],
                )
            )
        self._exchange()
        self._put_back()
        return self

    def _exchange(self) -> None:
        for slot in self.slots:
            private.exchange(slot.tensor, slot.fake)

    def _put_back(self) -> None:
        """Puts the tensor objects of before into the modules.

        Not only when the swap ends: scripted modules refer to what is in a tensor object, so that
        each exchange has to be shown to them.
        """
        for saved in self.saved:
            for _, tensors, before in saved.dicts:
                _replace(tensors, before)

    @contextlib.contextmanager
    def undone(self) -> Iterator[None]:
        """The model has its own tensors again."""
        now = [(d.tensors, dict(d.tensors)) for saved in self.saved for d in saved.dicts]
        self._exchange()
        self._put_back()
        try:
            yield
        finally:
            self._exchange()
            for tensors, faked in now:
                _replace(tensors, faked)

    def fake_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor object that holds the fake of `tensor` when the swap has ended."""
        slot = next((s for s in self.slots if s.tensor is tensor), None)
        return tensor if slot is None else slot.fake

    def slot_of(self, tensor: torch.Tensor) -> StateSlot | None:
        """The parameter or buffer that a fake stands for; one that is a part of it is none."""

        def what(t: torch.Tensor) -> tuple[Any, ...]:
            return private.storage_id(t), t.shape, t.stride(), t.storage_offset()

        return next((s for s in self.slots if what(s.tensor) == what(tensor)), None)

    def problems(self) -> list[str]:
        """Messages about parameters and buffers that forward replaced or removed."""
        found = []
        for module, _, kinds in self.saved:
            if isinstance(module, torch.nn.modules.batchnorm._NormBase):
                continue
            for kind, tensors, before in kinds:
                for name, tensor in before.items():
                    if tensor is None:
                        continue
                    full = self.names[id(tensor)]
                    if name not in tensors:
                        what = "removed from"
                    elif tensors[name] is not tensor:
                        what = "reassigned within"
                    else:
                        continue
                    found.append(
                        f"{kind} {full} is {what} the model when calling the forward method"
                    )
        return found

    def frozen(self) -> list[str]:
        """Names of tensors that forward changes although they are constants of the program."""
        return [
            name
            for name, module, key, tensor, version in self.plain
            if module.__dict__.get(key) is not tensor or _version(tensor) != version
        ]

    def __exit__(self, *_exc: object) -> None:
        self._exchange()
        self._put_back()
        for module, attributes, _ in self.saved:
            # Fake tensors kept on the module (caches, weights made by hooks) would outlive the
            # capture.
            for key, value in list(module.__dict__.items()):
                if isinstance(value, private.FakeTensor):
                    if key in attributes:
                        module.__dict__[key] = attributes[key]
                    else:
                        del module.__dict__[key]


def _made_by_hooks(module: torch.nn.Module) -> set[str | None]:
    """Attributes that a weight norm, a spectral norm or a pruning makes anew in every call."""
    hooks = module._forward_pre_hooks.values()
    return {getattr(h, "name", getattr(h, "_tensor_name", None)) for h in hooks}


def _version(tensor: torch.Tensor) -> int:
    """How often it was changed in place; tensors made in inference mode do not know."""
    return 0 if tensor.is_inference() else tensor._version


def _replace(tensors: _Tensors, wanted: Mapping[str, torch.Tensor | None]) -> None:
    """Makes a module's dict of tensors equal to another.

    By items, because those of scripted modules can't be cleared.
    """
    for name in [n for n in tensors.keys() if n not in wanted]:  # noqa: SIM118
        del tensors[name]
    for name, tensor in wanted.items():
        tensors[name] = tensor
