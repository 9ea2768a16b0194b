# SPDX-License-Identifier: Apache-2.0
"""Stages, phases, strategies and blocks: what they accept, and how they refuse the rest."""

import poptorch
import pytest
import torch

P, S, Stage, Phase = (
    poptorch.PipelinedExecution,
    poptorch.SerialPhasedExecution,
    poptorch.Stage,
    poptorch.Phase,
)


@pytest.mark.parametrize(
    "make, error, text",
    [
        (lambda: Stage("a", 1), AssertionError, "Block IDs are supposed to be strings but got"),
        (lambda: Stage("a").ipu("0"), AssertionError, "IPU number"),
        (lambda: Phase("a", Stage("b")), AssertionError, "All arguments must either be block IDs"),
        (lambda: Phase(1), AssertionError, "All arguments must either be block IDs"),
        (
            lambda: Phase(Stage("a"), Stage("b")).ipus(0),
            AssertionError,
            "Phase contains 2 stages but you provided 1 ipus",
        ),
        (lambda: P("a", Stage("a")), AssertionError, "a associated with more than one stage"),
        (lambda: P("a", 1), TypeError, "Expected a Stage"),
        (lambda: P(poptorch.AutoStage.SameAsIpu, "a"), TypeError, "AutoStage"),
        (lambda: P("a").stage("b"), AssertionError, "Unknown block b"),
        (lambda: P().stage("a"), AssertionError, "Unknown block a"),
        (lambda: S(), AssertionError, "There is currently no AutoStage for PhasedExecution"),
        (
            lambda: poptorch.ParallelPhasedExecution(),
            AssertionError,
            "There is currently no AutoStage for PhasedExecution",
        ),
        (lambda: S([Phase("a"), Phase("b")]), AssertionError, "All arguments must either be"),
        (lambda: S("a", "a"), AssertionError, "a associated with more than one stage"),
        (lambda: S("a").phase(-1), AssertionError, "Phases are identified by positive integers"),
        (lambda: S("a").phase("0"), AssertionError, "Phases are identified by positive integers"),
        (lambda: S("a").setTensorsLiveness(1), AssertionError, "poptorch.Liveness"),
        (lambda: P("a").getStage("b"), AssertionError, "Unknown Block 'b' list of expected Blocks"),
        (
            lambda: P().getStage("b"),
            AssertionError,
            "poptorch.AutoStage.SameAsIpu was selected but no IPU was specified for block b",
        ),
    ],
)
def test_arguments_that_are_refused(make, error, text):
    with pytest.raises(error, match=text):
        make()


def test_stages_are_numbered_by_their_place():
    strategy = P("a", ["b", "c"], Stage("d").ipu(7))
    assert strategy.stage("c").blocks == ["b", "c"]
    assert strategy.getStage("a") == (0, -1, 0)
    assert strategy.getStage("c", 5) == (1, -1, 5)
    assert strategy.getStage("d", 5) == (2, -1, 7)


def test_automatic_stages():
    same = P()
    assert same.getStage("a", 2) == (2, -1, 2)
    assert same.getStage("a", 3) == (2, -1, 3), "the stage is fixed by the first use"
    auto = poptorch.ShardedExecution(poptorch.AutoStage.AutoIncrement)
    assert [auto.getStage(b)[0] for b in "aba"] == [1, 2, 1]
    auto.onStartTracing()
    assert auto.getStage("b")[0] == 1


def test_phases():
    strategy = S(Phase("a"), [Stage("b"), Stage("c")], ["d", "e"], "f")
    assert [len(strategy.phase(i).stages) for i in range(4)] == [1, 2, 1, 1]
    strategy.phase(1).ipus(3, 4)
    assert strategy.getStage("c") == (2, 1, 4)
    assert strategy.phase(2).stage(0).blocks == ["d", "e"]
    assert strategy.useSeparateBackwardPhase() is strategy
    assert strategy.setTensorsLiveness(poptorch.Liveness.OffChipAfterEachPhase) is strategy
    assert strategy.backendOptions() == {
        "execution_mode": 2,
        "separate_backward_phase": True,
        "tensors_liveness": 3,
        "serial_phases_execution": True,
    }
    parallel = poptorch.ParallelPhasedExecution("a").sendTensorsOffChipAfterFwd()
    assert parallel.backendOptions()["tensors_liveness"] == 1
    assert parallel.sendTensorsOffChipAfterFwd(False).backendOptions()["tensors_liveness"] == 0
    assert poptorch.ShardedExecution().backendOptions() == {"execution_mode": 1}
    assert P().backendOptions() == {"execution_mode": 0}


# Blocks -------------------------------------------------------------------------------------------


def test_a_module_belongs_to_one_block():
    layer = torch.nn.Linear(2, 2)
    assert poptorch.BeginBlock(layer, "a", ipu_id=1) is layer
    with pytest.raises(poptorch.Error, match="module has already been assigned to a block."):
        poptorch.BeginBlock(layer, "b")
    with pytest.raises(poptorch.Error, match="is not an instance of torch.nn.Module or function."):
        poptorch.BeginBlock(3)
    poptorch.removeBlocks(layer)
    poptorch.BeginBlock(layer, "b")
    with pytest.raises(AssertionError, match="torch.nn.Module"):
        poptorch.removeBlocks(3)


def test_blocks_are_shown_in_the_text_of_a_model(capsys, opts):
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Sequential(torch.nn.ReLU()))
    plain = repr(model)
    assert poptorch.module_repr(model) == plain
    poptorch.BeginBlock(model[1][0], "relu", ipu_id=1)
    assert "BeginBlock(user_id=relu, ipu_id=1) ReLU()" in poptorch.module_repr(model)
    assert repr(poptorch.inferenceModel(model, opts)) == poptorch.module_repr(model)
    poptorch.print(model)
    poptorch.print(3)
    assert capsys.readouterr().out == poptorch.module_repr(model) + "\n3\n"
    poptorch.removeBlocks(model)
    assert poptorch.module_repr(model) == plain


def test_a_block_that_no_stage_lists_is_refused_when_captured(opts):
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    poptorch.BeginBlock(model[0], "here")
    opts.setExecutionStrategy(P("there"))
    inference = poptorch.inferenceModel(model, opts)
    with pytest.raises(AssertionError, match="Unknown Block 'here' list of expected Blocks"):
        inference(torch.ones(1, 2))
    model(torch.ones(1, 2))  # outside a capture blocks have no effect


def test_name_scope_needs_a_string():
    with pytest.raises(AssertionError, match="Parameter to NameScope must be a string"):
        poptorch.NameScope(1)
