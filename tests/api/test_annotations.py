# SPDX-License-Identifier: Apache-2.0
"""Blocks, name scopes and source locations: what they write into the captured text, and that they
change no results."""

import re

import poptorch
import pytest
import torch
from poptorch import _core
from poptorch.capture import capture
from poptorch.capture.errors import excluding
from poptorch.ops.blocks import placing


def locations(model, strategy=None, **kwargs):
    """(file, line, scope, ipu, stage, phase) of each op of a model of one input."""
    with placing(strategy or poptorch.PipelinedExecution()):
        captured = capture(
            model, [torch.ones(2, 2)], {}, training=False, rows=ROWS, name="x", **kwargs
        )
    rows = re.findall(r'^loc !\d+ "(.*)" (\d+) "(.*)" fwd (\S+) (\S+) (\S+)', captured.text, re.M)
    return [(f, int(n), scope, *map(int, place)) for f, n, scope, *place in rows]


OPS = ("exp", "neg", "sin", "mm", "add", "permute", "mul", "relu")
ROWS = {row.name: row for row in _core.rows() if row.name in OPS}


class Parts(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.ReLU()
        self.second = torch.nn.Sigmoid()

    def forward(self, x):
        return self.second(self.first(x).neg()).exp()


def test_begin_block_lasts_until_the_next_one():
    model = Parts()
    poptorch.BeginBlock(model.second, "b", ipu_id=1)
    places = [row[3:5] for row in locations(model)]
    assert places[0] == (0, 0) and places[-1] == (1, 1)
    assert places == sorted(places), "everything behind the block belongs to it"


def test_blocks_follow_the_strategy():
    class Inline(torch.nn.Module):
        def forward(self, x):
            with poptorch.Block("a"):
                x = x.neg()
            with poptorch.Block("b", ipu_id=4):
                x = x.exp()
            return self.last(x)

        @poptorch.BlockFunction("c")
        def last(self, x):
            return x.sin()

    stages = poptorch.PipelinedExecution("a", poptorch.Stage("b", "c").ipu(2))
    assert [row[3:] for row in locations(Inline(), stages)] == [(0, 0, -1), (2, 1, -1), (2, 1, -1)]
    phases = poptorch.SerialPhasedExecution("a", "b", "c")
    assert [row[5] for row in locations(Inline(), phases)] == [0, 1, 2]


def test_automatic_ids_count_from_zero_and_are_kept():
    class Auto(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = poptorch.BeginBlock(torch.nn.ReLU())
            self.function = poptorch.BeginBlock(torch.neg)

        def forward(self, x):
            poptorch.Block.useAutoId()
            poptorch.Block.start()
            x = x.exp()
            with poptorch.Block("named"):
                x = x.sin()
            return self.function(self.layer(x))

    model = Auto()
    names = poptorch.PipelinedExecution("0", "named", "1", "2")
    assert [row[4] for row in locations(model, names)] == [0, 1, 2, 3]
    assert poptorch.module_repr(model.layer) == "BeginBlock(user_id=1, ipu_id=None) ReLU()"


def test_name_scopes_prefix_the_module():
    class Scoped(Parts):
        def forward(self, x):
            with poptorch.NameScope("outer"), poptorch.NameScope("inner"):
                x = self.first(x)
            torch.ops.poptorch.push_name_scope("pushed")
            x = x.neg()
            torch.ops.poptorch.pop_name_scope()
            return x.exp()

    scopes = [row[2] for row in locations(Scoped())]
    assert scopes == ["outer.inner.first", "pushed", ""]
    assert [row[2] for row in locations(Scoped(), module_scopes=False)][0] == "outer.inner"
    poptorch.NameScope("x").__enter__()  # outside a capture: nothing


def test_excluded_paths_are_never_the_users_line():
    model = Parts()
    assert all(row[0] == __file__ for row in locations(model))
    with excluding(["tests/api/test_annotations"]):
        assert all(row[0] != __file__ for row in locations(model))


def test_location_options_reach_the_capture(regression, batch, opts):
    opts.sourceLocationExcludes([]).appendToLocationExcludes("tests/api/api_support")
    assert opts._source_location_excludes == ["tests/api/api_support"]
    assert poptorch.Options()._source_location_excludes[0] == "install/poptorch"

    class Fails(torch.nn.Module):
        def forward(self, x):
            return x[x > 0]

    with pytest.raises(poptorch.Error) as caught:
        poptorch.inferenceModel(Fails(), opts.appendToLocationExcludes("tests/api"))(batch[0])
    assert __file__ not in caught.value.location
    with pytest.raises(poptorch.Error) as caught:
        poptorch.inferenceModel(Fails(), poptorch.Options())(batch[0])
    assert __file__ in caught.value.location


def test_annotated_models_compute_the_same(regression, batch, opts):
    expected = regression(batch[0])
    poptorch.BeginBlock(regression.linear, "linear", ipu_id=1)
    opts.setExecutionStrategy(poptorch.ShardedExecution()).disableModuleNamescope()
    actual = poptorch.inferenceModel(regression, opts)(batch[0])
    torch.testing.assert_close(actual, expected.detach())


def test_attributes_nest_and_are_restored():
    with poptorch.Attribute(__outline={"layer": "a"}):
        with poptorch.Attribute(other={"k": "v"}):
            assert set(poptorch.Attribute._active) == {"__outline", "other"}
        assert set(poptorch.Attribute._active) == {"__outline"}
    assert not poptorch.Attribute._active


def test_a_tensor_printed_in_forward_has_no_values(batch, opts, capsys):
    class Prints(torch.nn.Module):
        def forward(self, x):
            print(x, f"and {x}")
            return x + 1

    poptorch.inferenceModel(Prints(), opts)(batch[0])
    assert capsys.readouterr().out.count("<unavailable>, shape=[4, 3], dtype=torch.float32") == 2
    assert repr(torch.ones(1)) == "tensor([1.])"
