# SPDX-License-Identifier: Apache-2.0
"""Options that are refused: by their setters, by files and JSON, and when a model is compiled."""

import json

import poptorch
import pytest
import torch
from poptorch.options import backend_keys

LOCATION = poptorch.TensorLocationSettings


@pytest.mark.parametrize(
    "change, error, text",
    [
        (lambda o: o.nothing, AttributeError, r"Invalid attribute nothing\."),
        (lambda o: o("nothing"), AttributeError, r"Invalid attribute nothing\."),
        (lambda o: o.Training.nothing, AttributeError, r"Invalid attribute nothing\."),
        (lambda o: setattr(o.Training, "x", 1), AssertionError, "Invalid option x, valid options"),
        (lambda o: setattr(o.Jit, "_x", 1), AttributeError, "Invalid private attribute"),
        (lambda o: o.deviceIterations("2"), AssertionError, "Unexpected type .* for option device"),
        (lambda o: o.logDir(3), AssertionError, "Unexpected type .* for option log_dir. Expected"),
        (
            lambda o: o.Training.setMeanAccumulationAndReplicationReductionStrategy("Post"),
            AssertionError,
            "Unexpected type",
        ),
        (lambda o: o.Training.gradientAccumulation(1.5), AssertionError, "Unexpected type"),
        (lambda o: o.setExecutionStrategy(None), AssertionError, "execution strategy"),
        (lambda o: o.useIpuId("1"), AssertionError, "Expected int"),
        (lambda o: o.randomSeed(1.5), AssertionError, "Expected an int"),
        (
            lambda o: o.setAvailableMemoryProportion({"IPU": 1.0}),
            AssertionError,
            "Invalid key: IPU",
        ),
        (lambda o: o._Popart.setPatterns([]), AssertionError, "Expected a dict"),
        (lambda o: o._Popart.setPatterns({}, "2"), AssertionError, "Expected an int"),
        (
            lambda o: o.Precision.enableStochasticRounding("yes"),
            AssertionError,
            "needs to be set to a bool",
        ),
        (
            lambda o: o.Precision.setPartialsType("half"),
            ValueError,
            "parameter to setPartialsType should be",
        ),
        (lambda o: o.Precision.runningStatisticsAlwaysFloat(1), ValueError, "needs a bool"),
        (lambda o: o.Precision.autocastEnabled(1), ValueError, "needs a bool"),
        (lambda o: o.Precision.halfFloatCasting("up"), ValueError, "HalfFloatCastingBehavior"),
        (lambda o: o.Precision.autocastPolicy("all"), ValueError, "autocasting.Policy"),
        (lambda o: o.TensorLocations.numIOTiles(30), AssertionError, "even number between 32 and"),
        (lambda o: o.TensorLocations.numIOTiles(194), AssertionError, "even number between 32 and"),
        (lambda o: o.TensorLocations.setActivationLocation(1), AssertionError, "TensorLocationSet"),
        (lambda o: o.TensorLocations.setOptimizerLocation(1), AssertionError, "TensorLocationSet"),
        (lambda o: o.TensorLocations.setAccumulatorLocation(1), AssertionError, "TensorLocationSe"),
        (lambda o: LOCATION().useOnChipStorage(1), AssertionError, "Expected a bool or None"),
        (lambda o: LOCATION().minElementsForOffChip(1.5), AssertionError, "Expected int"),
        (lambda o: o.from_json("[1]"), ValueError, "JSON object"),
        (lambda o: o.from_json("{"), json.JSONDecodeError, "Expecting"),
        (lambda o: o.from_json('{"Training.nothing": 1}'), AttributeError, "Invalid attribute"),
        (lambda o: o.from_json('{"outputMode": "OutputMode.Most"}'), KeyError, "Most"),
        (lambda o: o.from_json('{"outputMode": "All"}'), AssertionError, "poptorch.OutputMode"),
    ],
)
def test_values_that_are_refused_when_they_are_set(change, error, text):
    opts = poptorch.Options()
    before = repr(opts)
    with pytest.raises(error, match=text):
        change(opts)
    assert repr(opts) == before


def test_a_config_file_with_a_syntax_error_names_line_and_text(tmp_path):
    path = tmp_path / "poptorch.conf"
    path.write_text("# options\n\ndeviceIterations(2)\nTraining.gradientAccumulation(4\n")
    with pytest.raises(poptorch.ConfigFileError) as caught:
        poptorch.Options().loadFromFile(str(path))
    text = str(caught.value)
    assert text.startswith(f"SyntaxError at line 4 of {path}: ")
    assert text.endswith("\n> Training.gradientAccumulation(4")
    assert type(caught.value).__bases__ == (Exception,)


@pytest.mark.parametrize(
    "line, error",
    [
        ("nothing(1)", AttributeError),
        ("Training.nothing(1)", AttributeError),
        ("deviceIterations('2')", AssertionError),
        ("outputMode(poptorch.OutputMode.Most)", AttributeError),
    ],
)
def test_other_errors_of_a_config_file_pass_through(tmp_path, line, error):
    path = tmp_path / "poptorch.conf"
    path.write_text(line)
    with pytest.raises(error):
        poptorch.Options().loadFromFile(str(path))
    with pytest.raises(FileNotFoundError):
        poptorch.Options().loadFromFile(str(tmp_path / "none.conf"))


def test_bad_default_options_are_refused_by_the_constructor(monkeypatch):
    monkeypatch.setenv("POPTORCH_DEFAULT_OPTIONS", '{"nothing": 1}')
    with pytest.raises(AttributeError, match="Invalid attribute nothing"):
        poptorch.Options()


# At compile time ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change, text",
    [
        (lambda o: o.deviceIterations(0), "'Batches per step' must be greater than zero"),
        (lambda o: o.deviceIterations(-3), "'Batches per step' must be greater than zero"),
        (lambda o: o.replicationFactor(0), "replicationFactor must be positive"),
        (lambda o: o._Popart.set("nothing", True), "Unknown bool option nothing"),
        (lambda o: o._Popart.set("nothing", 1), "Unknown uint64 option nothing"),
        (lambda o: o._Popart.set("nothing", 1.0), "Unknown floating point option nothing"),
        (lambda o: o._Popart.set("nothing", "a"), "Unknown string option nothing"),
        (lambda o: o._Popart.set("nothing", [1]), "Unknown set / vector option nothing"),
        (lambda o: o._Popart.set("nothing", {1: 1}), "Unknown map option nothing"),
        (
            lambda o: o._Popart.set("convolutionOptions", ["x"]),
            "Unknown set / vector option convolutionOptions",
        ),
        (lambda o: o._Popart.set("customCodelets", {}), "Unknown map option customCodelets"),
        (lambda o: o._Popart.set("enableOutlining", 1), "Unknown uint64 option enableOutlining"),
        (lambda o: o._Popart.set("outlineThreshold", 1), "Unknown uint64 option outlineThreshold"),
        (
            lambda o: o._Popart.set("subgraphCopyingStrategy", 2),
            "Value for SubgraphCopyingStrategy out of range",
        ),
        (
            lambda o: o._Popart.set("autoRecomputation", -1),
            "Value for RecomputationType out of range",
        ),
        (
            lambda o: o.useOfflineIpuTarget().useIpuModel(True),
            "not supported for the IPU model",
        ),
        (
            lambda o: o.useOfflineIpuTarget().useIpuId(0),
            "Offline compilation targeting a specific id not supported",
        ),
        (
            lambda o: o.useOfflineIpuTarget().logCycleCount(True),
            "Cycle count logging is only supported on actual IPU hardware",
        ),
        (
            lambda o: o.useIpuModel(True).logCycleCount(True),
            "Cycle count logging is only supported on actual IPU hardware",
        ),
    ],
)
def test_values_that_are_refused_at_compile_time(regression, batch, opts, change, text):
    change(opts)
    inference = poptorch.inferenceModel(regression, opts)
    with pytest.raises(poptorch.Error, match=text):
        inference.compile(batch[0])
    assert not inference.isCompiled()


def test_the_option_for_the_model_goes_before_the_environment(regression, batch, opts, monkeypatch):
    monkeypatch.setenv("POPTORCH_IPU_MODEL", "1")
    opts.useOfflineIpuTarget()
    with pytest.raises(poptorch.Error, match="not supported for the IPU model"):
        poptorch.inferenceModel(regression, opts).compile(batch[0])
    opts = opts.clone().useIpuModel(False)
    poptorch.inferenceModel(regression, opts).compile(batch[0])


def test_training_over_several_processes_is_refused(regression, batch, opts):
    opts.Distributed.configureProcessId(0, 2)
    with pytest.raises(poptorch.Error, match="Training with 2 processes is not available yet"):
        poptorch.trainingModel(regression, opts)(*batch)


def test_known_backend_keys_are_accepted(regression, batch, opts):
    samples = {
        "bool": True,
        "uint64": 1,
        "floating point": 0.5,
        "string": "text",
        "map": {"key": "value"},
        "set / vector": ["value"],
    }
    for group, keys in backend_keys.KEYS.items():
        for key in keys.split():
            backend_keys.check_key(key, samples[group])
    opts._Popart.set("enableOutlining", False).set("outlineThreshold", 10.0)
    opts._Popart.set("subgraphCopyingStrategy", 1).set("hardwareInstrumentations", {0, 1})
    opts._Popart.setPatterns({"TiedGather": True}).setEngineOptions({"target.syncReplicas": "1"})
    assert poptorch.inferenceModel(regression, opts)(batch[0]).shape == (4, 2)


def test_backend_keys_that_are_ignored_or_forced_are_warned_about(regression, batch, opts, log):
    opts._Popart.set("logDir", "somewhere")
    assert "use Options.logDir" in log.text and "logDir" not in opts._Popart.options
    opts._Popart.set("enablePipelining", True)
    poptorch.inferenceModel(regression, opts)(batch[0])
    assert "enablePipelining forced by the user from default" in log.text


def test_deprecated_setters_warn_and_do_nothing(log):
    opts = poptorch.Options()
    before = repr(opts)
    assert opts.Jit.traceModel(False) is opts.Jit
    assert "traceModel is deprecated" in log.text
    assert repr(opts) == before
    assert opts.Jit.traceModel(True) is opts.Jit and repr(opts) == before
    with pytest.raises(AssertionError, match="needs a bool"):
        opts.Jit.traceModel(2)


def test_profiling_that_the_environment_overrides_is_warned_about(monkeypatch, log):
    monkeypatch.setenv("POPLAR_ENGINE_OPTIONS", '{"autoReport.all": "false"}')
    opts = poptorch.Options()
    opts._Popart.setEngineOptions({"mine": "1"})
    assert opts.enableProfiling("reports") is opts
    assert "Profiling setting overridden by environment variable" in log.text
    assert opts._Popart.options["engineOptions"] == {
        "mine": "1",
        "debug.allowOutOfMemory": "true",
        "autoReport.all": "true",
        "autoReport.directory": "reports",
    }
    opts.enableProfiling()
    assert opts._Popart.options["engineOptions"]["autoReport.directory"] == "."


def test_what_still_works_on_frozen_options(regression):
    opts = poptorch.Options().modelName("mine")
    executor = poptorch.inferenceModel(regression, opts)
    opts.anchorTensor("short", "long")
    opts.deleteIfExists("model_name")
    assert not opts.exists("model_name") and "short" in opts.anchored_tensors
    assert executor.options.model_name == "mine" and not executor.options.anchored_tensors
    for change in (
        lambda o: o.setExecutionStrategy(poptorch.ShardedExecution()),
        lambda o: o.enableExecutableCaching("x"),
        lambda o: o.enableProfiling(),
        lambda o: o.appendToLocationExcludes("x"),
        lambda o: o.disableModuleNamescope(),
        lambda o: o.randomSeed(1),
        lambda o: o.Distributed.disable(),
        lambda o: o.Precision.setPartialsType(torch.half),
        lambda o: o.Training.setConvolutionDithering(True),
        lambda o: o.enableStableNorm(True),
    ):
        with pytest.raises(AttributeError, match="Can't modify frozen Options"):
            change(opts)
