# SPDX-License-Identifier: Apache-2.0
"""What to try after an error of a torch function in forward: one row per common mistake."""

import re
from collections.abc import Callable

import torch

from poptorch.capture.calls.handler import Args, Kwargs, TorchCall, by_name

_Row = Callable[[Args, Kwargs], str | None]  # the arguments of a call -> what to try


def _dims(tensor: torch.Tensor) -> list[int]:
    return list(tensor.shape)


def _labels(args: Args, kwargs: Kwargs) -> str | None:
    given = by_name(("input", "target"), args, kwargs)
    scores, labels = given.get("input"), given.get("target")
    if not (isinstance(scores, torch.Tensor) and isinstance(labels, torch.Tensor)):
        return None
    classes = scores.shape[min(1, scores.dim() - 1)] if scores.dim() else 1
    wanted = [*scores.shape[:1], *scores.shape[2:]]
    if labels.dtype.is_floating_point and labels.shape != scores.shape:
        return (
            f"The labels are of type {labels.dtype}: class numbers must be integers, use "
            f"labels.long(). (Labels of a floating-point type are probabilities of the {classes} "
            f"classes and have the shape of the scores, {_dims(scores)}.)"
        )
    if labels.shape == scores.shape and not labels.dtype.is_floating_point:
        return (
            "Labels of the shape of the scores are probabilities: use labels.float(), or "
            "labels.argmax(1) for class numbers."
        )
    if _dims(labels) != wanted and labels.numel() == torch.Size(wanted).numel():
        return f"The labels have shape {_dims(labels)}: use labels.reshape({wanted})."
    if labels.shape != scores.shape:
        return (
            f"Scores of shape {_dims(scores)} are for {classes} classes and need labels of shape "
            f"{wanted}, got {_dims(labels)}."
        )
    return None


def _float_target(args: Args, kwargs: Kwargs) -> str | None:
    given = by_name(("input", "target"), args, kwargs)
    scores, target = given.get("input"), given.get("target")
    if not (isinstance(scores, torch.Tensor) and isinstance(target, torch.Tensor)):
        return None
    found = []
    if target.shape != scores.shape:
        found.append(f"Input and target differ in shape: {_dims(scores)} and {_dims(target)}.")
    if not target.dtype.is_floating_point:
        found.append(f"The target is of type {target.dtype}: use target.float().")
    return " ".join(found) or None


def _embedding(args: Args, kwargs: Kwargs) -> str | None:
    index = by_name(("input", "weight"), args, kwargs).get("input")
    if isinstance(index, torch.Tensor) and index.dtype.is_floating_point:
        return f"An embedding looks up integers: use x.long(), the indices are {index.dtype}."
    return None


def _linear(args: Args, kwargs: Kwargs) -> str | None:
    given = by_name(("input", "weight"), args, kwargs)
    x, weight = given.get("input"), given.get("weight")
    if not (isinstance(x, torch.Tensor) and isinstance(weight, torch.Tensor) and x.dim()):
        return None
    if x.dim() and x.shape[-1] != weight.shape[-1]:
        text = (
            f"The layer has in_features={weight.shape[-1]}, but the last dimension of its input, "
            f"of shape {_dims(x)}, is {x.shape[-1]}."
        )
        if x.dim() > 2 and x[0].numel() == weight.shape[-1]:
            text += " Flatten the input first: x.flatten(1)."
        return text
    if not x.dtype.is_floating_point:
        return f"The input is of type {x.dtype}: use x.float()."
    return None


def _conv(spatial: int) -> _Row:
    def advise(args: Args, kwargs: Kwargs) -> str | None:
        given = by_name(("input", "weight"), args, kwargs)
        x = given.get("input")
        if not isinstance(x, torch.Tensor):
            return None
        if not x.dtype.is_floating_point:
            return f"The input is of type {x.dtype}: use x.float()."
        if x.dim() == spatial + 1 or x.dim() not in (spatial + 1, spatial + 2):
            dims = ["batch", "channels", "depth", "height", "width"]
            dims = dims[:2] + dims[5 - spatial :]
            return f"The layer reads inputs of shape [{', '.join(dims)}], got {_dims(x)}."
        return None

    return advise


_ROWS: dict[str, _Row] = {
    "cross_entropy": _labels,
    "nll_loss": _labels,
    "binary_cross_entropy": _float_target,
    "binary_cross_entropy_with_logits": _float_target,
    "mse_loss": _float_target,
    "l1_loss": _float_target,
    "smooth_l1_loss": _float_target,
    "huber_loss": _float_target,
    "embedding": _embedding,
    "embedding_bag": _embedding,
    "linear": _linear,
    "conv1d": _conv(1),
    "conv2d": _conv(2),
    "conv3d": _conv(3),
}


_NOT_A_TENSOR = re.compile(r"must be Tensor, not ([\w.]+)")
_BY_TYPE = {
    "numpy.ndarray": "Make a tensor of an array with torch.from_numpy(array).",
    "list": "A list is no tensor: use torch.tensor(values), or torch.stack(tensors); a batch of a "
    "loader is passed as model(*batch).",
    "tuple": "A tuple is no tensor: a batch of a loader is passed as model(*batch).",
    "dict": "A dict is no tensor: pass its items by name, as model(**batch).",
    "str": "Text must be turned into tensors of numbers, by a tokenizer, before the call.",
    "NoneType": "A tensor is None: was an argument left out, or a parameter removed?",
}


def _by_text(text: str) -> str | None:
    found = _NOT_A_TENSOR.search(text)
    if found is not None:
        return _BY_TYPE.get(found[1])
    if "CUDA" in text or "cuda" in text:
        return (
            "Leave models and tensors on the CPU: the executor moves them to the IPU, without "
            '.cuda() or .to("cuda").'
        )
    if "modified by an inplace operation" in text:
        return (
            "An in-place operation, such as `y += 1` or inplace=True, changes a tensor whose old "
            "value backward needs: write `y = y + 1`."
        )
    if "a leaf Variable that requires grad is being used in an in-place" in text:
        return (
            "Change parameters under torch.no_grad(), or leave their update to the optimizer; "
            "values that forward keeps belong into a buffer."
        )
    return None


def advice_for(error: BaseException, call: TorchCall | None) -> str | None:
    """A sentence on what to try, or None; `call` is the call of torch that raised `error`."""
    found = _by_text(str(error))
    if found is not None or call is None:
        return found
    func, args, kwargs = call
    row = _ROWS.get(getattr(func, "__name__", ""))
    return None if row is None else row(args, kwargs)
