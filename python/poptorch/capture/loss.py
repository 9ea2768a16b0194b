# SPDX-License-Identifier: Apache-2.0
"""The loss of a training model, and its gradients by autograd."""

import inspect
import re
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.autograd.graph import Node

from poptorch.base.logging import logger
from poptorch.capture import errors, library, structure
from poptorch.capture.errors import Where
from poptorch.capture.errors.explain import explained
from poptorch.capture.session import MarkedLoss, Session
from poptorch.capture.slots import StateSlot

NO_LOSS = "Couldn't find a loss in graph!"
MANY_LOSSES = (
    "Multiple independent losses found in graph. Graph must have one final loss. "
    "Wrap final graph loss in poptorch.identity_loss."
)
Gradient = tuple[StateSlot, torch.Tensor]


def differentiate(
    session: Session, slots: list[StateSlot], result: Any
) -> tuple[torch.Tensor, list[Gradient]]:
    """The loss of a model whose forward returned `result`, and the gradients that there are."""
    loss, where = pick_loss(session, result)
    wanted = [s for s in slots if s.trainable]
    gradients = zip(wanted, _gradients(session, loss, wanted), strict=True)
    found = [(slot, gradient) for slot, gradient in gradients if gradient is not None]
    _warn_about_loss(loss, where, bool(wanted), bool(found))
    _warn_of_work_on(loss, where, [leaf for _, leaf in structure.tensors_of(result)])
    return loss, found


def pick_loss(session: Session, result: Any) -> MarkedLoss:
    """The marked tensor that feeds no other marked one; an error unless there is exactly one."""
    marked = [(t, t.grad_fn, where) for t, where in session.losses if t.grad_fn is not None]
    if not marked:
        if len(session.detached_losses) == 1:  # nothing to train, still a loss to return
            return session.detached_losses[0]
        raise errors.make_error(
            f"{NO_LOSS} A training model must compute its loss in forward: use a loss of torch.nn, "
            "or mark your own with poptorch.identity_loss(loss, reduction='none')." + _hint(session)
        )
    inner = _reachable(n for _, node, _ in marked for n, _ in node.next_functions)
    final = [MarkedLoss(t, where) for t, node, where in marked if node not in inner]
    if len(final) > 1:
        leaves = [t for _, t in structure.tensors_of(result)]
        returned = _reachable(t.grad_fn for t in leaves)
        final = [loss for loss in final if loss.tensor.grad_fn in returned] or final
    if len(final) > 1:
        lines = "".join(f"\n  loss at {errors.describe(loss.where)}" for loss in final)
        raise errors.make_error(MANY_LOSSES + lines)
    return final[0]


def _hint(session: Session) -> str:
    """Why a model that could compute its loss has not done so, if that can be seen."""
    if session.inner_losses:
        return (
            " A loss in the body of poptorch.for_loop or poptorch.cond does not count: return it "
            "from the body, and mark what comes out with poptorch.identity_loss.\n  loss at "
            + errors.describe(session.inner_losses[0])
        )
    model, args, kwargs = session.call
    parameters = list(inspect.signature(model.forward).parameters.values())
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    absent = [
        p.name
        for p in [p for p in parameters if p.kind not in kinds][len(args) :]
        if p.default is None and kwargs.get(p.name) is None
    ]
    labels = [name for name in absent if re.search("label|target|^y$|^gt$|truth", name)]
    if labels or len(absent) == 1:
        name = (labels or absent)[0]
        return (
            f" The call gives no {name}, an argument of forward that is None by default: pass it, "
            "if the loss is computed from it."
        )
    for name, module in model.named_modules():
        loss = isinstance(module, torch.nn.modules.loss._Loss)
        if name and loss and not session.progress.has_entered(module):
            return f" The model has {name} ({type(module).__name__}), but forward does not call it."
    return ""


def _reachable(starts: Iterable[Node | None]) -> set[Node]:
    """The nodes of autograd that backward comes to from these."""
    seen: set[Node] = set()
    todo = list(starts)
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        todo += [n for n, _ in node.next_functions]
    return seen


def _warn_about_loss(loss: torch.Tensor, where: Where, trainable: bool, trained: bool) -> None:
    """Says what is allowed but seldom meant."""
    if trainable and not trained:
        logger.warning(
            "The loss depends on no trainable parameter: nothing will be trained.\n  at %s",
            errors.describe(where),
        )
    elif loss.numel() > 1:
        logger.warning(
            "The loss is no scalar but of shape %s: the gradient is that of the sum of its "
            'elements. Use reduction="mean", or "sum" if that is meant.\n  at %s',
            list(loss.shape),
            errors.describe(where),
        )


# Nodes of autograd that change the value of a loss; not those that change only its shape.
_WORK = ("Add", "Sub", "Mul", "Div", "Neg", "Pow", "Exp", "Log", "Sqrt")


def _nodes_between(loss: Node, result: Node) -> list[str] | None:
    """Names of the nodes by which a result is computed from the loss; None if it is not."""
    nodes: list[str] = []
    todo: list[Node | None] = [result]
    seen: set[Node] = set()
    met = False
    while todo:
        node = todo.pop()
        if node is loss:
            met = True
        elif node is not None and node not in seen:
            seen.add(node)
            nodes.append(node.name())
            # What the loss itself was computed from is older than it.
            if node._sequence_nr() >= loss._sequence_nr():
                todo += [n for n, _ in node.next_functions]
    return nodes if met else None


def _warn_of_work_on(loss: torch.Tensor, where: Where, results: Sequence[torch.Tensor]) -> None:
    """Says so if forward computes with the loss and returns only what comes of that."""
    if loss.grad_fn is None:
        return
    paths = [_nodes_between(loss.grad_fn, t.grad_fn) for t in results if t.grad_fn is not None]
    found = [path for path in paths if path is not None]
    if found and all(any(name.startswith(_WORK) for name in path) for path in found):
        logger.warning(
            "What forward returns is computed from the loss, but what is trained is the loss as it "
            "was found: factors and terms that came later do not count. Mark the final one with "
            "poptorch.identity_loss(loss, reduction='none').\n  at %s",
            errors.describe(where),
        )


def _gradients(
    session: Session, loss: torch.Tensor, slots: list[StateSlot]
) -> Sequence[torch.Tensor | None]:
    """The gradient of each slot, None where the loss does not depend on it."""
    if loss.grad_fn is None or not slots:
        return [None] * len(slots)
    if not loss.dtype.is_floating_point:
        raise errors.make_error(f"The loss must be of a floating-point type, not {loss.dtype}")
    session.in_backward = True
    number = loss.grad_fn._sequence_nr()
    session.progress.begin_backward(min(session.by_sequence, default=0), number)
    seed = session.by_sequence.get(number)
    if seed is not None:
        session.last_tag = seed._replace(backward=True)
    try:
        # Anomaly detection would read values, and fakes have none.
        with torch.enable_grad(), torch.autograd.set_detect_anomaly(False):
            return torch.autograd.grad(
                loss,
                [s.tensor for s in slots],
                library.ops.loss_seed(loss.detach()),
                allow_unused=True,
            )
    except Exception as error:
        explained(error, session, "backward")
        raise
    finally:
        session.in_backward = False
