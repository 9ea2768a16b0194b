# SPDX-License-Identifier: Apache-2.0
"""Arguments, results, write-backs, locations, placement and random ops."""

import collections
import threading
from typing import NamedTuple

import ir_interpreter
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from harness import WithLoss, captured, check, evaluate
from poptorch.capture import placement, set_placement, structure
from torch import nn


class Pair(NamedTuple):
    a: torch.Tensor
    b: object


class Bag(dict):
    pass


class Echo(nn.Module):
    """Uses every kind of argument and gives them back."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(2))

    def forward(self, x, pair, items, *, table, flag=None, scale=2.0):
        total = (x + pair.a + items[0] + items[1][0] + table["k"]) * self.w * scale
        return {
            "pair": Pair(total, (x, pair.b)),
            "list": [total, total, None, flag],
            "bag": Bag(z=items[1][0] * 2),
            "ordered": collections.OrderedDict(y=total.sum()),
            "param": self.w,
            "ones": torch.ones(3),
        }


def _echo_call():
    args = (torch.randn(2), Pair(torch.randn(2), "text"), [torch.randn(2), (torch.randn(2), 5)])
    return args, {"table": {"k": torch.randn(2)}, "flag": "yes"}


def test_nested_arguments_and_results():
    args, kwargs = _echo_call()
    c, _ = check(WithLoss(Echo()), args, kwargs)
    out, _ = evaluate(c, args, kwargs)
    assert type(out[0]["bag"]) is Bag and type(out[0]["pair"]) is Pair
    assert out[0]["pair"].b[1] == "text" and out[0]["list"][3] == "yes"
    assert out[0]["list"][0] is out[0]["list"][1]
    names = [i.name for i in c.inputs]
    assert names == ["args[0]", "args[1].a", "args[2][0]", "args[2][1][0]", "table['k']"]


def test_input_used_only_for_its_shape():
    class Shape(nn.Module):
        def forward(self, x, y):
            return x.new_ones(y.shape[0]) * 2 + x

    c, graph = check(Shape(), (torch.randn(3), torch.randn(3, 5)), training=False)
    assert [i.used for i in c.inputs] == [True, False]
    assert sum(s.kind == "input" for s in graph.sources) == 2


def test_forward_without_result():
    class Nothing(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("n", torch.zeros(()))

        def forward(self, x):
            self.n += x.sum()

    c, graph = check(Nothing(), (torch.randn(3),), training=False)
    assert c.rebuild([]) is None
    assert len(graph.updates) == 1 and not graph.outputs


def test_input_changed_in_place_is_written_back():
    class Write(nn.Module):
        def forward(self, x, y):
            x.add_(y)
            y[0] = 5
            return x * 2

    c, _ = check(Write(), (torch.randn(3), torch.randn(3)), training=False)
    assert [i for i, _ in c.input_writebacks] == [0, 1]
    assert len(c.outputs) == 3
    assert c.rebuild([torch.ones(3)]).sum() == 3


def test_parameter_changed_under_no_grad():
    class Clip(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.randn(4) * 3)

        def forward(self, x):
            with torch.no_grad():
                self.w.clamp_(-1, 1)
            return x * self.w

    c, graph = check(WithLoss(Clip()), (torch.randn(4),))
    assert c.params[0].updated and len(graph.grads) == 1


def test_with_optimizer_puts_lines_before_the_end_of_the_graph():
    c = captured(WithLoss(nn.Linear(2, 2)), (torch.randn(3, 2),))
    ids = ", ".join(p.value for p in c.params)
    text = c.with_optimizer([f'optimize "sgd" 0 [{ids}] {{momentum=1, nesterov=0}}'])
    graph = ir_interpreter.parse(text)
    assert len(graph.optimizers) == 1
    assert text.index("optimize") < text.index("\n}\n") < text.index("loc !0")
    assert c.with_optimizer([]) == c.text


def test_capture_is_reproducible():
    model = WithLoss(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5)))
    x = torch.randn(3, 4)
    assert captured(model, (x,)).text == captured(model, (x,)).text


class Stages(nn.Module):
    """Convolution on stage 0; norm, function and loss on stage 1."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3)
        self.bn = nn.BatchNorm2d(2)
        self.fc = nn.Sequential(nn.Linear(32, 4), nn.LayerNorm(4))

    def forward(self, x, t):
        set_placement(0, 0)
        x = F.relu(self.bn(self.conv(x)), inplace=True)
        set_placement(1, 2, 3)
        x = self.fc(x.flatten(1))
        x[:, 0] = x[:, 1] * 2
        return x, F.mse_loss(x, t)


def test_every_node_has_line_scope_and_placement():
    model = Stages()
    c, graph = check(model, (torch.randn(2, 1, 6, 6), torch.randn(2, 4)))
    stage_of = {}
    for node in graph.nodes:
        file, line, scope, way, ipu, stage, phase = graph.locations[node.loc]
        assert file.endswith("test_captured_text.py") and line > 0
        assert (ipu, stage, phase) in ((0, 0, -1), (1, 2, 3))
        stage_of.setdefault((node.name, way), set()).add(stage)
        if node.name == "native_layer_norm":
            assert scope == "fc.1"
    assert stage_of["convolution", "fwd"] == {0}
    assert stage_of["conv_weight_grad", "bwd"] == {0}
    assert stage_of["native_batch_norm_backward", "bwd"] == {0}
    assert stage_of["native_layer_norm_backward", "bwd"] == {2}
    assert stage_of["mm", "bwd"] == {2}
    producers = {r: n for n in graph.nodes for r in n.results}
    names = {s.number: s.name for s in graph.sources}
    for p, g in graph.grads:
        want = 2 if names[p].startswith("fc") else 0
        assert graph.locations[producers[g].loc][5] == want, names[p]
    assert placement.current_placement() == placement.DEFAULT
    assert c.source_lines


def test_backward_nodes_carry_the_forward_line():
    class Lines(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(3))

        def forward(self, x):
            y = (x * self.w).tanh()
            z = y.sigmoid()
            return F.mse_loss(z, x)

    graph = ir_interpreter.parse(captured(Lines(), (torch.randn(3),)).text)
    where = {n.name: graph.locations[n.loc][1] for n in graph.nodes}
    assert where["tanh"] == where["tanh_backward"]
    assert where["sigmoid"] == where["sigmoid_backward"] == where["tanh"] + 1


# Random ops


def _run(module, *args, training=False):
    c = captured(module, args, training=training)
    assert c.uses_rng
    out, raw = evaluate(c, args)
    return c, out, raw


def test_dropout_keeps_scales_and_masks_the_gradient():
    class Drop(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(4000))

        def forward(self, x):
            y = F.dropout(x * self.w, 0.25)
            return y, F.mse_loss(y, torch.zeros(4000), reduction="sum")

    x = torch.ones(4000)
    c, (y, _), raw = _run(Drop(), x, training=True)
    assert not c.host_ops
    kept = y != 0
    assert 0.70 < kept.float().mean() < 0.80
    torch.testing.assert_close(y[kept], torch.full_like(y[kept], 4 / 3))
    torch.testing.assert_close(raw.grads["w"], 2 * y * kept / 0.75)


def test_dropout_edges():
    class Drop(nn.Module):
        def __init__(self, p, training):
            super().__init__()
            self.p, self.on = p, training

        def forward(self, x):
            return F.dropout(x, self.p, self.on)

    x = torch.randn(5)
    for p, on, expected in ((0.0, True, x), (0.5, False, x), (1.0, True, torch.zeros(5))):
        c = captured(Drop(p, on), (x,), training=False)
        assert not c.uses_rng
        torch.testing.assert_close(evaluate(c, (x,))[0], expected)


@pytest.mark.parametrize(
    "make",
    [
        lambda x: F.dropout(x, 0.5, inplace=True),
        lambda x: F.dropout1d(x.reshape(1, 40, 100), 0.5).flatten(),
        lambda x: F.alpha_dropout(x, 0.5, True),
        lambda x: nn.Dropout2d(0.5)(x.reshape(1, 40, 10, 10)).flatten(),
    ],
)
def test_other_dropouts_are_native(make):
    class Drop(nn.Module):
        def forward(self, x):
            return make(x)

    c, y, _ = _run(Drop(), torch.ones(4000))
    assert not c.host_ops
    assert y.unique().numel() == 2


MOMENTS = {
    "rand": (lambda x: torch.rand(5000), 0.5, 12**-0.5),
    "rand_like": (lambda x: torch.rand_like(x), 0.5, 12**-0.5),
    "randn": (lambda x: torch.randn(5000), 0.0, 1.0),
    "randn_like": (lambda x: torch.randn_like(x), 0.0, 1.0),
    "normal_": (lambda x: torch.empty(5000).normal_(2.0, 3.0), 2.0, 3.0),
    "normal": (lambda x: torch.normal(x * 0 + 2.0, 3.0), 2.0, 3.0),
    "uniform_": (lambda x: torch.empty(5000).uniform_(-1, 3), 1.0, 4 * 12**-0.5),
    "bernoulli": (lambda x: torch.bernoulli(x * 0 + 0.3), 0.3, 0.21**0.5),
    "bernoulli_": (lambda x: torch.empty(5000).bernoulli_(0.3), 0.3, 0.21**0.5),
    "exponential_": (lambda x: torch.empty(5000).exponential_(2.0), 0.5, 0.5),
    "randint": (lambda x: torch.randint(2, 12, (5000,)).float(), 6.5, 8.25**0.5),
    "distribution": (lambda x: torch.distributions.Normal(x * 0, x * 0 + 2).rsample(), 0.0, 2.0),
}


@pytest.mark.parametrize("name", MOMENTS)
def test_random_ops_have_the_right_moments(name):
    make, mean, std = MOMENTS[name]

    class Draw(nn.Module):
        def forward(self, x):
            return make(x), make(x)

    x = torch.randn(5000)
    c, (a, b), _ = _run(Draw(), x)
    assert not c.host_ops
    assert abs(a.mean().item() - mean) < 5 * std / 5000**0.5
    assert abs(a.std().item() - std) < 0.1 * std
    assert not torch.equal(a, b)


def test_randperm_is_a_permutation():
    class Shuffle(nn.Module):
        def forward(self, x):
            return x[torch.randperm(50)]

    _, y, _ = _run(Shuffle(), torch.arange(50.0))
    assert sorted(y.tolist()) == list(range(50)) and y.tolist() != list(range(50))


def test_attention_dropout_uses_the_key_and_a_stream():
    class Drop(nn.Module):
        def __init__(self):
            super().__init__()
            self.q = nn.Parameter(torch.randn(1, 2, 4, 8))

        def forward(self, x):
            y = F.scaled_dot_product_attention(self.q, x, x, dropout_p=0.3)
            return F.mse_loss(y, x)

    x = torch.randn(1, 2, 4, 8)
    c, _, raw = _run(Drop(), x, training=True)
    graph = ir_interpreter.parse(c.text)
    fwd = next(n for n in graph.nodes if n.name == "sdpa")
    bwd = next(n for n in graph.nodes if n.name == "sdpa_backward")
    assert fwd.args[4] == bwd.args[7] and fwd.args[5] == bwd.args[8] > 0
    assert torch.isfinite(raw.grads["q"]).all()


def test_known_masks_cost_nothing():
    class Masked(nn.Module):
        def __init__(self, mask):
            super().__init__()
            self.make = mask

        def forward(self, x):
            return F.scaled_dot_product_attention(x, x, x, attn_mask=self.make())

    x = torch.randn(2, 2, 5, 4)
    causal = Masked(lambda: torch.ones(5, 5, dtype=torch.bool).tril().expand(2, 1, 5, 5))
    _, graph = check(causal, (x,), training=False)
    node = next(n for n in graph.nodes if n.name == "sdpa")
    assert node.args[3] is None and node.args[7] is True
    everything = Masked(lambda: torch.ones(1, 5, dtype=torch.bool))
    _, graph = check(everything, (x,), training=False)
    node = next(n for n in graph.nodes if n.name == "sdpa")
    assert node.args[3] is None and node.args[7] is False
    banded = Masked(lambda: torch.ones(5, 5, dtype=torch.bool).tril(1))
    _, graph = check(banded, (x,), training=False)
    node = next(n for n in graph.nodes if n.name == "sdpa")
    assert node.args[3] is not None


# Mixed types


def test_float16_model():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 4)).half()
    check(WithLoss(model), (torch.randn(4, 8).half(),), rtol=2e-2, atol=2e-2)


def test_products_of_unlike_types_are_done_in_the_wider():
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(4, 4)
            self.norm = nn.LayerNorm(4)

        def forward(self, x):
            return self.lin(x), self.norm(x)

    c = captured(Mixed(), (torch.randn(3, 4).half(),), training=False)
    assert [o.dtype for o in c.outputs] == [torch.float32, torch.float16]


def test_autocast_casts_show_in_the_text():
    model = nn.Linear(4, 4)

    class Auto(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = model

        def forward(self, x):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return self.lin(x).float()

    check(WithLoss(Auto()), (torch.randn(3, 4),), rtol=2e-2, atol=2e-2)


# Structures by themselves


def test_default_dict_and_custom_parser():
    class Box:
        def __init__(self, t):
            self.t = t

    class Parser:
        def yieldTensors(self, box):  # noqa: N802
            yield box.t

        def reconstruct(self, original, tensors):
            return Box(next(tensors))

    value = collections.defaultdict(list, a=torch.ones(1))
    again = structure.rebuild(value, iter([torch.zeros(1)]))
    assert type(again) is collections.defaultdict and again["a"].item() == 0
    structure.custom_parsers[Box] = Parser()
    try:
        box = [Box(torch.ones(2))]
        assert len(structure.tensors_of(box)) == 1
        assert structure.rebuild(box, iter([torch.zeros(2)]))[0].t.sum() == 0
    finally:
        del structure.custom_parsers[Box]


def test_captures_from_several_threads_do_not_mix():
    texts, errors = {}, []

    def work(width):
        try:
            model = WithLoss(nn.Linear(4, width))
            texts[width] = captured(model, (torch.randn(3, 4),)).text
        except Exception as e:  # noqa: BLE001
            errors.append(e)

    threads = [threading.Thread(target=work, args=(w,)) for w in (2, 3, 5, 7)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors
    for width, text in texts.items():
        assert f"f32[{width},4]" in text
