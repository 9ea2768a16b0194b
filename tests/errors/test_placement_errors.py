# SPDX-License-Identifier: Apache-2.0
"""Blocks that can't be placed, and more IPUs than there are: refused when the model is compiled,
with the name of the block and the user's line."""

import inspect
import re

import poptorch
import pytest
import torch
from torch import nn

F32 = torch.ones(8, 2)


def options(strategy=None, **settings):
    opts = poptorch.Options().showCompilationProgressBar(False)
    if strategy is not None:
        opts.setExecutionStrategy(strategy)
    for name, value in settings.items():
        getattr(opts, name)(value)
    return opts


def refused(model, opts, text, *names, line=None):
    """The error of a model that must not compile."""
    with pytest.raises(poptorch.Error, match=text) as caught:
        poptorch.inferenceModel(model, opts)(F32)
    for name in names:
        assert name in str(caught.value)
    if line is not None:
        source, first = inspect.getsourcelines(type(model))
        number = first + next(i for i, row in enumerate(source) if line in row)
        assert caught.value.location == f"{__file__}:{number}"
    return caught.value


def layers(count, ipus, **kwargs):
    """A chain of linear layers, each a block."""
    model = nn.Sequential(*[nn.Linear(2, 2) for _ in range(count)])
    for i, ipu in enumerate(ipus):
        poptorch.BeginBlock(model[i], f"b{i}", ipu_id=ipu, **kwargs)
    return model


class LeavesBlocks(nn.Module):
    def forward(self, x):
        with poptorch.Block("a", ipu_id=0):
            x = x.neg()
        return x.exp()  # nowhere


def test_an_op_behind_a_block_belongs_nowhere():
    refused(LeavesBlocks(), options(), "No active Block, all the ops must belong", line="# nowhere")


class Nested(nn.Module):
    def forward(self, x):
        with poptorch.Block("a", ipu_id=0):
            with poptorch.Block("b", ipu_id=0):
                x = x.neg()
            return x.exp()  # nowhere


def test_blocks_do_not_nest():
    refused(Nested(), options(), "No active Block", line="# nowhere")


class GoesBack(nn.Module):
    def forward(self, x):
        with poptorch.Block("0", ipu_id=0):
            x = x.neg()
        with poptorch.Block("1", ipu_id=1):
            x = x.exp()
        with poptorch.Block("2", ipu_id=0):
            return x.sin()  # late


def test_stages_ascend_in_a_pipeline():
    text = "stages must ascend in the order in which blocks run"
    refused(GoesBack(), options(deviceIterations=4), text, "'1'", "'2'", line="# late")
    auto = poptorch.PipelinedExecution(poptorch.AutoStage.AutoIncrement)
    model = GoesBack()
    opts = options(auto, deviceIterations=4)
    torch.testing.assert_close(poptorch.inferenceModel(model, opts)(F32), model(F32))
    sharded = options(poptorch.ShardedExecution())
    torch.testing.assert_close(poptorch.inferenceModel(model, sharded)(F32), model(F32))


class Branches(nn.Module):
    def forward(self, x):
        with poptorch.Block("right", ipu_id=1):
            right = x.neg()
        with poptorch.Block("left", ipu_id=0):
            left = x.exp()
        with poptorch.Block("both", ipu_id=1):
            return left + right


def test_branches_may_begin_in_any_order():
    model = Branches()
    actual = poptorch.inferenceModel(model, options(deviceIterations=4))(F32)
    torch.testing.assert_close(actual, model(F32))


class Shares(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x):
        with poptorch.Block("a", ipu_id=0):
            x = self.layer(x)
        with poptorch.Block("b", ipu_id=1):
            return self.layer(x)  # again


def test_shards_do_not_share_weights():
    opts = options(poptorch.ShardedExecution())
    text = "layer.* must be on the same IPU"
    refused(Shares(), opts, text, "'a'", "'b'", "layer.", line="# again")
    model = Shares()
    actual = poptorch.inferenceModel(model, options(deviceIterations=2))(F32)
    torch.testing.assert_close(actual, model(F32).detach())


def test_shards_may_read_the_same_buffer():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("scale", torch.tensor([2.0, 3.0]))

        def forward(self, x):
            with poptorch.Block("a", ipu_id=0):
                x = x * self.scale
            with poptorch.Block("b", ipu_id=1):
                return x.exp() + self.scale

    model, opts = Scaled(), options(poptorch.ShardedExecution())
    torch.testing.assert_close(poptorch.inferenceModel(model, opts)(F32), model(F32))


class Unused(nn.Module):
    def forward(self, x):
        with poptorch.Block("used", ipu_id=0):
            y = x.neg()
        with poptorch.Block("wasted", ipu_id=1):
            x.exp()  # wasted
        with poptorch.Block("last", ipu_id=1):
            return y.sin()


def test_a_block_without_use_is_refused():
    refused(Unused(), options(deviceIterations=2), "remove unused layers", line="# wasted")


class Parts(nn.Module):
    """Runs its layers in turn, but not `spare`; `block` and `function` only in training."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.spare = (nn.Linear(2, 2) for _ in range(3))
        self.block = self.function = None

    def forward(self, x, target=None):
        return nn.functional.mse_loss(self.second(self.first(x)), target)


class Evaluated(Parts):
    def forward(self, x):
        return self.second(self.first(x))


def here():
    return inspect.currentframe().f_back.f_lineno


@pytest.mark.parametrize("kind", ("layer", "function", "scope"))
def test_an_annotated_part_that_never_runs_is_warned_about(kind, log):
    model = Parts()
    if kind == "layer":
        name, line = "spare", here() + 1
        poptorch.BeginBlock(model.spare, "wasted", ipu_id=1)
    elif kind == "function":
        name, line = "function", here() + 1
        model.function = poptorch.BeginBlock(torch.neg, "wasted", ipu_id=1)
    else:
        name, line = "block", here() + 1
        model.block = poptorch.Block("wasted", ipu_id=1)
    poptorch.trainingModel(model, options())(F32, F32)
    found = [r.getMessage() for r in log.records if "never runs" in r.getMessage()]
    assert len(found) == 1 and f"{__file__}:{line}" in found[0]
    assert re.search(rf"Block 'wasted' was given to {name} \(\w+\), which never runs", found[0])


def test_evaluation_may_leave_out_what_training_runs(log):
    model = Evaluated()
    model.function = poptorch.BeginBlock(nn.functional.mse_loss, "loss", ipu_id=0)
    poptorch.BeginBlock(model.spare, "extra", ipu_id=1)
    for mode in (True, False):
        log.clear()
        model.train(mode)
        actual = poptorch.inferenceModel(model, options())(F32)
        torch.testing.assert_close(actual, model(F32).detach())
        assert log.text.count("never runs") == 1 and "Block 'extra' was given to spare" in log.text


def test_an_embedding_with_a_block_whose_weight_is_only_read_trains_as_in_eager(log):
    """As in Whisper: ``embed_positions`` has a block, and forward takes its weight."""

    class Decoder(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(1)
            self.positions = poptorch.BeginBlock(nn.Embedding(4, 4), "positions", ipu_id=0)
            self.layer = poptorch.BeginBlock(nn.Linear(4, 4), "layer", ipu_id=1)
            self.loss = nn.MSELoss()

        def forward(self, x, y):
            out = self.layer(x + self.positions.weight)
            return out, self.loss(out, y)

    x, y = torch.randn(3, 4, 4), torch.randn(3, 4, 4)
    eager = Decoder()
    step = torch.optim.SGD(eager.parameters(), lr=0.1)
    for part in zip(x, y, strict=True):
        (eager(*part)[1] / 3).backward()
    step.step()
    model = Decoder()
    opts = options()
    opts.Training.gradientAccumulation(3)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    poptorch.trainingModel(model, opts, sgd)(x.reshape(12, 4), y.reshape(12, 4))
    torch.testing.assert_close(dict(model.named_parameters()), dict(eager.named_parameters()))
    assert "Block 'positions' was given to positions (Embedding)" in log.text


def test_blocks_are_written_in_the_order_in_which_they_run():
    model = Evaluated()
    poptorch.BeginBlock(model.second, "later", ipu_id=1)
    line = here() + 1
    poptorch.BeginBlock(model.first, "earlier", ipu_id=0)
    text = "Block 'earlier' runs before Block 'later', but its BeginBlock was written after"
    opts = options(deviceIterations=2)
    assert refused(model, opts, text, "model.second").location == f"{__file__}:{line}"
    poptorch.removeBlocks(model)
    poptorch.BeginBlock(model.second, "b", ipu_id=0)  # on one IPU the order says nothing
    poptorch.BeginBlock(model.first, "a", ipu_id=0)
    assert poptorch.inferenceModel(model, options())(F32) is not None


@pytest.mark.parametrize("ipu", (-1, "x", 1.5))
def test_an_ipu_has_a_number(ipu):
    class Here(nn.Module):
        def forward(self, x):
            with poptorch.Block("a", ipu_id=ipu):
                return x.neg()

    text = f"Block 'a' needs the number of an IPU, got {ipu!r}"
    assert __file__ in refused(Here(), options(), text).location
    if ipu == -1:
        stage = poptorch.Stage("b0").ipu(ipu)
        text = "Block 'b0' needs the number of an IPU, got -1"
        refused(layers(1, [None]), options(poptorch.PipelinedExecution(stage)), text)


def test_blocks_that_no_strategy_places_name_the_line():
    class Unknown(nn.Module):
        def forward(self, x):
            with poptorch.Block("here"):
                return x.neg()

    opts = options(poptorch.PipelinedExecution("there"))
    with pytest.raises(AssertionError, match="Unknown Block 'here' list of expected") as caught:
        poptorch.inferenceModel(Unknown(), opts)(F32)
    assert __file__ in caught.value.__notes__[0]
    with pytest.raises(AssertionError, match="no IPU was specified for block here") as caught:
        poptorch.inferenceModel(Unknown(), options())(F32)
    assert __file__ in caught.value.__notes__[0]


def test_phases_alternate_between_even_and_odd_ipus():
    model = layers(2, [0, 2])
    strategy = poptorch.ParallelPhasedExecution("b0", "b1")
    text = "even phases must run on even IPUs and odd phases on odd IPUs"
    refused(model, options(strategy), text, "'b1'")
    strategy = poptorch.ParallelPhasedExecution("b0", "b1")
    strategy._tensors_liveness = poptorch.Liveness.OffChipAfterEachPhase
    refused(model, options(strategy), "only supported for serial phase execution")


# Numbers ------------------------------------------------------------------------------------------


def test_a_pipeline_needs_enough_device_iterations():
    text = "deviceIterations must be greater than or equal to the number of pipeline stages"
    refused(layers(2, [0, 1]), options(), text)
    assert poptorch.inferenceModel(layers(2, [0, 1]), options(deviceIterations=2))(F32) is not None
    sharded = options(poptorch.ShardedExecution())
    assert poptorch.inferenceModel(layers(2, [0, 1]), sharded)(F32) is not None


def test_a_pipeline_needs_enough_accumulation():
    class Trained(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = layers(2, [0, 1])

        def forward(self, x):
            return poptorch.identity_loss(self.body(x), reduction="mean")

    def train(factor):
        opts = options()
        opts.Training.gradientAccumulation(factor)
        model = Trained()
        optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
        return poptorch.trainingModel(model, opts, optimizer)(torch.ones(2 * factor, 2))

    text = "gradientAccumulation must be greater than or equal to the number of pipeline stages"
    for factor in (1, 2):
        with pytest.raises(poptorch.Error, match=text):
            train(factor)
    assert train(3) is not None


def test_a_pipeline_returns_no_period():
    opts = options(deviceIterations=4).outputMode(poptorch.OutputMode.EveryN, 2)
    refused(layers(2, [0, 1]), opts, "AnchorReturnType::EVERYN is not valid for pipelined models")
    assert poptorch.inferenceModel(layers(1, [0]), opts)(F32) is not None


def test_ipus_are_reserved_in_powers_of_two(log):
    model = layers(3, [0, 1, 2])
    opts = options(deviceIterations=4)
    text = "The model specifies the use of 3 IPUs, however PopTorch must reserve a minimum of 4"
    refused(model, opts, text)
    refused(layers(1, [2]), options(deviceIterations=4), "the use of 3 IPUs")
    opts = options(deviceIterations=4, autoRoundNumIPUs=True)
    poptorch.inferenceModel(model, opts)(F32)
    assert "Reserving 4 IPUs when the model specifices the use of only 3" in log.text
    # Not for the IPU Model.
    poptorch.inferenceModel(model, options(deviceIterations=4, useIpuModel=True))(F32)


def test_replicas_multiply(monkeypatch):
    opts = options(poptorch.ShardedExecution(), replicationFactor=4)
    monkeypatch.setenv("TESSERA_IPUS", "4")
    refused(layers(2, [0, 1]), opts, r"Failed to acquire 8 IPU\(s\)", "TESSERA_IPUS=8")
    monkeypatch.setenv("TESSERA_IPUS", "many")
    refused(layers(2, [0, 1]), opts, "TESSERA_IPUS must be a number, not 'many'")
    with pytest.raises(poptorch.Error, match="TESSERA_IPUS must be a number, not 'many'"):
        poptorch.ipuHardwareIsAvailable()
    monkeypatch.setenv("TESSERA_IPUS", "8")
    assert poptorch.inferenceModel(layers(2, [0, 1]), opts)(F32) is not None


def test_a_process_has_64_ipus_at_most():
    opts = options(poptorch.ShardedExecution())
    text = r"Too many IPUs requested \(65\). Experiments that need more than 64"
    refused(layers(1, [64]), opts, text)
