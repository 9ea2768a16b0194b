# SPDX-License-Identifier: Apache-2.0
"""Values that are known while a model is being captured: tensors made from Python data alone.

Capture runs on fake tensors. For those that derive only from constants it remembers how to compute
them. So Python may branch on them, and a result whose size depends on them has a static size.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from poptorch.capture import _torch_private as private
from poptorch.capture.calls.handler import Args, Function, Kwargs

aten = torch.ops.aten

# Larger tensors are data, not decisions; a recipe to recompute them would keep them alive.
MOST_ELEMENTS = 1 << 20
# The last two arrive whole in inference mode.
_READS = {aten._local_scalar_dense.default, aten.item.default, aten.is_nonzero.default}
_INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64)
_UNDEFINED = {"aten::empty", "aten::empty_strided", "aten::empty_like", "aten::new_empty"}


class Recipe:
    """How a known tensor was made, and its value once somebody asked."""

    __slots__ = ("func", "args", "index", "version", "random", "value")

    def __init__(
        self, func: Function, args: Any, index: int | None, version: int, random: bool = False
    ) -> None:
        self.func = func
        self.args = args  # (args, kwargs) with recipes and values in place of tensors
        self.index = index  # of a result among several
        self.version = version  # of the tensor when it had this value
        self.random = random  # known only to those who take a number drawn now
        self.value: Tensor | None = None

    def compute(self) -> Tensor:
        """The value, computed on real tensors; the modes of capture must be off."""
        if self.value is None:
            args, kwargs = pytree.tree_map_only(Recipe, Recipe.compute, self.args)
            out = self.func(*args, **kwargs)
            self.value = out if self.index is None else out[self.index]
            self.args = None
        return self.value


def _noted(tensor: Tensor) -> Recipe | None:
    """The recipe of a fake tensor, whether or not it was written to since."""
    return getattr(tensor, "_tessera_recipe", None)


def _note(tensor: Tensor, recipe: Recipe) -> None:
    tensor._tessera_recipe = recipe  # type: ignore[attr-defined]  # tensors take attributes


def copy_note(source: Tensor, target: Tensor) -> None:
    """`target` has the value of `source`, if that is known."""
    recipe = _noted(source)
    if recipe is not None and recipe.version == source._version:
        made = Recipe(_same, ((recipe,), {}), None, target._version, recipe.random)
        _note(target, made)


def _same(tensor: Tensor) -> Tensor:
    return tensor


def is_noted(tensor: Tensor) -> bool:
    """Whether the value of a tensor was known once."""
    return _noted(tensor) is not None


def _recipe_of(tensor: Tensor) -> Recipe | Tensor | None:
    if not isinstance(tensor, private.FakeTensor):
        return tensor  # a real tensor is its own value
    found = _noted(tensor)
    return found if found is not None and found.version == tensor._version else None


def value_of(tensor: Tensor, drawn: bool = False) -> Tensor | None:
    """The value of a tensor if it is known, or None; with `drawn` also of a random number."""
    recipe = _recipe_of(tensor)
    if isinstance(recipe, Recipe):
        return private.without_modes(recipe.compute) if drawn or not recipe.random else None
    return recipe


def is_dynamic(value: Any) -> bool:
    """Whether a value is one integer that is only known when the program runs."""
    return (
        isinstance(value, private.FakeTensor)
        and value.numel() == 1
        and value.dtype in _INTEGERS
        and value_of(value) is None
    )


def draws(func: Function, args: Args) -> bool:
    """Whether a call lets Python read a value that is known only by drawing random numbers."""
    recipe = _recipe_of(args[0]) if func in _READS else None
    return isinstance(recipe, Recipe) and recipe.random


def remember(func: torch._ops.OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    """Notes how the results of a call were made, if all its operands are known."""
    if func._schema.is_mutable:
        _remember_write(func, args, kwargs)
        return
    if func.name().partition(".")[0] in _UNDEFINED:
        return
    made = _recipes((args, kwargs))
    if made is None:
        return
    random = private.is_random(func) or _any_random(made)
    most = 1 if random else MOST_ELEMENTS
    many = isinstance(out, (list, tuple))
    for i, result in enumerate(out if many else [out]):
        if isinstance(result, private.FakeTensor) and result.numel() <= most:
            index = i if many else None
            _note(result, Recipe(func, made, index, result._version, random))


def _any_random(tree: Any) -> bool:
    return any(isinstance(r, Recipe) and r.random for r in pytree.tree_leaves(tree))


def _recipes(tree: Any) -> Any:
    """The tree with recipes and values in place of its tensors, or None if one is unknown."""
    leaves, spec = pytree.tree_flatten(tree)
    found = [_recipe_of(t) if isinstance(t, torch.Tensor) else t for t in leaves]
    if any(r is None and t is not None for r, t in zip(found, leaves, strict=True)):
        return None
    return pytree.tree_unflatten(found, spec)


def _remember_write(func: torch._ops.OpOverload, args: Args, kwargs: Kwargs) -> None:
    """A write into a known tensor, or into a view of one, makes another known tensor."""
    target = args[0] if args else None
    if not isinstance(target, private.FakeTensor):
        return
    base = target if target._base is None else target._base
    before = _noted(base)
    rest = _recipes((args[1:], kwargs))
    if before is None or rest is None or before.version != base._version:
        return
    place = target.size(), target.stride(), target.storage_offset()

    def write(whole: Tensor, *others: Any, **named: Any) -> Tensor:
        whole = whole.clone()
        func(whole.as_strided(*place), *others, **named)
        return whole

    # the version of a tensor and its views goes up by one when this call returns
    version = base._version + 1
    made = ((before, *rest[0]), rest[1])
    _note(base, Recipe(write, made, None, version, _any_random(made)))


def _lifted(value: Tensor) -> Tensor:
    """A known value as a constant of the graph."""
    out = aten.lift_fresh_copy.default(value)
    recipe = Recipe(aten.lift_fresh_copy.default, None, None, out._version)
    recipe.value = value
    _note(out, recipe)
    return out


def _indices_of(mask: Tensor) -> list[Tensor]:
    """The indices where a known mask holds, one tensor per dim."""
    return [_lifted(w) for w in private.without_modes(lambda: mask.nonzero(as_tuple=True))]


def _without_masks(indices: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Known boolean masks among the indices of a tensor as the indices where they hold."""
    found: list[Tensor | None] = []
    for index in indices:
        value = value_of(index) if index is not None and _is_mask(index) else None
        found += [index] if value is None else _indices_of(value)
    return found


def _masked_select(x: Tensor, mask: Tensor, known: Tensor) -> Tensor:
    shape = torch.broadcast_shapes(x.shape, mask.shape)
    whole = private.without_modes(lambda: known.expand(shape))
    return aten.index.Tensor(x.expand(shape), _indices_of(whole))


def static_form(func: torch._ops.OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """The result of a call whose shape or value depends on data, if those data are known.

    None if they are not, or if the call is of another kind.
    """
    if func is aten.masked_select.default:
        mask = value_of(args[1])
        return None if mask is None else _masked_select(args[0], args[1], mask)
    if func in _INDEXED and any(_is_mask(i) for i in args[1]):
        indices = _without_masks(args[1])
        if not any(_is_mask(i) for i in indices):
            return func(args[0], indices, *args[2:], **kwargs)
    if func not in _FROM_DATA:
        return None
    leaves, spec = pytree.tree_flatten((args, kwargs))
    known = [value_of(t, func in _READS) if isinstance(t, torch.Tensor) else t for t in leaves]
    if any(v is None and t is not None for v, t in zip(known, leaves, strict=True)):
        return None
    own, named = pytree.tree_unflatten(known, spec)
    out = private.without_modes(lambda: func(*own, **named))
    return pytree.tree_map_only(torch.Tensor, _lifted, out)


def _is_mask(index: Tensor | None) -> bool:
    return index is not None and index.dtype in (torch.bool, torch.uint8)


_INDEXED = {
    aten.index.Tensor,
    aten.index_put.default,
    aten.index_put_.default,
    aten._index_put_impl_.default,
}
_FROM_DATA = {
    *_READS,
    aten.equal.default,
    aten.allclose.default,
    aten.nonzero.default,
    aten._unique.default,
    aten._unique2.default,
    aten.unique_dim.default,
    aten.unique_consecutive.default,
    aten.bincount.default,
    aten.repeat_interleave.Tensor,
}
MAYBE_STATIC = _FROM_DATA | _INDEXED | {aten.masked_select.default}
