# SPDX-License-Identifier: Apache-2.0
"""Rows of the core as ATen ops: the way back of `lower/`, for compositions.

Rows have the names and the arguments of ATen ops, so most are called as they are.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from poptorch import _core

aten = torch.ops.aten

Stated = tuple[torch.dtype, tuple[int, ...]]

#: Rows beside the pointwise ones that mean what the ATen op of their name means.
_AS_ATEN = frozenset(
    """
    diagonal expand permute select slice transpose unfold unsqueeze
    mm bmm addmm baddbmm convolution native_layer_norm native_group_norm
    _softmax _softmax_backward_data _log_softmax _log_softmax_backward_data
    sum mean amax amin argmax argmin any all cumsum cumprod logcumsumexp cummax cummin
    sort topk kthvalue
    embedding embedding_dense_backward gather index index_add index_copy index_fill index_put
    index_select masked_scatter put scatter_add scatter.src scatter.value take
    cat constant_pad_nd diagonal_scatter flip slice_scatter im2col col2im
    """.split()
)

#: Random numbers come from a state of the program, which a composition does not have.
_WITHOUT_ATEN = frozenset(["uniform", "round_random", "nextafter"])


def result_of(op: str, args: list[Any], stated: list[Stated]) -> list[Tensor]:
    """The results of a row on real arguments; `stated` are their types."""
    own = _OWN.get(op)
    if own is not None:
        return [own(stated[0], *args)]
    if op in _pointwise() and op not in _WITHOUT_ATEN:
        return [_pointwise_result(op, args, stated[0])]
    if op not in _AS_ATEN:
        raise NotImplementedError("a composition can't have it")
    found = _call(op, args)
    return list(found) if isinstance(found, (list, tuple)) else [found]


@functools.cache
def _pointwise() -> frozenset[str]:
    return frozenset(row.name for row in _core.rows() if row.kind == "pointwise")


def _pointwise_result(op: str, args: list[Any], stated: Stated) -> Tensor:
    dtype, shape = stated
    if op == "where":
        args = [_tensor(args[0], torch.bool).to(torch.bool), *args[1:]]
    found = _call(op, args)
    if found.dtype is not dtype:
        found = found.to(dtype)
    return found if tuple(found.shape) == shape else found.expand(shape)


# Which overload


def _call(op: str, args: list[Any]) -> Any:
    """Calls the ATen op of a row: the overload that takes the arguments with fewest numbers made
    tensors."""
    name, _, overload = op.partition(".")
    packet = getattr(aten, name)
    names = [overload] if overload else packet.overloads()
    best: tuple[int, Any, list[Any]] | None = None
    for candidate in names:
        target = getattr(packet, candidate)
        bound = _bind(target._schema, args)
        if bound is not None and (best is None or bound[0] < best[0]):
            best = (bound[0], target, bound[1])
    if best is None:
        raise TypeError("its arguments fit no form of the ATen op")
    _, target, values = best
    params = target._schema.arguments
    given = list(zip(params, values, strict=False))
    return target(
        *[v for p, v in given if not p.kwarg_only],
        **{p.name: v for p, v in given if p.kwarg_only},
    )


def _bind(schema: Any, args: list[Any]) -> tuple[int, list[Any]] | None:
    """(how many numbers became tensors, the arguments in the order of a schema), or None."""
    params = schema.arguments
    if len(args) > len(params) or any(p.is_out for p in params):
        return None
    like = next((a for a in args if isinstance(a, Tensor)), None)
    made, values = 0, []
    for param, arg in zip(params, args, strict=False):
        fit = _fit(str(param.type), arg, like)
        if fit is None:
            return None
        made += fit[0]
        values.append(fit[1])
    for param in params[len(args) :]:
        if param.has_default_value():
            values.append(param.default_value)
        elif str(param.type) == "bool":
            values.append(False)
        else:
            return None
    return made, values


def _fit(kind: str, arg: Any, like: Tensor | None) -> tuple[int, Any] | None:
    """(whether a number became a tensor, an argument for a parameter of a kind), or None."""
    if kind.startswith("Optional["):
        return (0, None) if arg is None else _fit(kind[9:-1], arg, like)
    if arg is None:
        return None
    number = isinstance(arg, (bool, int, float))
    if kind == "Tensor":
        if number:
            return 1, _tensor(arg, None if like is None else like.dtype)
        return (0, arg) if isinstance(arg, Tensor) else None
    if kind.startswith("List["):
        if number and kind != "List[Tensor]":
            arg = [arg]
        if not isinstance(arg, list):
            return None
        items = [
            (0, None) if x is None and "Tensor" in kind else _fit(kind[5:-1], x, like) for x in arg
        ]
        if any(x is None for x in items):
            return None
        return 0, [x[1] for x in items if x is not None]
    if kind in ("int", "SymInt") and isinstance(arg, list) and len(arg) == 1:
        arg = arg[0]
    if kind in ("int", "SymInt"):
        return (0, int(arg)) if isinstance(arg, (bool, int)) else None
    if kind == "bool":
        return (0, bool(arg)) if isinstance(arg, (bool, int)) else None
    if kind == "float":
        return (0, float(arg)) if number else None
    if kind == "number":
        return (0, arg) if number else None
    if kind == "str":
        return (0, arg) if isinstance(arg, str) else None
    if kind == "ScalarType" or isinstance(arg, torch.dtype):
        return (0, arg) if isinstance(arg, torch.dtype) else None
    return None


def _tensor(x: Any, dtype: torch.dtype | None) -> Tensor:
    """A tensor, of rank 0 if it is a number; a float beside integers stays one."""
    if isinstance(x, Tensor):
        return x
    if dtype is None or (isinstance(x, float) and not dtype.is_floating_point):
        dtype = torch.float32 if isinstance(x, float) else torch.int64
    return torch.full((), x, dtype=dtype)


# Rows of our own


def _full(stated: Stated, value: float) -> Tensor:
    return torch.full(stated[1], value, dtype=stated[0])


def _iota(stated: Stated, dim: int, start: float = 0, step: float = 1) -> Tensor:
    dtype, shape = stated
    count = shape[dim]
    line = torch.arange(count, dtype=dtype) * step + start
    sizes = [1] * len(shape)
    sizes[dim] = count
    return line.to(dtype).view(sizes).expand(shape)


def _view(_stated: Stated, x: Tensor, how: Any) -> Tensor:
    return x.contiguous().view(how) if isinstance(how, torch.dtype) else x.reshape(how)


def _squeeze(_stated: Stated, x: Tensor, dims: Sequence[int] | int | None = None) -> Tensor:
    if dims is None:
        return x.squeeze()
    return x.squeeze(dims if isinstance(dims, int) else tuple(dims))


def _as_strided(
    _stated: Stated, x: Tensor, size: list[int], stride: list[int], offset: int | None = None
) -> Tensor:
    return x.contiguous().as_strided(size, stride, offset or 0)


def _prod(stated: Stated, x: Tensor, dims: Any = None, keep: Any = False, *_: Any) -> Tensor:
    wanted = [dims] if isinstance(dims, int) else dims or range(x.dim())
    for dim in sorted({d % x.dim() for d in wanted}, reverse=True):
        x = x.prod(dim, keepdim=bool(keep), dtype=stated[0])
    return x.to(stated[0])


def _reduced(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A reduction whose empty list of dims means all of them."""

    def reduce(stated: Stated, x: Tensor, dims: Any = None, keep: Any = False, *_: Any) -> Tensor:
        wanted = [dims] if isinstance(dims, int) else dims or list(range(x.dim()))
        return function(x, wanted, keepdim=bool(keep)).to(stated[0])

    return reduce


def _exchange(_stated: Stated, x: Tensor, size: int, stride: int) -> Tensor:
    from poptorch.capture.library.replicas import exchange

    return exchange(x, size, stride)


_OWN: dict[str, Callable[..., Tensor]] = {
    "exchange": _exchange,
    "clone": lambda _stated, x, *_rest: x.clone(),
    "_to_copy": lambda stated, x: x.to(stated[0]).expand(stated[1]),
    "full": _full,
    "iota": _iota,
    "view": _view,
    "squeeze": _squeeze,
    "as_strided": _as_strided,
    "prod": _prod,
    "any": _reduced(torch.any),
    "all": _reduced(torch.all),
    "sum": _reduced(torch.sum),
    "mean": _reduced(torch.mean),
    "amax": _reduced(torch.amax),
    "amin": _reduced(torch.amin),
    "div_trunc": lambda stated, a, b: torch.div(a, b, rounding_mode="trunc").to(stated[0]),
    "gelu_tanh": lambda _stated, x: aten.gelu(x, approximate="tanh"),
    "gelu_tanh_backward": lambda _stated, g, x: aten.gelu_backward(g, x, approximate="tanh"),
    "frexp_exponent": lambda stated, x: torch.frexp(x).exponent.to(stated[0]),
    "frexp_mantissa": lambda _stated, x: torch.frexp(x).mantissa,
}
