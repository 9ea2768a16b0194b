# SPDX-License-Identifier: Apache-2.0
"""The table of options: each row has an effect, the key of compiled programs follows exactly the
rows that change the program, and options travel between processes."""

import copy
import multiprocessing
import pickle
import re
from enum import Enum

import poptorch
import pytest
import torch
from poptorch import _core
from poptorch.base import logging as _logging
from poptorch.options.table import OPTIONS, UNSET, Effect

ROWS = [row for row in OPTIONS if row.section != "TensorLocationSettings"]


def part_of(opts, row):
    return opts if row.section == "Options" else getattr(opts, row.section)


def other_value(row):
    """A value that is not the default."""
    value = row.default
    if isinstance(value, Enum):
        return next(m for m in type(value) if m != value)
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, dict):
        return {"key": 1}
    if isinstance(value, str):
        return value + "x"
    return value + ["x"] if isinstance(value, list) else "set"


def with_other_value(row):
    opts = poptorch.Options()
    if row.backend:
        opts._Popart.set(row.key, other_value(row))
    else:
        part_of(opts, row)._values[row.key] = other_value(row)
    return opts


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.section}.{row.key}")
def test_the_key_changes_exactly_with_what_changes_the_program(row):
    changed = with_other_value(row).program_key() != poptorch.Options().program_key()
    assert changed == (row.effect is Effect.PROGRAM)


@pytest.mark.parametrize("row", OPTIONS, ids=lambda row: f"{row.section}.{row.key}")
def test_every_row_says_what_it_changes_and_how_it_is_set(row):
    holder = poptorch.TensorLocationSettings() if row not in ROWS else None
    holder = holder or part_of(poptorch.Options(), row)
    assert isinstance(row.effect, Effect) and row.doc.endswith(".")
    if row.setter:
        assert row.effect.value[1:] in getattr(holder, row.setter).__doc__
    elif row.method:
        assert callable(getattr(holder, row.method))
    if row.default is not UNSET and not row.backend:
        assert holder.exists(row.key)


def test_there_are_no_rows_twice_and_no_values_without_a_row():
    keys = [(row.section, row.key) for row in OPTIONS]
    assert len(set(keys)) == len(keys)
    opts = poptorch.Options()
    for section in ("Options", "Training", "Precision", "Jit", "TensorLocations", "Distributed"):
        part = opts if section == "Options" else getattr(opts, section)
        stored = set(part._values) - {"_execution_strategy"}
        assert stored <= {key for s, key in keys if s == section}
    assert set(opts._Popart.options) <= {row.key for row in OPTIONS if row.backend}


STRATEGIES = [
    poptorch.PipelinedExecution(),
    poptorch.PipelinedExecution(poptorch.AutoStage.AutoIncrement),
    poptorch.ShardedExecution(),
    poptorch.PipelinedExecution("a", "b"),
    poptorch.PipelinedExecution("a", poptorch.Stage("b").ipu(3)),
    poptorch.PipelinedExecution(["a", "b"]),
    poptorch.SerialPhasedExecution("a", "b"),
    poptorch.ParallelPhasedExecution("a", "b"),
    poptorch.SerialPhasedExecution(["a", "b"]),
    poptorch.SerialPhasedExecution("a", "b").useSeparateBackwardPhase(),
    poptorch.SerialPhasedExecution("a", "b").setTensorsLiveness(poptorch.Liveness.OffChipAfterFwd),
    poptorch.SerialPhasedExecution(poptorch.Phase("a").ipus(2), "b"),
]


def test_the_key_tells_strategies_apart():
    keys = [
        str(poptorch.Options().setExecutionStrategy(strategy).program_key())
        for strategy in STRATEGIES
    ]
    assert len(set(keys)) == len(keys)
    again = poptorch.Options().setExecutionStrategy(poptorch.PipelinedExecution("a", "b"))
    assert str(again.program_key()) == keys[3]


OUTSIDE_THE_KEY = [
    lambda o: o.logDir("elsewhere").maxRepeatLogs(1).modelName("mine").autoRoundNumIPUs(),
    lambda o: o.connectionType(poptorch.ConnectionType.OnDemand).useIpuId(3).useIpuModel(True),
    lambda o: o.syncPattern(poptorch.SyncPattern.SinglePipeline).enableStableNorm(True),
    lambda o: o.setAvailableMemoryProportion({"IPU0": 0.1}).updatableNamedBuffers(["a"]),
    lambda o: o.relaxOptimizerAttributesChecks().disableModuleNamescope(),
    lambda o: o.sourceLocationExcludes(["tests"]).logCycleCount(True).randomSeed(9),
    lambda o: o.enableSyntheticData(True).enableExecutableCaching("a").enableProfiling("b"),
    lambda o: o.TensorLocations.numIOTiles(32),
    lambda o: o._Popart.setPatterns({"TiedGather": True}).set("enableOutlining", False),
]


@pytest.fixture
def no_log_file(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    yield
    _logging.write_to(None)


@pytest.mark.usefixtures("no_log_file")
def test_options_outside_the_key_compile_to_the_same_program(regression, batch, opts, monkeypatch):
    """What the core is given: the text without source locations, and its options."""
    given = []
    compile_text = _core.compile

    def spy(text, options, *rest):
        lines = [line for line in text.splitlines() if not line.startswith("loc ")]
        plain = [re.sub(r" !\d+$", "", line) for line in lines]
        given.append((plain, {**options, "seed": 0}))
        return compile_text(text, options, *rest)

    monkeypatch.setattr(_core, "compile", spy)
    for change in (lambda o: None, *OUTSIDE_THE_KEY, lambda o: o.Training.gradientAccumulation(2)):
        changed = opts.clone()
        change(changed)
        twin = copy.deepcopy(regression)
        poptorch.trainingModel(twin, changed).compile(*batch)
    same, different = given[:-1], given[-1]
    assert all(what == given[0] for what in same)
    assert different != given[0]


# Copies -------------------------------------------------------------------------------------------


def configured():
    opts = poptorch.Options().deviceIterations(3).randomSeed(5).modelName("mine")
    opts.setExecutionStrategy(poptorch.ShardedExecution("a", poptorch.Stage("b").ipu(1)))
    opts.outputMode(poptorch.OutputMode.EveryN, 3)
    opts.Training.gradientAccumulation(2)
    opts.Precision.setPartialsType(torch.half)
    opts.Precision.autocastPolicy(poptorch.autocasting.default)
    opts.TensorLocations.setWeightLocation(poptorch.TensorLocationSettings().useOnChipStorage(True))
    opts.Distributed.configureProcessId(1, 4)
    opts._Popart.setPatterns({"TiedGather": True}, 1)
    opts.anchorTensor("short", "long")
    return opts


@pytest.mark.parametrize(
    "duplicate",
    [copy.deepcopy, lambda o: o.clone(), lambda o: pickle.loads(pickle.dumps(o))],
    ids=["deepcopy", "clone", "pickle"],
)
def test_a_copy_is_equal_and_independent(duplicate):
    opts = configured()
    twin = duplicate(opts)
    assert repr(twin) == repr(opts) and twin.program_key() == opts.program_key()
    twin.Training.gradientAccumulation(7)
    twin.Precision.enableStochasticRounding(True)
    twin._Popart.set("enableOutlining", False)
    twin.anchored_tensors["other"] = []
    twin.deviceIterations(9)
    assert opts.program_key() == configured().program_key()
    assert "enableStochasticRounding" not in opts._Popart.options
    assert twin._Popart.options["enableStochasticRounding"] is True
    assert twin._Popart is twin._popart and twin.Training._backend is twin._Popart


def test_pickled_options_stay_frozen(regression):
    opts = poptorch.Options()
    poptorch.inferenceModel(regression, opts)
    twin = pickle.loads(pickle.dumps(opts))
    for change in (
        lambda: twin.deviceIterations(2),
        lambda: twin.Training.gradientAccumulation(2),
        lambda: twin._Popart.set("key", 1),
    ):
        with pytest.raises(AttributeError, match="Can't modify frozen Options"):
            change()
    assert twin.clone().deviceIterations(2).device_iterations == 2


def send_back(opts, queue):
    queue.put((opts.device_iterations, opts.Training.gradient_accumulation, repr(opts)))


def test_options_reach_another_process():
    context = multiprocessing.get_context("spawn")
    opts, queue = configured(), context.Queue()
    worker = context.Process(target=send_back, args=(opts, queue))
    worker.start()
    assert queue.get(timeout=120) == (3, 2, repr(opts))
    worker.join(60)
    assert worker.exitcode == 0


def test_parts_are_read_only_and_always_the_same():
    opts = poptorch.Options()
    for name in ("TensorLocations", "Distributed", "Jit", "Precision", "Training", "_Popart"):
        assert getattr(opts, name) is getattr(opts, name)
        with pytest.raises((AttributeError, AssertionError)):
            setattr(opts, name, None)
