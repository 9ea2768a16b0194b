# SPDX-License-Identifier: Apache-2.0
"""What to try after an error of a torch function in forward: one row per common mistake."""

import torch


def _bound(names, args, kwargs):
    return {**dict(zip(names, args, strict=False)), **kwargs}


def _dims(tensor):
    return list(tensor.shape)


def _labels(error, args, kwargs):
    given = _bound(("input", "target"), args, kwargs)
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
    if _dims(labels) != wanted and labels.numel() == torch.Size(wanted).numel():
        return f"The labels have shape {_dims(labels)}: use labels.reshape({wanted})."
    if labels.shape != scores.shape:
        return (
            f"Scores of shape {_dims(scores)} are for {classes} classes and need labels of shape "
            f"{wanted}, got {_dims(labels)}."
        )
    return None


def _float_target(error, args, kwargs):
    given = _bound(("input", "target"), args, kwargs)
    scores, target = given.get("input"), given.get("target")
    if not (isinstance(scores, torch.Tensor) and isinstance(target, torch.Tensor)):
        return None
    if not target.dtype.is_floating_point:
        return f"The target is of type {target.dtype}: use target.float()."
    if target.shape != scores.shape:
        return f"Input and target differ in shape: {_dims(scores)} and {_dims(target)}."
    return None


def _embedding(error, args, kwargs):
    index = _bound(("input", "weight"), args, kwargs).get("input")
    if isinstance(index, torch.Tensor) and index.dtype.is_floating_point:
        return f"An embedding looks up integers: use x.long(), the indices are {index.dtype}."
    return None


def _linear(error, args, kwargs):
    given = _bound(("input", "weight"), args, kwargs)
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


def _conv(spatial):
    def advise(error, args, kwargs):
        given = _bound(("input", "weight"), args, kwargs)
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


_ROWS = {
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


def advice_for(error, call):
    """A sentence on what to try, or None; `call` is the torch function that raised `error`."""
    if call is None:
        return None
    func, args, kwargs = call
    row = _ROWS.get(getattr(func, "__name__", ""))
    return None if row is None else row(error, args, kwargs)
