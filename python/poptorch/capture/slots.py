# SPDX-License-Identifier: Apache-2.0
"""The state of a model: which tensors it has, which of them share memory, and a fake for each."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

import torch

from poptorch.base.errors import Error
from poptorch.capture import errors
from poptorch.capture.casting import Casting
from poptorch.weights.transfer import named_state

_HALF = (torch.float16, torch.bfloat16)


@dataclass(eq=False)
class StateSlot:
    """One parameter or buffer, with all the names it is known by.

    Attributes:
        tensor: the user's; inside a Swap the fake that stands for it.
        fake: the fake, once it is made; inside a Swap the user's values.
        owner: the slot that this one is a view of, if any: it has no state of its own then.
    """

    names: list[str]
    tensor: torch.Tensor
    is_param: bool
    fake: torch.Tensor = field(init=False, repr=False)
    owner: "StateSlot | None" = None

    @property
    def trainable(self) -> bool:
        return self.is_param and self.tensor.requires_grad


def collect_state(model: torch.nn.Module) -> list[StateSlot]:
    """The state of a model: one slot per tensor however many names it has, parameters first."""
    found: dict[int, StateSlot] = {}
    for name, tensor, is_param in named_state(model):
        if torch.nn.parameter.is_lazy(tensor):
            raise errors.make_error(
                f"{name.rpartition('.')[0] or type(model).__name__} is a lazy module that has not "
                "been initialised: call the model once on the CPU with example data first."
            )
        slot = found.setdefault(id(tensor), StateSlot([], tensor, is_param))
        if name not in slot.names:
            slot.names.append(name)
    return sorted(found.values(), key=lambda s: not s.is_param)


# Shared memory ------------------------------------------------------------------------------------

_Place = tuple[tuple[int, ...], tuple[int, ...], int, torch.dtype]


def storage_of(tensor: torch.Tensor) -> int | None:
    """What tells the memory of a tensor from that of others; None if it has none."""
    if tensor.layout != torch.strided or tensor.numel() == 0:
        return None
    return tensor.untyped_storage()._cdata


def place_of(tensor: torch.Tensor) -> _Place:
    """Which elements of its memory a tensor has: shape, strides, offset and type."""
    return tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()), tensor.dtype


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """The first byte of a tensor in its memory, and the one after its last."""
    reach = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) + 1
    first = int(tensor.storage_offset()) * tensor.element_size()
    return first, first + reach * tensor.element_size()


def overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors of one storage have an element in common."""
    (a0, a1), (b0, b1) = _extent(a), _extent(b)
    if a1 <= b0 or b1 <= a0:
        return False
    if a.dtype != b.dtype or place_of(a) == place_of(b):
        return True
    seen = torch.zeros(max(a1, b1) // a.element_size(), dtype=torch.bool, device="cpu")
    seen.as_strided(a.shape, a.stride(), a.storage_offset()).fill_(True)
    return bool(seen.as_strided(b.shape, b.stride(), b.storage_offset()).any())


def _may_own(slot: StateSlot, group: list[StateSlot]) -> bool:
    """Whether a program can compute all of a group as views of one slot."""
    tensor = slot.tensor
    first, last = _extent(tensor)
    if not tensor.permute(_by_stride(tensor)).is_contiguous():
        return False
    for other in group:
        begin, end = _extent(other.tensor)
        if begin < first or end > last or other.tensor.dtype != tensor.dtype:
            return False
    return True


def _groups(slots: list[StateSlot]) -> Iterator[list[StateSlot]]:
    """Slots that share elements, directly or through others."""
    by_storage: dict[int, list[StateSlot]] = {}
    for slot in slots:
        storage = storage_of(slot.tensor)
        if storage is not None:
            by_storage.setdefault(storage, []).append(slot)
    for members in by_storage.values():
        groups: list[list[StateSlot]] = []
        for slot in members if len(members) > 1 else ():
            near = [g for g in groups if any(overlap(slot.tensor, s.tensor) for s in g)]
            groups = [g for g in groups if g not in near] + [[slot, *(s for g in near for s in g)]]
        yield from (sorted(g, key=slots.index) for g in groups if len(g) > 1)


def find_owners(slots: list[StateSlot], training: bool) -> list[list[StateSlot]]:
    """Gives each slot that is a view of another its owner.

    Returns groups of slots that share memory in another way. The program has copies of these, so it
    may not write to them.
    """
    shared: list[list[StateSlot]] = []
    for group in _groups(slots):
        trained = [s for s in group if s.trainable and training]
        if len(trained) > 1:
            raise _refusal(
                trained,
                "are parameters of one memory, each with a gradient of its own. Make them one "
                f"parameter, as in `{trained[1].names[0]} = {trained[0].names[0]}`, or give each "
                "its own memory with clone()",
            )
        owner = next((s for s in trained or group if _may_own(s, group)), None)
        if owner is None:
            if trained:
                refuse_shared(group)
            shared.append(group)
            continue
        for slot in group:
            slot.owner = None if slot is owner else owner
    return shared


def refuse_shared(group: Sequence[StateSlot]) -> NoReturn:
    """Raises because the program writes to memory that several states share."""
    raise _refusal(
        group,
        "share memory that the program writes, and are no views of one of them. Give each its own "
        "memory with clone(), or compute one from the other in forward",
    )


def _refusal(group: Sequence[StateSlot], why: str) -> Error:
    names = " and ".join(s.names[0] for s in group)
    return errors.make_error(f"{names} {why}.")


# Fakes --------------------------------------------------------------------------------------------


def _is_half_statistic(slot: StateSlot) -> bool:
    statistic = slot.names[0].rpartition(".")[2] in ("running_mean", "running_var")
    return not slot.is_param and statistic and slot.tensor.dtype in _HALF


def fake_state(slot: StateSlot, casting: Casting | None) -> torch.Tensor:
    """A fake tensor like that of a slot, with its attributes and hooks."""
    tensor = slot.tensor
    dtype = tensor.dtype
    if casting is not None and casting.float_statistics and _is_half_statistic(slot):
        dtype = torch.float32
    return _like(slot, torch.empty_strided(tensor.shape, tensor.stride(), dtype=dtype))


def fake_view(slot: StateSlot) -> torch.Tensor:
    """A fake of a slot that is a view of another, whose fake is part of the graph already."""
    tensor, owner = slot.tensor, slot.owner
    assert owner is not None
    view = owner.fake.detach()
    if place_of(tensor) != place_of(owner.tensor):
        offset = int(tensor.storage_offset() - owner.tensor.storage_offset())
        part = _part(view, tensor, offset)
        view = view.as_strided(tensor.shape, tensor.stride(), offset) if part is None else part
    return _like(slot, view)


def _part(memory: torch.Tensor, like: torch.Tensor, offset: int) -> torch.Tensor | None:
    """The part of a dense tensor with the shape and strides of `like`, from `offset` on.

    It is a chain of views, which can be written to; None if there is no such chain.
    """
    in_memory = memory.permute(_by_stride(memory)).reshape(-1)
    order = _by_stride(like)
    for dim in order:
        size, stride, last = like.shape[dim], like.stride(dim), in_memory.shape[-1]
        if size == 1:
            in_memory = in_memory.unsqueeze(-2)
            continue
        if stride < 1 or last % stride or offset // stride + size > last // stride:
            return None
        in_memory = in_memory.unflatten(-1, (last // stride, stride))
        in_memory = in_memory.narrow(-2, offset // stride, size)
        offset %= stride
    if offset >= in_memory.shape[-1]:
        return None
    found = in_memory.select(-1, offset)
    return found.permute([order.index(dim) for dim in range(like.dim())])


def _by_stride(tensor: torch.Tensor) -> list[int]:
    """Dimensions in the order of memory."""
    strides = tensor.stride()
    return sorted(range(tensor.dim()), key=lambda d: -strides[d])


def _like(slot: StateSlot, fake: torch.Tensor) -> torch.Tensor:
    """`fake` with the kind, attributes and gradient flag of a slot's tensor."""
    tensor = slot.tensor
    if slot.is_param:
        fake = torch.nn.Parameter(fake, requires_grad=tensor.requires_grad)
    else:
        fake.requires_grad_(tensor.requires_grad)
    for key, value in getattr(tensor, "__dict__", {}).items():
        with contextlib.suppress(Exception):
            setattr(fake, key, value)
    return fake
