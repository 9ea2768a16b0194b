# SPDX-License-Identifier: Apache-2.0
"""Every private torch API that capture needs: a new torch release breaks this file only."""

import contextlib
import functools
import types
from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any, ParamSpec, TypeVar

import torch
import torch.fx
import torch.fx.traceback as fx_traceback
import torch.nn.functional as functional
import torch.nn.modules.transformer as transformer
import torch.utils.checkpoint as torch_checkpoint
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedOperatorException,
)
from torch.fx.experimental import proxy_tensor
from torch.fx.experimental.proxy_tensor import (
    PythonKeyTracer,
    get_proxy_mode,
    get_proxy_slot,
    make_fx,
)
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils.weak import TensorWeakRef

from poptorch.capture import state

__all__ = [
    "DataDependentOutputException",
    "DynamicOutputShapeException",
    "FakeTensor",
    "FakeTensorMode",
    "TorchDispatchMode",
    "TorchFunctionMode",
    "Tracer",
    "UnsupportedOperatorException",
    "current_fake_mode",
    "exchange",
    "functional_body",
    "is_random",
    "live_nodes",
    "live_storages",
    "module_hooks",
    "next_sequence_number",
    "node_of",
    "patched_torch",
    "running_sequence_number",
    "running_tracer",
    "set_node_tag",
    "storage_id",
    "trace",
    "weak",
    "without_modes",
]


Tracer = PythonKeyTracer
_T = TypeVar("_T")
_P = ParamSpec("_P")
Decompositions = dict[torch._ops.OpOverload, Callable[..., Any]]


def trace(
    function: Callable[..., Any], fakes: Sequence[torch.Tensor], decompositions: Decompositions
) -> torch.fx.GraphModule:
    """The ATen graph of `function(*fakes)`; what set_node_tag() set is a node's meta["custom"]."""
    with fx_traceback.preserve_node_meta():
        return make_fx(function, decomposition_table=decompositions, _allow_non_fake_inputs=True)(
            *fakes
        )


def set_node_tag(tag: dict[str, Any]) -> None:
    """Every node made from now on carries `tag`."""
    fx_traceback.current_meta["custom"] = tag


def next_sequence_number() -> int:
    """Number that the next autograd node made by this thread will have."""
    return torch.autograd._get_sequence_nr()


def running_sequence_number() -> int | None:
    """Number of the autograd node whose backward runs now, None outside backward."""
    node = torch._C._current_autograd_node()
    return None if node is None else node._sequence_nr()


def running_tracer() -> Tracer:
    """The tracer that records ops now: it has the graph so far and the module of its constants."""
    mode = get_proxy_mode()
    assert mode is not None and isinstance(mode.tracer, Tracer)
    return mode.tracer


def current_fake_mode() -> FakeTensorMode:
    """The mode that makes the fake tensors of the running capture."""
    mode = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE)
    assert isinstance(mode, FakeTensorMode)
    return mode


def node_of(tensor: torch.Tensor, tracer: Tracer) -> torch.fx.Node:
    """The node of the graph so far that holds the present value of a captured tensor."""
    return get_proxy_slot(tensor, tracer).proxy.node


def live_nodes(tracer: Tracer) -> set[torch.fx.Node]:
    """Nodes whose tensors Python or autograd still holds."""
    return {found.proxy.node for found in tracer.tensor_tracker.values()}


def live_storages(tracer: Tracer, ignored: Container[int]) -> set[int]:
    """Memory of the tensors that somebody still holds, except those with the ignored ids."""
    return {storage_id(t) for t in tracer.tensor_tracker if id(t) not in ignored}


def weak(tensor: torch.Tensor) -> Callable[[], torch.Tensor | None]:
    """A function that gives the tensor, or None if nobody holds it any more."""
    reference = TensorWeakRef(tensor)
    return reference.__call__


def storage_id(tensor: torch.Tensor) -> int:
    """Which memory a tensor lies in; views have that of their base."""
    return tensor.untyped_storage()._cdata


def is_random(func: torch._ops.OpOverload) -> bool:
    """Whether an ATen op draws random numbers."""
    return torch.Tag.nondeterministic_seeded in func.tags


def exchange(tensor: torch.Tensor, other: torch.Tensor) -> None:
    """Swaps what two tensor objects hold, also in the running trace.

    Whoever has one of the objects has what was in the other one.
    """
    hooks = tensor._backward_hooks, other._backward_hooks
    torch._C._swap_tensor_impl(tensor, other)
    tensor.__class__, other.__class__ = other.__class__, tensor.__class__
    tensor.__dict__, other.__dict__ = other.__dict__, tensor.__dict__
    if hooks != (None, None):
        other._backward_hooks, tensor._backward_hooks = hooks
    mode = get_proxy_mode()
    if mode is not None:
        tracked = mode.tracer.tensor_tracker
        nodes = tracked.pop(tensor, None), tracked.pop(other, None)
        for key, node in zip((other, tensor), nodes, strict=True):
            if node is not None:
                tracked[key] = node


def without_modes(make: Callable[[], _T]) -> _T:
    """make(), on real tensors whatever modes are active."""
    with _disable_current_modes():
        return make()


def _no_override(*_args: Any, **_kwargs: Any) -> bool:
    return False


_bodies: dict[Callable[..., Any], Callable[..., Any]] = {}


def functional_body(function: Callable[..., Any]) -> Callable[..., Any] | None:
    """A copy of a Python function of torch.nn.functional that does not look for overrides.

    A TorchFunctionMode is off while its handler runs, so calls inside the function would be missed.
    This copy can run with the mode on again: its calls are seen, and it does not recurse. None for
    functions that have no Python body.
    """
    body = _bodies.get(function)
    if body is None and getattr(function, "__module__", "") == functional.__name__:
        code = getattr(function, "__code__", None)
        if code is None or code.co_filename != functional.__file__:
            return None
        scope = dict(
            function.__globals__,
            has_torch_function=_no_override,
            has_torch_function_unary=_no_override,
            has_torch_function_variadic=_no_override,
        )
        body = types.FunctionType(
            code, scope, function.__name__, function.__defaults__, function.__closure__
        )
        body.__kwdefaults__ = function.__kwdefaults__
        _bodies[function] = body
    return body


def _checkpointed() -> contextlib.AbstractContextManager[None]:
    """A region whose ops the compiler makes again in backward; they are captured once."""
    session = state.current()
    return contextlib.nullcontext() if session is None else session.checkpointed()


class _MarkedCheckpoint:
    """Stands for the autograd function of reentrant checkpoints."""

    @staticmethod
    def apply(function: Callable[..., _T], _preserve_rng: bool, *args: Any) -> _T:
        with _checkpointed():
            return function(*args)


def _marked_checkpoint_generator(*_args: Any, **_kwargs: Any) -> Iterator[None]:
    with _checkpointed():
        yield


def _is_causal_mask(
    detect: Callable[..., bool],
    mask: torch.Tensor | None,
    is_causal: bool | None = None,
    size: int | None = None,
) -> bool:
    """A mask whose values are not known yet is just a mask."""
    unknown = isinstance(mask, FakeTensor) and getattr(mask, "_tessera_recipe", None) is None
    return False if is_causal is None and unknown else detect(mask, is_causal, size)


def _tensor_text(
    plain: Callable[..., str], tensor: torch.Tensor, *, tensor_contents: str | None = None
) -> str:
    """A tensor of the program has no values while it is captured."""
    if isinstance(tensor, FakeTensor):
        shape = list(tensor.shape)
        return f"tensor(<unavailable>, shape={shape}, dtype={tensor.dtype}, device='ipu:0')"
    return plain(tensor, tensor_contents=tensor_contents)


def _check_rnn_input(
    check: Callable[..., None],
    module: torch.nn.RNNBase,
    given: torch.Tensor,
    batch_sizes: torch.Tensor | None,
) -> None:
    """Inputs and weights of float16 and float32 go together, by the rules of mixed operands."""
    weight = module._flat_weights[0]
    assert weight is not None
    dtype = weight.dtype
    mixed = {given.dtype, dtype} == {torch.float16, torch.float32}
    seen = types.SimpleNamespace(dtype=dtype, dim=given.dim, size=given.size) if mixed else given
    check(module, seen, batch_sizes)


def _batch_norm(
    forward: Callable[..., torch.Tensor],
    module: torch.nn.modules.batchnorm._BatchNorm,
    input: torch.Tensor,
) -> torch.Tensor:
    """Without a momentum the statistics are the mean of all batches: eager reads their number."""
    averages = module.momentum is None and module.training and module.track_running_stats
    count, mean, var = module.num_batches_tracked, module.running_mean, module.running_var
    if not averages or count is None or mean is None or var is None:
        return forward(module, input)
    module._check_input_dim(input)
    count.add_(1)
    batch_mean, batch_var = torch.zeros_like(mean), torch.zeros_like(var)
    out = functional.batch_norm(
        input, batch_mean, batch_var, module.weight, module.bias, True, 1.0, module.eps
    )
    with torch.no_grad():
        share = 1.0 / count.to(mean.dtype)
        mean.lerp_(batch_mean, share)
        var.lerp_(batch_var, share)
    return out


def _replacements() -> Iterator[tuple[Any, str, Any]]:
    """(object, attribute, its value during a capture)."""
    # Checkpointed regions run once, and are marked.
    yield torch_checkpoint, "CheckpointFunction", _MarkedCheckpoint
    yield (
        torch_checkpoint,
        "_checkpoint_without_reentrant_generator",
        _marked_checkpoint_generator,
    )
    # Neither distributions nor masks of transformers have values to look at.
    yield torch.distributions.Distribution, "_validate_args", False
    detect = transformer._detect_is_causal_mask
    yield transformer, "_detect_is_causal_mask", functools.partial(_is_causal_mask, detect)
    # Tensors are printed without values.
    text = functools.partial(_tensor_text, torch._tensor_str._str)
    yield torch._tensor_str, "_str", text
    # Torch logs no traces: it can't if a file name is not UTF-8.
    yield proxy_tensor, "trace_structured", lambda *_args, **_kwargs: None
    # RNNs may mix types.
    rnn = torch.nn.RNNBase
    check = functools.partial(_check_rnn_input, rnn.check_input)
    yield rnn, "check_input", functools.partialmethod(check)
    # Batch norm averages without reading its count.
    norm = torch.nn.modules.batchnorm._BatchNorm
    yield norm, "forward", functools.partialmethod(functools.partial(_batch_norm, norm.forward))


@contextlib.contextmanager
def patched_torch() -> Iterator[None]:
    """Torch as a capture needs it.

    Libraries also see that a compiler is at work, so that they put no tensor of the capture into
    their caches.
    """
    mkldnn = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)  # or torch.lstm becomes one opaque mkldnn_rnn_layer
    saved = []
    for where, name, value in _replacements():
        saved.append((where, name, getattr(where, name)))
        setattr(where, name, value)
    try:
        with torch.compiler._compile_session_context():
            yield
    finally:
        for where, name, value in saved:
            setattr(where, name, value)
        torch._C._set_mkldnn_enabled(mkldnn)


@contextlib.contextmanager
def module_hooks(
    before: Callable[[torch.nn.Module, Any], None],
    after: Callable[[torch.nn.Module, Any, Any], None],
) -> Iterator[None]:
    """Calls before(module, args) and after(module, args, result) around every module's forward."""
    hooks = torch.nn.modules.module
    first = hooks.register_module_forward_pre_hook(before)
    second = hooks.register_module_forward_hook(after, always_call=True)
    try:
        yield
    finally:
        first.remove()
        second.remove()
