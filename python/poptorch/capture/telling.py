# SPDX-License-Identifier: Apache-2.0
"""An exception of forward as the user is to see it: torch's own words, the module, the line, and
what to try."""

import contextlib
import inspect
import re
import warnings

import torch
from torch.utils import _pytree as pytree

from poptorch._errors import Error
from poptorch._logging import logger

from . import _torch_private as private
from . import errors, state
from .advice import advice_for

_LONG_NAME = 200
_LARGE = 1 << 24  # elements; more are not made only for a message
_FAKE = re.compile(r"\b(torch\._subclasses\.fake_tensor\.)?FakeTensor\b(\(\.\.\., )?")


def told(error, session, phase="forward"):
    """`error`, which came out of forward or backward, with a note; or torch's own in its place."""
    if isinstance(error, Error) and error.location:
        return error
    where = errors.user_line_of(error)
    if phase == "backward" and session.last_tag.file:
        where = session.last_tag[:2]  # of the op whose gradient it was
    failed = session.failed
    call = failed[1:] if failed is not None and failed[0] is error else None
    module = _module_of(error, session)
    if call is not None and not isinstance(error, Error):
        error = _in_eager(error, *call)
    if type(error).__module__.startswith("torch._subclasses"):
        error = _in_place_of(error, RuntimeError(*error.args))
    _hide_fakes(error)
    if not errors.is_told(error):
        text = f"{errors.NOTE}'s {phase}{module}"
        if where[0]:
            text += f", at {errors.describe(where)}"
        advice = advice_for(error, call)
        error.add_note(f"{text}\n{advice}" if advice else text)
    return error


def _in_eager(error, func, args, kwargs):
    """What torch raises for the same call on real tensors: rules for shapes are worded otherwise
    there. `error` itself if it raises nothing."""
    space = getattr(func, "__module__", None) or "torch"
    if space.startswith("torch.autograd"):
        return error  # it needs the graph of the real call
    tensors = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
    if not space.startswith("torch") or sum(t.numel() for t in tensors) > _LARGE:
        return error
    floats = {t.dtype for t in tensors if t.dtype.is_floating_point}

    def stand_in(value):
        if not isinstance(value, torch.Tensor):
            return value
        # Types that are unlike are no mistake here, so they shall not hide the one that is.
        mixed = value.dtype.is_floating_point and len(floats) > 1
        dtype = torch.float32 if mixed else value.dtype
        return torch.zeros(value.shape, dtype=dtype, device=value.device)

    def run():
        real_args, real_kwargs = pytree.tree_map(stand_in, (args, kwargs))
        with torch.no_grad():
            func(*real_args, **real_kwargs)

    try:
        with torch._C.DisableTorchFunction():
            private.without_modes(run)
    except Exception as found:
        if type(found) is type(error):
            error.args = found.args
            return error
        return _in_place_of(error, found)
    return error


def _in_place_of(error, found):
    """`found`, as if it had been raised where `error` was."""
    found.__context__, found.__cause__ = error.__context__, error.__cause__
    found.__suppress_context__ = error.__suppress_context__
    return found.with_traceback(error.__traceback__)


def _hide_fakes(error):
    """Tensors are just tensors to the user."""

    def rename(match):
        return "Tensor(" if match[2] else "torch.Tensor" if match[1] else "Tensor"

    def plain(value):
        if isinstance(value, private.FakeTensor):
            with torch._C.DisableTorchFunction():
                return str(value)
        return _FAKE.sub(rename, value) if isinstance(value, str) else value

    changed = tuple(map(plain, error.args))
    if any(new is not old for new, old in zip(changed, error.args, strict=True)):
        error.args = changed


def loss_hint(session):
    """Why a model that could compute its loss has not done so, if that can be seen."""
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


# Nodes of autograd that make another number of a loss; not those that give it another form.
_WORK = ("Add", "Sub", "Mul", "Div", "Neg", "Pow", "Exp", "Log", "Sqrt")


def _work_on(loss, tensor):
    """Names of the nodes between `tensor` and the loss that it is computed from; None if it is
    not."""
    nodes, todo, met = [], [tensor.grad_fn], False
    seen = set()
    while todo:
        node = todo.pop()
        if node is loss.grad_fn:
            met = True
        elif node is not None and node not in seen:
            seen.add(node)
            nodes.append(node.name())
            # What the loss itself was computed from is older than it.
            if node._sequence_nr() >= loss.grad_fn._sequence_nr():
                todo += [n for n, _ in node.next_functions]
    return nodes if met else None


def warn_of_work_on(loss, where, results):
    """Says so if forward returns what it made of the loss instead of the loss."""
    if loss.grad_fn is None:
        return
    ways = [_work_on(loss, t) for t in results if t.grad_fn is not None]
    ways = [way for way in ways if way is not None]
    if ways and all(any(name.startswith(_WORK) for name in way) for way in ways):
        logger.warning(
            "What forward returns is computed from the loss, but what is trained is the loss as it "
            "was found: factors and terms that came later do not count. Mark the final one with "
            "poptorch.identity_loss(loss, reduction='none').\n  at %s",
            errors.describe(where),
        )


@contextlib.contextmanager
def warnings_of_user():
    """While capturing, warnings name the line of the user's, and equal ones come once."""
    show, seen = warnings.showwarning, set()
    plain = show is getattr(warnings, "_showwarning_orig", None)

    def shown(message, category, filename, lineno, file=None, line=None):
        text = str(message)
        if (text, category) in seen or "FakeTensor" in text:
            return
        seen.add((text, category))
        if state.current() is not None and errors.is_internal_file(filename):
            filename, lineno = errors.user_frame()
            line = None
        if plain:
            details = warnings.WarningMessage(message, category, filename, lineno, file, line)
            warnings._showwarnmsg_impl(details)
        else:
            show(message, category, filename, lineno, file, line)

    warnings.showwarning = shown
    try:
        yield
    finally:
        if warnings.showwarning is shown:
            warnings.showwarning = show


def _module_of(error, session):
    """The module whose forward was running, if it has a name."""
    found, trace = None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code is torch.nn.Module._call_impl.__code__:
            found = trace.tb_frame.f_locals.get("self")
        trace = trace.tb_next
    name = session.scope_of(found)
    if name and len(name) > _LONG_NAME:
        name = f"{name[:20]}...{name[-20:]}"
    return f", in module {name} ({type(found).__name__})" if name else ""
