# SPDX-License-Identifier: Apache-2.0
"""Every private torch API that capture needs: a new torch release breaks this file only."""

import contextlib
import functools
import types

import torch
import torch.fx.traceback as fx_traceback
import torch.nn.functional as functional
import torch.nn.modules.transformer as transformer
import torch.utils.checkpoint as torch_checkpoint
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.fx.experimental import proxy_tensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode, get_proxy_slot, make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils.weak import TensorWeakRef

__all__ = [
    "DataDependentOutputException",
    "DynamicOutputShapeException",
    "FakeTensor",
    "FakeTensorMode",
    "TorchDispatchMode",
    "TorchFunctionMode",
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


def trace(function, fakes, decompositions):
    """ATen graph of `function(*fakes)`; nodes carry the tag set by set_node_tag in
    meta["custom"]."""
    with fx_traceback.preserve_node_meta():
        return make_fx(function, decomposition_table=decompositions, _allow_non_fake_inputs=True)(
            *fakes
        )


def set_node_tag(tag):
    """Every node made from now on carries `tag`."""
    fx_traceback.current_meta["custom"] = tag


def next_sequence_number():
    """Number that the next autograd node made by this thread will have."""
    return torch.autograd._get_sequence_nr()


def running_sequence_number():
    """Number of the autograd node whose backward runs now, None outside backward."""
    node = torch._C._current_autograd_node()
    return None if node is None else node._sequence_nr()


def running_tracer():
    """The tracer that records ops now: it has the graph so far and the module of its constants."""
    return get_proxy_mode().tracer


def node_of(tensor, tracer):
    """The node of the graph so far that holds the present value of a captured tensor."""
    return get_proxy_slot(tensor, tracer).proxy.node


def live_nodes(tracer):
    """Nodes whose tensors Python or autograd still holds."""
    return {found.proxy.node for found in tracer.tensor_tracker.values()}


def live_storages(tracer, ignored):
    """Memory of the tensors that somebody still holds, but for those with these ids."""
    return {storage_id(t) for t in tracer.tensor_tracker if id(t) not in ignored}


def weak(tensor):
    """A function that gives the tensor, or None if nobody holds it any more."""
    reference = TensorWeakRef(tensor)
    return reference.__call__


def storage_id(tensor):
    """Which memory a tensor lies in; views have that of their base."""
    return tensor.untyped_storage()._cdata


def is_random(func):
    """Whether an ATen op draws random numbers."""
    return torch.Tag.nondeterministic_seeded in func.tags


def exchange(tensor, other):
    """Swaps what two tensor objects hold and what they are in the running trace. Whoever has one of
    the objects has what was in the other one."""
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


def without_modes(make):
    """make(), on real tensors whatever modes are active."""
    with _disable_current_modes():
        return make()


def _no_override(*_args, **_kwargs):
    return False


_bodies = {}


def functional_body(function):
    """A copy of a Python function of torch.nn.functional that does not look for overrides.

    A TorchFunctionMode is off while its handler runs, so calls inside the function would be missed;
    running this copy with the mode on again sees them and does not recurse. None for functions that
    have no Python body.
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


class _PlainCheckpoint:
    """Checkpointed regions are just called: what to recompute is the compiler's choice."""

    @staticmethod
    def apply(function, _preserve_rng, *args):
        return function(*args)


def _plain_checkpoint_generator(*_args, **_kwargs):
    yield


def _is_causal_mask(detect, mask, is_causal=None, size=None):
    """A mask whose values are not known yet is just a mask."""
    unknown = isinstance(mask, FakeTensor) and getattr(mask, "_tessera_recipe", None) is None
    return False if is_causal is None and unknown else detect(mask, is_causal, size)


def _tensor_text(plain, tensor, *, tensor_contents=None):
    """A tensor of the program has no values while it is captured."""
    if isinstance(tensor, FakeTensor):
        shape = list(tensor.shape)
        return f"tensor(<unavailable>, shape={shape}, dtype={tensor.dtype}, device='ipu:0')"
    return plain(tensor, tensor_contents=tensor_contents)


def _check_rnn_input(check, module, given, batch_sizes):
    """Inputs and weights of float16 and float32 go together, by the rules of mixed operands."""
    mixed = {given.dtype, module._flat_weights[0].dtype} == {torch.float16, torch.float32}
    if mixed:
        dtype = module._flat_weights[0].dtype
        given = types.SimpleNamespace(dtype=dtype, dim=given.dim, size=given.size)
    check(module, given, batch_sizes)


def _batch_norm(forward, module, input):
    """Without a momentum the statistics are the mean of all batches: eager reads their number."""
    averages = module.momentum is None and module.training and module.track_running_stats
    if not averages or module.running_mean is None:
        return forward(module, input)
    module._check_input_dim(input)
    module.num_batches_tracked.add_(1)
    batch = [torch.zeros_like(t) for t in (module.running_mean, module.running_var)]
    out = functional.batch_norm(input, *batch, module.weight, module.bias, True, 1.0, module.eps)
    with torch.no_grad():
        share = 1.0 / module.num_batches_tracked.to(batch[0].dtype)
        module.running_mean.lerp_(batch[0], share)
        module.running_var.lerp_(batch[1], share)
    return out


@contextlib.contextmanager
def patched_torch():
    """While capturing: checkpoint runs plainly, RNNs decompose and may mix types, batch norm
    averages without reading its count, tensors are printed without values, neither distributions
    nor masks of transformers are looked at, torch logs no traces (it can't if a file name is not
    UTF-8), and libraries see that a compiler is at work, so that they put no tensor of the capture
    into their caches."""
    saved_function = torch_checkpoint.CheckpointFunction
    saved_generator = torch_checkpoint._checkpoint_without_reentrant_generator
    distribution = torch.distributions.Distribution
    validate = distribution._validate_args
    mkldnn = torch._C._get_mkldnn_enabled()
    torch_checkpoint.CheckpointFunction = _PlainCheckpoint
    torch_checkpoint._checkpoint_without_reentrant_generator = _plain_checkpoint_generator
    distribution._validate_args = False
    torch._C._set_mkldnn_enabled(False)  # or torch.lstm becomes one opaque mkldnn_rnn_layer
    detect = transformer._detect_is_causal_mask
    transformer._detect_is_causal_mask = functools.partial(_is_causal_mask, detect)
    text = torch._tensor_str._str
    torch._tensor_str._str = functools.partial(_tensor_text, text)
    log_trace = proxy_tensor.trace_structured
    proxy_tensor.trace_structured = lambda *_args, **_kwargs: None
    rnn = torch.nn.RNNBase
    check = rnn.check_input
    rnn.check_input = functools.partialmethod(functools.partial(_check_rnn_input, check))
    batch_norm = torch.nn.modules.batchnorm._BatchNorm
    forward = batch_norm.forward
    batch_norm.forward = functools.partialmethod(functools.partial(_batch_norm, forward))
    try:
        with torch.compiler._compile_session_context():
            yield
    finally:
        batch_norm.forward = forward
        rnn.check_input = check
        torch_checkpoint.CheckpointFunction = saved_function
        torch_checkpoint._checkpoint_without_reentrant_generator = saved_generator
        distribution._validate_args = validate
        torch._C._set_mkldnn_enabled(mkldnn)
        transformer._detect_is_causal_mask = detect
        torch._tensor_str._str = text
        proxy_tensor.trace_structured = log_trace


@contextlib.contextmanager
def module_hooks(before, after):
    """Calls before(module, args) and after(module, args, result) around every module's forward."""
    hooks = torch.nn.modules.module
    first = hooks.register_module_forward_pre_hook(before)
    second = hooks.register_module_forward_hook(after, always_call=True)
    try:
        yield
    finally:
        first.remove()
        second.remove()
