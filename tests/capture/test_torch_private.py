# SPDX-License-Identifier: Apache-2.0
"""One test per private torch API: when torch changes one, this file says which."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
import torch.utils.checkpoint as checkpoint
from poptorch.base import torch_calls as calls
from poptorch.capture import _torch_private as private


def _fake(*shape):
    with private.FakeTensorMode(allow_non_fake_inputs=True):
        return torch.empty(shape)


def test_fake_tensors_hold_no_data():
    x = _fake(3, 4)
    assert isinstance(x, private.FakeTensor) and x.shape == (3, 4)


def test_fake_tensors_refuse_to_give_values():
    mode = private.FakeTensorMode()
    with mode, pytest.raises(private.DataDependentOutputException):
        torch.empty(()).item()


def test_fake_tensors_refuse_shapes_from_data():
    mode = private.FakeTensorMode()
    with mode, pytest.raises(private.DynamicOutputShapeException):
        torch.empty(3).nonzero()


def test_random_ops_are_known():
    assert private.is_random(torch.ops.aten.bernoulli.p)
    assert not private.is_random(torch.ops.aten.add.Tensor)


def test_trace_records_aten_ops_with_tags():
    mode = private.FakeTensorMode(allow_non_fake_inputs=True)

    def f(x):
        private.set_node_tag({"tag": "here"})
        return x.sin()

    with mode:
        gm = private.trace(f, [torch.empty(3)], {})
    node = next(n for n in gm.graph.nodes if n.op == "call_function")
    assert node.target is torch.ops.aten.sin.default
    assert node.meta["custom"] == {"tag": "here"} and node.meta["val"].shape == (3,)


def test_sequence_numbers_link_backward_to_forward():
    x = torch.ones(3, requires_grad=True)
    y = x.sin()
    assert y.grad_fn._sequence_nr() == private.next_sequence_number() - 1
    seen = []
    assert private.running_sequence_number() is None

    class Watch(private.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(private.running_sequence_number())
            return func(*args, **(kwargs or {}))

    with Watch():
        torch.autograd.grad(y, x, torch.ones(3))
    assert y.grad_fn._sequence_nr() in seen


def test_functional_body_does_not_look_for_overrides():
    seen = []

    class Watch(private.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    with Watch():
        private.functional_body(F.softmax)(torch.ones(3), 0)
    assert F.softmax not in seen and torch.Tensor.softmax in seen
    assert private.functional_body(torch.sin) is None
    assert private.functional_body(F.linear) is None


def test_patched_torch_is_restored():
    before = (
        checkpoint.CheckpointFunction,
        checkpoint._checkpoint_without_reentrant_generator,
        torch._C._get_mkldnn_enabled(),
        torch.distributions.Distribution._validate_args,
    )
    with pytest.raises(KeyError), private.patched_torch():
        assert checkpoint.CheckpointFunction is not before[0]
        assert not torch._C._get_mkldnn_enabled()
        raise KeyError
    assert before == (
        checkpoint.CheckpointFunction,
        checkpoint._checkpoint_without_reentrant_generator,
        torch._C._get_mkldnn_enabled(),
        torch.distributions.Distribution._validate_args,
    )


def test_module_hooks_surround_every_forward():
    seen = []
    model = torch.nn.Sequential(torch.nn.ReLU())
    with private.module_hooks(
        lambda m, a: seen.append(("in", type(m).__name__)),
        lambda m, a, r: seen.append(("out", type(m).__name__)),
    ):
        model(torch.ones(1))
    model(torch.ones(1))
    assert seen == [("in", "Sequential"), ("in", "ReLU"), ("out", "ReLU"), ("out", "Sequential")]


def test_without_modes_makes_real_tensors():
    with private.FakeTensorMode():
        assert not isinstance(private.without_modes(lambda: torch.ones(2)), private.FakeTensor)


def test_the_graph_so_far_knows_the_node_of_a_tensor():
    seen = {}

    def function(x):
        tracer = private.running_tracer()
        y = x + 1
        kept = private.node_of(y, tracer)
        y.mul_(2)
        seen["nodes"] = [kept.target, private.node_of(y, tracer).target]
        view = y[0]
        seen["same"] = private.storage_id(view) == private.storage_id(y) != private.storage_id(x)
        dead = private.node_of(x * 3, tracer)
        seen["live"] = {private.node_of(t, tracer) in private.live_nodes(tracer) for t in (x, y)}
        seen["dead"] = dead in private.live_nodes(tracer)
        seen["memory"] = private.live_storages(tracer, {id(y), id(view)})
        seen["of y"], kept = private.storage_id(y), private.weak(view)
        assert kept() is view
        del view
        assert kept() is None
        return y

    with private.FakeTensorMode() as mode:
        private.trace(function, [mode.from_tensor(torch.ones(2))], {})
    aten = torch.ops.aten
    assert seen["nodes"] == [aten.add.Tensor, aten.mul_.Tensor]
    assert seen["memory"] and seen["of y"] not in seen["memory"]
    assert seen["same"] and seen["live"] == {True} and not seen["dead"]


# Of calls -----------------------------------------------------------------------------------------


def test_a_check_recognises_tensors_like_others():
    x, y = torch.ones(2, 3), torch.ones(4, dtype=torch.int64)
    check = calls.tensor_check([x, y])
    assert check(torch.zeros(2, 3), torch.zeros(4, dtype=torch.int64))
    others = (
        x.t(),
        x.t().contiguous().t(),
        x[:1],
        x.double(),
        x.to("meta"),
        torch._neg_view(x),
        torch._efficientzerotensor((2, 3)),
        x.clone().requires_grad_(),
        torch.nn.Parameter(x, False),
        _fake(2, 3),
        None,
        1.0,
    )
    for other in others:
        assert not check(other, y)
    assert calls.tensor_check([])()


def test_modes_are_seen_and_put_aside():
    assert not calls.any_mode()
    for mode in (torch.device("meta"), private.FakeTensorMode()):
        with mode:
            assert calls.any_mode()
            with calls.real_tensors():
                tensor = torch.ones(2)
            assert type(tensor) is torch.Tensor and tensor.is_cpu
        assert tensor.tolist() == [1, 1]
