# SPDX-License-Identifier: Apache-2.0
"""The state of a model: which tensors it has, which of them look at one memory, and the fakes that
stand for them while the model is captured.

A fake takes the place of a tensor within the tensor object itself. So it is found by every way that
forward may take to it: a module, a list, a closure, a helper object.
"""

import contextlib
from dataclasses import dataclass

import torch

from poptorch._weights import named_state

from . import _torch_private as private
from . import errors

_HALF = (torch.float16, torch.bfloat16)


@dataclass(eq=False)
class StateSlot:
    """One parameter or buffer, with all the names it is known by.

    Attributes:
        tensor: the user's; inside of a Swap the fake that stands for it.
        fake: the fake; inside of a Swap the user's values.
        owner: the slot that this one is a view of, if any: it has no state of its own then.
    """

    names: list
    tensor: torch.Tensor
    is_param: bool
    fake: torch.Tensor = None
    owner: "StateSlot | None" = None

    @property
    def trainable(self):
        return self.is_param and self.tensor.requires_grad


def collect_state(model):
    """StateSlots of a model, parameters before buffers, one per tensor however many names it
    has."""
    found = {}
    for name, tensor, is_param in named_state(model):
        if isinstance(tensor, torch.nn.parameter.UninitializedTensorMixin):
            raise errors.make_error(
                f"{name.rpartition('.')[0] or type(model).__name__} is a lazy module that has not "
                "been initialised: call the model once on the CPU with example data first."
            )
        slot = found.setdefault(id(tensor), StateSlot([], tensor, is_param))
        if name not in slot.names:
            slot.names.append(name)
    return sorted(found.values(), key=lambda s: not s.is_param)


# One memory ---------------------------------------------------------------------------------------


def storage_of(tensor):
    """What tells the memory of a tensor from that of others; None if it has none."""
    if tensor.layout != torch.strided or tensor.numel() == 0:
        return None
    return tensor.untyped_storage()._cdata


def place_of(tensor):
    """Where in its memory a tensor lies."""
    return tuple(tensor.shape), tensor.stride(), tensor.storage_offset(), tensor.dtype


def _extent(tensor):
    """First and last byte."""
    reach = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) + 1
    first = tensor.storage_offset() * tensor.element_size()
    return first, first + reach * tensor.element_size()


def overlap(a, b):
    """Whether two tensors of one storage have an element in common."""
    (a0, a1), (b0, b1) = _extent(a), _extent(b)
    if a1 <= b0 or b1 <= a0:
        return False
    if a.dtype != b.dtype or place_of(a) == place_of(b):
        return True
    seen = torch.zeros(max(a1, b1) // a.element_size(), dtype=torch.bool, device="cpu")
    seen.as_strided(a.shape, a.stride(), a.storage_offset()).fill_(True)
    return bool(seen.as_strided(b.shape, b.stride(), b.storage_offset()).any())


def _may_own(slot, group):
    """Whether all of a group are views of one slot, as far as a program can say so."""
    tensor = slot.tensor
    first, last = _extent(tensor)
    if not tensor.permute(_by_stride(tensor)).is_contiguous():
        return False
    for other in group:
        begin, end = _extent(other.tensor)
        if begin < first or end > last or other.tensor.dtype != tensor.dtype:
            return False
    return True


def _groups(slots):
    """Slots that share elements, directly or through others."""
    by_storage = {}
    for slot in slots:
        by_storage.setdefault(storage_of(slot.tensor), []).append(slot)
    by_storage.pop(None, None)
    for members in by_storage.values():
        groups = []
        for slot in members if len(members) > 1 else ():
            near = [g for g in groups if any(overlap(slot.tensor, s.tensor) for s in g)]
            groups = [g for g in groups if g not in near] + [[slot, *(s for g in near for s in g)]]
        yield from (sorted(g, key=slots.index) for g in groups if len(g) > 1)


def find_owners(slots, training):
    """Gives each slot that is a view of another its owner.

    Returns groups of slots that share memory in another way: copies of theirs are as good only as
    long as the program writes none of them.
    """
    apart = []
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
            apart.append(group)
            continue
        for slot in group:
            slot.owner = None if slot is owner else owner
    return apart


def refuse_shared(group):
    """Raises because the program writes to memory that several states share."""
    raise _refusal(
        group,
        "share memory that the program writes, and are no views of one of them. Give each its own "
        "memory with clone(), or compute one from the other in forward",
    )


def _refusal(group, why):
    names = " and ".join(s.names[0] for s in group)
    return errors.make_error(f"{names} {why}.")


# Fakes --------------------------------------------------------------------------------------------


def _is_half_statistic(slot):
    statistic = slot.names[0].rpartition(".")[2] in ("running_mean", "running_var")
    return not slot.is_param and statistic and slot.tensor.dtype in _HALF


def fake_state(slot, casting):
    """A fake tensor like that of a slot, with its attributes and hooks."""
    tensor = slot.tensor
    dtype = tensor.dtype
    if casting is not None and casting.float_statistics and _is_half_statistic(slot):
        dtype = torch.float32
    return _like(slot, torch.empty_strided(tensor.shape, tensor.stride(), dtype=dtype))


def fake_view(slot):
    """A fake of a slot that is a view of another, whose fake is part of the graph already."""
    tensor, owner = slot.tensor, slot.owner
    view = owner.fake.detach()
    if place_of(tensor) != place_of(owner.tensor):
        offset = tensor.storage_offset() - owner.tensor.storage_offset()
        part = _part(view, tensor, offset)
        view = view.as_strided(tensor.shape, tensor.stride(), offset) if part is None else part
    return _like(slot, view)


def _part(memory, like, offset):
    """The part of a dense tensor that lies in its memory as `like` does, from `offset` on, made of
    views through which it may also be written. None if there are none."""
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


def _by_stride(tensor):
    """Dimensions in the order of memory."""
    return sorted(range(tensor.dim()), key=lambda d: -tensor.stride(d))


def _like(slot, fake):
    tensor = slot.tensor
    if slot.is_param:
        fake = torch.nn.Parameter(fake, requires_grad=tensor.requires_grad)
    else:
        fake.requires_grad_(tensor.requires_grad)
    for key, value in getattr(tensor, "__dict__", {}).items():
        with contextlib.suppress(Exception):
            setattr(fake, key, value)
    return fake


# Swap ---------------------------------------------------------------------------------------------


def _made_by_hooks(module):
    """Attributes that a weight norm, a spectral norm or a pruning makes anew in every call."""
    hooks = module._forward_pre_hooks.values()
    return {getattr(h, "name", getattr(h, "_tensor_name", None)) for h in hooks}


def _version(tensor):
    """How often it was changed in place; tensors made in inference mode do not know."""
    return 0 if tensor.is_inference() else tensor._version


def _replace(tensors, wanted):
    """Makes a module's dict of tensors equal to another; those of scripted modules can't be
    cleared."""
    for name in [n for n in tensors.keys() if n not in wanted]:  # noqa: SIM118
        del tensors[name]
    for name, tensor in wanted.items():
        tensors[name] = tensor


class Swap:
    """Fakes in the place of a model's state, and everything back afterwards."""

    def __init__(self, model, slots):
        self.model = model
        self.slots = slots
        self.names = {id(s.tensor): s.names[0] for s in slots}
        self.saved = []
        self.plain = []  # (name, module, attribute, tensor, version) of tensors that are no state

    def __enter__(self):
        for prefix, module in self.model.named_modules():
            attributes = dict(module.__dict__)
            made = _made_by_hooks(module)
            for key, value in attributes.items():
                state = id(value) in self.names or key in made
                if isinstance(value, torch.Tensor) and not state:
                    name = f"{prefix}.{key}" if prefix else key
                    self.plain.append((name, module, key, value, _version(value)))
            kinds = (("Parameter", module._parameters), ("Buffer", module._buffers))
            self.saved.append((module, attributes, [(k, d, dict(d)) for k, d in kinds]))
        self._exchange()
        self._put([(d, before) for _, _, kinds in self.saved for _, d, before in kinds])
        return self

    def _exchange(self):
        for slot in self.slots:
            private.exchange(slot.tensor, slot.fake)

    @staticmethod
    def _put(dicts):
        """Scripted modules refer to what is in a tensor object, not to the object."""
        for tensors, wanted in dicts:
            _replace(tensors, wanted)

    @contextlib.contextmanager
    def undone(self):
        """The model has its own tensors again."""
        now = [(d, dict(d), before) for _, _, kinds in self.saved for _, d, before in kinds]
        self._exchange()
        self._put([(d, before) for d, _, before in now])
        try:
            yield
        finally:
            self._exchange()
            self._put([(d, faked) for d, faked, _ in now])

    def fake_of(self, tensor):
        """What stays a fake when the swap ends, of a tensor that forward has."""
        slot = next((s for s in self.slots if s.tensor is tensor), None)
        return tensor if slot is None else slot.fake

    def problems(self):
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

    def frozen(self):
        """Names of tensors that forward changes although they are constants of the program."""
        return [
            name
            for name, module, key, tensor, version in self.plain
            if module.__dict__.get(key) is not tensor or _version(tensor) != version
        ]

    def __exit__(self, *_exc):
        self._exchange()
        for module, attributes, kinds in self.saved:
            for _, tensors, before in kinds:
                _replace(tensors, before)
            # Fake tensors kept on the module (caches, weights made by hooks) would outlive the
            # capture.
            for key, value in list(module.__dict__.items()):
                if isinstance(value, private.FakeTensor):
                    if key in attributes:
                        module.__dict__[key] = attributes[key]
                    else:
                        del module.__dict__[key]
