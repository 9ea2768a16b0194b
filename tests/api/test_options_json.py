# SPDX-License-Identifier: Apache-2.0
"""Options from JSON and from files: setters with checked values, and nothing that is executed."""

import json
import sys

import poptorch
import pytest
import torch


def from_file(tmp_path, text):
    path = tmp_path / "poptorch.conf"
    path.write_text(text)
    return poptorch.Options().loadFromFile(str(path))


# JSON ---------------------------------------------------------------------------------------------


def test_all_kinds_of_setters_are_reached_from_json():
    opts = poptorch.Options().from_json(
        json.dumps(
            {
                "replicationFactor": 4,
                "inputReplicaGrouping": [2, "CommGroupType.Consecutive"],
                "Training.gradientAccumulation": 8,
                "Training.accumulationAndReplicationReductionType": "ReductionType.Sum",
                "Training.setAutomaticLossScaling": True,
                "Precision.enableStochasticRounding": True,
                "TensorLocations.numIOTiles": 32,
                "TensorLocations.setOptimizerLocation": {"onChip": 0},
                "Distributed.configureProcessId": [1, 2],
                "Jit.traceModel": True,
                "setAvailableMemoryProportion": {"IPU0": 0.3},
                "_Popart.set": ["enableOutlining", False],
                "_Popart.setPatterns": {"TiedGather": True},
                "Popart.setEngineOptions": {"opt.useAutoloader": "true"},
                "disableModuleNamescope": [],
                "anchorMode": ["AnchorMode.EveryN", 2],
                "randomSeed": 7,
                "modelName": "a.b",
            }
        )
    )
    assert opts.replication_factor == 4 and opts.input_group_size == 2
    assert opts.Training.gradient_accumulation == 8
    assert opts.Training.accumulation_and_replication_reduction_type == poptorch.ReductionType.Sum
    assert opts.TensorLocations.toDict() == {"numIOTiles": 32, "location_optimizer": {"onChip": 0}}
    assert opts.Distributed.numProcesses == 2
    assert opts.available_memory_proportion == {0: 0.3}
    assert opts.random_seed == 7 and opts.model_name == "a.b" and opts.output_return_period == 2
    backend = opts._Popart.options
    assert backend["enableOutlining"] is False and backend["patterns"] == {"TiedGather": True}
    assert backend["engineOptions"] == {"opt.useAutoloader": "true"}


@pytest.mark.parametrize(
    "path",
    [
        "loadFromFile",
        "from_json",
        "__init__",
        "__class__",
        "__setattr__",
        "clone",
        "toDict",
        "_freeze",
        "set",
        "createOrSet",
        "deleteIfExists",
        "loadFromFile.__globals__.update",
        "Training.__init__",
        "Training.Training.gradientAccumulation",
        "Training._backend.set",
        "_training.gradientAccumulation",
        "_Popart.options.update",
        "device_iterations",
        "Training",
        "",
        ".",
        "Training.",
        "..",
        "deviceIterations.__call__",
    ],
)
def test_json_reaches_setters_only(path, tmp_path):
    opts = poptorch.Options()
    before = repr(opts)
    for value in (1, [], {}, [1], str(tmp_path)):
        with pytest.raises(AttributeError, match="Invalid attribute"):
            opts.from_json(json.dumps({path: value}))
    assert repr(opts) == before and not opts._is_frozen


@pytest.mark.parametrize(
    "text, error, message",
    [
        ("[" * 100_000, ValueError, "nested too deeply"),
        ('{"modelName": ' + "[" * 900 + "]" * 900 + "}", ValueError, "nested too deeply"),
        (
            '{"_Popart.set": ["engineOptions", ' + '{"a": ' * 40 + "1" + "}" * 41 + "]}",
            ValueError,
            "JSON|Expecting|deeply",
        ),
        ("1", ValueError, "JSON object"),
        ('"' + "x" * 10_000 + '"', ValueError, r"JSON object, not .{,90}$"),
        ('{"deviceIterations": [1, 2]}', TypeError, "deviceIterations: too many positional"),
        ('{"deviceIterations": []}', TypeError, "deviceIterations: missing"),
        ('{"deviceIterations": null}', AssertionError, "Unexpected type"),
        ('{"deviceIterations": NaN}', AssertionError, "Unexpected type"),
        ('{"outputMode": "OutputMode.__class__"}', KeyError, "no member of poptorch.OutputMode"),
        ('{"randomSeed": 1' + "0" * 100 + "}", AssertionError, "64 bits"),
        ('{"inputReplicaGrouping": ["a", 1]}', AssertionError, "Expected an int"),
        ('{"setAvailableMemoryProportion": 3}', AssertionError, "Expected a dict"),
        ('{"setAvailableMemoryProportion": {"IPU0": "x"}}', AssertionError, "Expected a number"),
        ('{"updatableNamedBuffers": "abc"}', AssertionError, "list of strings"),
        ('{"enableExecutableCaching": 3}', AssertionError, "Expected a path"),
        ('{"logCycleCount": "yes"}', AssertionError, "Expected a bool"),
        ('{"anchorTensor": [1, 2]}', AssertionError, "name of a tensor"),
        ('{"anchorTensor": ["a", "b", 3]}', AssertionError, "poptorch.OutputMode"),
        ('{"_Popart.set": [[1], 2]}', AssertionError, "name of an option"),
        ('{"_Popart.setEngineOptions": 2}', AssertionError, "dict of engine options"),
        (
            '{"TensorLocations.setWeightLocation": {"__class__": 1}}',
            AssertionError,
            "TensorLocationSettings has no __class__",
        ),
        ('{"TensorLocations.setWeightLocation": {"onChip": "x"}}', AssertionError, "Expected int"),
        ('{"setExecutionStrategy": "PipelinedExecution"}', AssertionError, "execution strategy"),
    ],
)
def test_bad_json_is_refused_with_its_reason(text, error, message):
    opts = poptorch.Options()
    before = repr(opts)
    with pytest.raises(error, match=message):
        opts.from_json(text)
    assert repr(opts) == before
    opts.clone()


SETTERS = [
    (section, name)
    for section in ("", "Training", "Precision", "TensorLocations", "Distributed", "Jit", "_Popart")
    for kind in [type(getattr(poptorch.Options(), section) if section else poptorch.Options())]
    for name in dir(kind)
    if getattr(getattr(kind, name, None), "sets_options", False)
]


@pytest.mark.parametrize("section, name", SETTERS)
def test_no_setter_takes_values_that_it_cannot_use(section, name):
    """Whatever JSON brings: it is set and the options still work, or it is an error of values."""
    for value in (None, "x", 1.5, -1, 2**80, True, [], {}, ["x", "y"], [1, 2], {"x": 1}, [[], []]):
        opts = poptorch.Options()
        path = f"{section}.{name}" if section else name
        try:
            opts.from_json(json.dumps({path: value}))
        except (AssertionError, ValueError, TypeError) as exc:
            assert str(exc), (path, value)
        repr(opts.clone())
        opts.outputMode(poptorch.OutputMode.All).toDict()


def test_setters_of_subclasses_are_setters(tmp_path):
    class Options(poptorch.Options):
        def deviceIterations(self, device_iterations):
            return super().deviceIterations(2 * device_iterations)

        def helper(self, value):
            raise NotImplementedError

    path = tmp_path / "poptorch.conf"
    path.write_text("deviceIterations(4)")
    assert Options().from_json('{"deviceIterations": 3}').device_iterations == 6
    assert Options().loadFromFile(path).device_iterations == 8
    with pytest.raises(AttributeError, match="Invalid attribute helper"):
        Options().from_json('{"helper": 3}')


def test_the_variable_of_bad_default_options_is_named(monkeypatch):
    monkeypatch.setenv("POPTORCH_DEFAULT_OPTIONS", '{"__init__": []}')
    with pytest.raises(AttributeError) as caught:
        poptorch.Options()
    assert "POPTORCH_DEFAULT_OPTIONS" in caught.value.__notes__[0]
    monkeypatch.delenv("POPTORCH_DEFAULT_OPTIONS")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "many")
    with pytest.raises(ValueError, match="OMPI_COMM_WORLD_SIZE must be a number, not 'many'"):
        poptorch.Options()


# Files --------------------------------------------------------------------------------------------


def test_lines_of_a_file_may_have_all_values_that_setters_take(tmp_path):
    opts = from_file(
        tmp_path,
        """
# how it runs
deviceIterations(2 * 4).replicationFactor(2)  # a chain, and a comment
Training.gradientAccumulation(gradient_accumulation=2**3)
Training.accumulationAndReplicationReductionType(poptorch.ReductionType.Sum)
setAvailableMemoryProportion({"IPU0": 0.1, "IPU1": 1 / 4})
Precision.setPartialsType(torch.half)
TensorLocations.setOptimizerLocation(poptorch.TensorLocationSettings().useOnChipStorage(False))
setExecutionStrategy(poptorch.PipelinedExecution(poptorch.Stage("a").ipu(1), poptorch.Stage("b")))
outputMode(poptorch.enums.OutputMode.EveryN, output_return_period=4)
_Popart.set("accumulateOuterFragmentSettings.schedule", int(3))
_Popart.set("customCodelets", ["a.cpp", "b.cpp"])
setExecutionStrategy(poptorch.ParallelPhasedExecution(poptorch.Phase("a").ipus(0)).useSeparateBackwardPhase())
log_dir = "/logs"
Training.gradient_accumulation = options.replication_factor
modelName("it's")
updatableNamedBuffers([])
randomSeed(-1)
""",
    )
    assert (opts.device_iterations, opts.replication_factor) == (8, 2)
    assert opts.Training.gradient_accumulation == 2 and opts.log_dir == "/logs"
    assert opts.available_memory_proportion == {0: 0.1, 1: 0.25}
    assert opts._Popart.options["partialsTypeMatMuls"] == "half"
    assert opts.TensorLocations.location_optimizer == {"onChip": 0}
    assert isinstance(opts._execution_strategy, poptorch.ParallelPhasedExecution)
    assert opts.output_return_period == 4 and opts.model_name == "it's"
    assert opts._Popart.options["customCodelets"] == ["a.cpp", "b.cpp"]


ATTACKS = [
    "deviceIterations(__import__('sys').modules.setdefault('hacked', 1))",
    "deviceIterations(open('hacked', 'w').write('x'))",
    "deviceIterations(eval('1'))",
    "deviceIterations((lambda: 1)())",
    "deviceIterations([c for c in (1, 2)][0])",
    "deviceIterations(1 if True else 2)",
    "modelName(f'{options}')",
    "deviceIterations(poptorch.torch.load('x'))",
    "deviceIterations(int(options.clone().loadFromFile('x')))",
    "modelName('x' * 10**12)",
    "deviceIterations(2 ** 10**10)",
    "deviceIterations(10 ** 10 ** 10)",
    "deviceIterations(1 / 0)",
    "deviceIterations(1); import os",
    "deviceIterations(x := 1)",
    "deviceIterations(**{'device_iterations': 1})",
    "logDir(poptorch.__file__)",
    "logDir(options.__class__.__name__)",
    "_Popart.options = {}",
    "deviceIterations",
    "deviceIterations += 1",
    "modelName('x'.upper())",
    "deviceIterations(" + "-" * 100_000 + "1)",
    "deviceIterations(" + "(" * 1000 + "1" + ")" * 1000 + ")",
]


@pytest.mark.parametrize("line", ATTACKS, ids=[line[:40] for line in ATTACKS])
def test_nothing_of_a_file_is_executed(tmp_path, line, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises((poptorch.ConfigFileError, AttributeError)) as caught:
        from_file(tmp_path, f"# a comment\n{line}\n")
    if isinstance(caught.value, poptorch.ConfigFileError):
        assert "rror at line 2 of " in str(caught.value)
    assert "hacked" not in sys.modules and not (tmp_path / "hacked").exists()


@pytest.mark.parametrize(
    "line",
    ["clone()", "loadFromFile('x')", "__init__()", "from_json('{}')", "_freeze()", "set(a=1)"],
)
def test_a_file_reaches_setters_only(tmp_path, line):
    with pytest.raises(AttributeError, match="Invalid attribute"):
        from_file(tmp_path, line)
    with pytest.raises(AttributeError, match="Invalid attribute"):
        from_file(tmp_path, f"deviceIterations(1).{line}")


def test_a_file_that_is_no_text(tmp_path):
    path = tmp_path / "binary"
    path.write_bytes(bytes(range(256)))
    with pytest.raises(poptorch.ConfigFileError, match="is no text file"):
        poptorch.Options().loadFromFile(path)


def test_a_program_of_two_ways_of_capture_runs_with_either(regression, batch):
    for way in (True, False):
        opts = poptorch.Options().showCompilationProgressBar(False)
        opts.Jit.traceModel(way)
        expected = regression(batch[0])
        expected = expected[0] if isinstance(expected, tuple) else expected
        found = poptorch.inferenceModel(regression, opts)(batch[0])
        found = found[0] if isinstance(found, tuple) else found
        torch.testing.assert_close(found, expected.detach())
