# SPDX-License-Identifier: Apache-2.0
"""Options: storage, checks, freezing, cloning, loading, and the table behind them."""

import json

import poptorch
import pytest
import torch


def test_setters_chain_and_values_are_attributes():
    opts = poptorch.Options()
    assert opts.deviceIterations(3).replicationFactor(2) is opts
    assert opts.device_iterations == 3
    assert opts("replication_factor") == 2
    assert opts.Training.gradientAccumulation(4) is opts.Training
    assert opts.Training.gradient_accumulation == 4


def test_documented_defaults():
    opts = poptorch.Options()
    assert opts.device_iterations == 1
    assert opts.output_mode == poptorch.OutputMode.Default
    assert opts.connection_type == poptorch.ConnectionType.Always
    assert opts.Training.toDict() == {
        "gradient_accumulation": 1,
        "accumulation_and_replication_reduction_type": poptorch.ReductionType.Mean,
        "meanAccumulationAndReplicationReductionStrategy": poptorch.MeanReductionStrategy.Post,
    }
    assert not opts.exists("random_seed")
    assert opts._Popart.options["rearrangeAnchorsOnHost"] is False


def test_attribute_assignment_is_checked_like_the_setter():
    opts = poptorch.Options()
    opts.device_iterations = 5
    assert opts.device_iterations == 5
    with pytest.raises(AssertionError, match="Unexpected type .* for option device_iterations"):
        opts.device_iterations = "5"
    with pytest.raises(AssertionError, match="Unexpected type"):
        opts.deviceIterations(2.0)


def test_a_bool_does_not_change_the_type_of_an_int_option():
    opts = poptorch.Options().deviceIterations(True)
    assert opts.deviceIterations(2).device_iterations == 2


def test_unknown_names():
    opts = poptorch.Options()
    with pytest.raises(AttributeError, match="Invalid attribute nothing."):
        getattr(opts, "nothing")  # noqa: B009
    with pytest.raises(AssertionError, match="Invalid option nothing, valid options are"):
        opts.nothing = 1
    with pytest.raises(AttributeError, match="Invalid private attribute"):
        opts._nothing = 1
    with pytest.raises(AssertionError, match="Invalid option"):
        opts.set(nothing=1)


def test_enums_are_required_by_setters():
    opts = poptorch.Options()
    for setter in (opts.outputMode, opts.connectionType, opts.syncPattern):
        with pytest.raises(AssertionError):
            setter(1)


def test_output_mode_every_n_needs_a_period():
    opts = poptorch.Options()
    with pytest.raises(AssertionError, match="EveryN anchor must have output_return_period"):
        opts.outputMode(poptorch.OutputMode.EveryN)
    opts.outputMode(poptorch.OutputMode.EveryN, 2)
    assert (opts.output_mode, opts.output_return_period) == (1, 2)
    opts.outputMode(poptorch.OutputMode.All, 2)
    assert opts.output_return_period == 1


def test_input_replica_grouping_checks():
    opts = poptorch.Options().replicationFactor(4)
    group = poptorch.CommGroupType
    with pytest.raises(ValueError, match="input_group_type cannot be All"):
        opts.inputReplicaGrouping(2, group.All)
    with pytest.raises(ValueError, match="input_group_size cannot be larger than"):
        opts.inputReplicaGrouping(8, group.Consecutive)
    with pytest.raises(ValueError, match="input_group_size must be a factor of"):
        opts.inputReplicaGrouping(3, group.Consecutive)
    opts.inputReplicaGrouping(2, group.Orthogonal)
    assert opts.input_group_size == 2
    opts.inputReplicaGrouping(4, group.NoGrouping)
    assert (opts.input_group_size, opts.input_cgt) == (1, group.Consecutive)


@pytest.mark.parametrize("reduction", [poptorch.ReductionType.NoReduction, 1, "mean"])
def test_reduction_type_is_mean_or_sum(reduction):
    with pytest.raises(ValueError, match="must be set to poptorch.ReductionType.Mean or"):
        poptorch.Options().Training.accumulationAndReplicationReductionType(reduction)


def test_available_memory_keys():
    opts = poptorch.Options().setAvailableMemoryProportion({"IPU0": 0.5, "IPU12": 0.1})
    assert opts.available_memory_proportion == {0: 0.5, 12: 0.1}
    with pytest.raises(AssertionError, match="Invalid key: GPU0"):
        opts.setAvailableMemoryProportion({"GPU0": 0.5})


def test_precision_options_are_backend_options():
    opts = poptorch.Options()
    opts.Precision.enableStochasticRounding(True)
    opts.Precision.setPartialsType(torch.half)
    opts.Training.setConvolutionDithering(True)
    backend = opts._Popart.options
    assert backend["enableStochasticRounding"] is True
    assert backend["partialsTypeMatMuls"] == "half"
    assert backend["convolutionOptions"] == {"partialsType": "half", "enableConvDithering": "true"}
    with pytest.raises(AssertionError, match="needs to be set to a bool"):
        opts.Precision.enableFloatingPointExceptions(1)
    with pytest.raises(ValueError, match="parameter to setPartialsType should be"):
        opts.Precision.setPartialsType(torch.int32)


def test_tensor_locations():
    opts = poptorch.Options()
    with pytest.raises(AssertionError, match="even number between 32 and 192"):
        opts.TensorLocations.numIOTiles(33)
    settings = poptorch.TensorLocationSettings().useOnChipStorage(False).minElementsForOffChip(4)
    opts.TensorLocations.setWeightLocation(settings)
    settings.useOnChipStorage(True)
    assert opts.TensorLocations.location_weight == {"onChip": 0, "minElementsForOffChip": 4}
    assert not settings.useOnChipStorage(None).exists("onChip")
    with pytest.raises(AssertionError):
        opts.TensorLocations.setWeightLocation(3)


def test_distributed_reads_the_environment(monkeypatch):
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "3")
    distributed = poptorch.Options().Distributed
    assert (distributed.numProcesses, distributed.processId) == (4, 3)
    distributed.disable()
    assert (distributed.numProcesses, distributed.processId) == (1, 0)


def test_frozen_options_can_be_cloned_but_not_changed(regression):
    opts = poptorch.Options()
    executor = poptorch.inferenceModel(regression, opts)
    changes = [
        lambda o: o.deviceIterations(2),
        lambda o: o.Training.gradientAccumulation(2),
        lambda o: o.Precision.enableStochasticRounding(True),
        lambda o: o._Popart.set("key", 1),
        lambda o: o.TensorLocations.numIOTiles(32),
        lambda o: setattr(o, "device_iterations", 2),
    ]
    for change in changes:
        with pytest.raises(AttributeError, match="Can't modify frozen Options"):
            change(opts)
        with pytest.raises(AttributeError, match="Can't modify frozen Options"):
            change(executor.options)
    copy = opts.clone()
    for change in changes:
        change(copy)
    assert copy._Popart.options["enableStochasticRounding"] is True
    assert "enableStochasticRounding" not in opts._Popart.options
    assert opts.device_iterations == 1


def test_to_dict_needs_an_output_mode():
    opts = poptorch.Options()
    with pytest.raises(AssertionError, match="An output mode must be picked before serialisation"):
        opts.toDict()
    opts.outputMode(poptorch.OutputMode.All)
    found = opts.toDict()
    assert found["execution_mode"] == 0
    assert found["gradient_accumulation"] == 1
    assert callable(found["compilation_progress_bar_fn"])
    assert "_show_compilation_progress_bar" not in found
    opts._Popart.set("device_iterations", 3)
    with pytest.raises(AssertionError, match="Can't merge dictionaries"):
        opts.toDict()


def test_load_from_file(tmp_path):
    path = tmp_path / "options.conf"
    path.write_text(
        "# comment\n\ndeviceIterations(7)\nTraining.gradientAccumulation(4)\n"
        "setExecutionStrategy(poptorch.ShardedExecution())\n"
    )
    opts = poptorch.Options()
    opts.replicationFactor(2)
    opts.loadFromFile(str(path))
    assert (opts.device_iterations, opts.replication_factor) == (7, 2)
    assert opts.Training.gradient_accumulation == 4
    assert isinstance(opts._execution_strategy, poptorch.ShardedExecution)

    path.write_text("# comment\ndeviceIterations(7\n")
    with pytest.raises(poptorch.ConfigFileError, match=r"SyntaxError at line 2 of .*options.conf"):
        opts.loadFromFile(str(path))
    path.write_text("unknownOption(7)\n")
    with pytest.raises(AttributeError, match="Invalid attribute unknownOption"):
        opts.loadFromFile(str(path))


def test_from_json_and_environment(monkeypatch):
    text = json.dumps(
        {
            "deviceIterations": 3,
            "Training.gradientAccumulation": [2],
            "outputMode": ["OutputMode.EveryN", 3],
            "logDir": "some.path",
        }
    )
    monkeypatch.setenv("POPTORCH_DEFAULT_OPTIONS", text)
    monkeypatch.setenv("POPTORCH_CACHE_DIR", "/some/where")
    opts = poptorch.Options()
    assert opts.device_iterations == 3
    assert opts.Training.gradient_accumulation == 2
    assert (opts.output_mode, opts.output_return_period) == (1, 3)
    assert opts.log_dir == "some.path"
    assert opts._Popart.options["cachePath"] == "/some/where"
    with pytest.raises(AttributeError):
        opts.from_json('{"nothing": 1}')


def test_random_seed_seeds_the_host_too():
    poptorch.Options().randomSeed(11)
    first = torch.rand(2)
    torch.manual_seed(11)
    assert torch.equal(first, torch.rand(2))


def test_anchor_tensor_is_stored():
    opts = poptorch.Options()
    assert opts.anchorTensor("short", "long", poptorch.OutputMode.EveryN, 3) is None
    assert opts.anchored_tensors["short"] == ["long", False, 1, 3]


def test_repr_shows_values_and_parts():
    text = repr(poptorch.Options())
    assert "device_iterations=1" in text
    assert "Training=" in text and "_Popart=" in text


def test_stored_values_are_those_of_poptorch():
    opts = poptorch.Options().outputMode(poptorch.OutputMode.All).showCompilationProgressBar(False)
    assert opts.toDict() == {
        "execution_mode": 0,
        "instrumentWithHardwareCycleCounter": False,
        "rearrangeAnchorsOnHost": False,
        "replication_factor": 1,
        "input_group_size": 1,
        "input_cgt": poptorch.CommGroupType.Consecutive,
        "broadcast_buffers": True,
        "device_iterations": 1,
        "log_dir": ".",
        "max_repeat_logs": 4,
        "auto_round_num_ipus": False,
        "anchored_tensors": {},
        "output_mode": 2,
        "output_return_period": 1,
        "connection_type": 0,
        "sync_pattern": 0,
        "available_memory_proportion": {},
        "gradient_accumulation": 1,
        "accumulation_and_replication_reduction_type": poptorch.ReductionType.Mean,
        "meanAccumulationAndReplicationReductionStrategy": poptorch.MeanReductionStrategy.Post,
        "num_distributed_processes": 1,
        "distributed_process_id": 0,
        "ipuof_configs": {},
    }


@pytest.mark.parametrize(
    "key, change, stored",
    [
        ("model_name", lambda o: o.modelName("m"), "m"),
        ("use_model", lambda o: o.useIpuModel(True), True),
        ("ipu_id", lambda o: o.useIpuId(3), 3),
        ("ipu_version", lambda o: o.useOfflineIpuTarget(), 2),
        ("random_seed", lambda o: o.randomSeed(3), 3),
    ],
)
def test_values_that_exist_once_they_are_set(key, change, stored):
    opts = poptorch.Options()
    assert not opts.exists(key)
    with pytest.raises(AttributeError, match=f"Invalid attribute {key}."):
        getattr(opts, key)
    assert change(opts) is opts and opts(key) == stored
    opts.deleteIfExists(key)
    opts.deleteIfExists(key)
    assert not opts.exists(key)


def test_values_stored_by_the_other_setters():
    opts = poptorch.Options()
    assert opts.maxRepeatLogs(None).max_repeat_logs == 2**64 - 1
    assert opts.maxRepeatLogs(2).max_repeat_logs == 2
    assert opts.useOfflineIpuTarget(1).connection_type == poptorch.ConnectionType.Never
    assert opts.syncPattern(poptorch.SyncPattern.ReplicaAndLadder).sync_pattern == 2
    assert opts.broadcastBuffers(False).broadcast_buffers is False
    assert opts.autoRoundNumIPUs().auto_round_num_ipus is True
    assert opts.relaxOptimizerAttributesChecks()._relax_optimizer_checks is True
    assert opts.disableModuleNamescope()._module_namescope_enabled is False
    backend = opts._Popart.options
    opts.enableStableNorm(True).enableSyntheticData(True).logCycleCount(True)
    assert (backend["enableStableNorm"], backend["syntheticDataMode"]) == (True, 2)
    assert backend["instrumentWithHardwareCycleCounter"] is True
    opts.updatableNamedBuffers(["a"])
    assert backend["updatableNamedBuffers"] == ["a"]
    opts.enableExecutableCaching("here").enableExecutableCaching(None)
    assert (backend["enableEngineCaching"], backend["cachePath"]) == (False, "here")
    opts._Popart.setPatterns({"TiedGather": True})
    assert (backend["patterns"], backend["patterns_level"]) == ({"TiedGather": True}, 2)
    opts.Training.setAutomaticLossScaling(True)
    assert backend["automaticLossScalingSettings.enabled"] is True


def test_location_settings_chain_and_are_stored_as_numbers():
    settings = poptorch.TensorLocationSettings()
    assert settings.useReplicatedTensorSharding().useIOTilesToLoad(False) is settings
    settings.useIOTilesToStore().minElementsForReplicatedTensorSharding(8)
    assert settings.toDict() == {
        "useReplicatedTensorSharding": 1,
        "useIOTilesToLoad": 0,
        "useIOTilesToStore": 1,
        "minElementsForReplicatedTensorSharding": 8,
    }
    locations = poptorch.Options().TensorLocations
    assert locations.numIOTiles(32).setOptimizerLocation(settings) is locations
    locations.setActivationLocation(settings).setAccumulatorLocation(settings)
    assert locations.location_optimizer == settings.toDict()


def test_process_counts_of_other_variables(monkeypatch):
    monkeypatch.setenv("MY_SIZE", "8")
    monkeypatch.setenv("MY_RANK", "5")
    distributed = poptorch.Options().Distributed
    assert distributed.setEnvVarNames("MY_SIZE", "MY_RANK") is distributed
    assert (distributed.numProcesses, distributed.processId) == (8, 5)
    assert distributed.configureProcessId(1, 2).toDict()["num_distributed_processes"] == 2
    with pytest.raises((AttributeError, AssertionError)):
        distributed.processId = 3


def test_later_files_are_applied_over_earlier_ones(tmp_path):
    first, second = tmp_path / "a.conf", tmp_path / "b.conf"
    first.write_text("deviceIterations(2)\n  replicationFactor(2)  \n#deviceIterations(9)\n")
    second.write_text(
        "deviceIterations(4)\n"
        "TensorLocations.setWeightLocation(poptorch.TensorLocationSettings().useOnChipStorage(True))\n"
        "outputMode(poptorch.OutputMode.EveryN, 2)\n_Popart.set('enableOutlining', False)\n"
    )
    opts = poptorch.Options().loadFromFile(str(first)).loadFromFile(second)
    assert (opts.device_iterations, opts.replication_factor) == (4, 2)
    assert opts.TensorLocations.location_weight == {"onChip": 1}
    assert (opts.output_mode, opts.output_return_period) == (1, 2)
    assert opts._Popart.options["enableOutlining"] is False


def test_an_empty_cache_variable_and_its_log_line(monkeypatch, log):
    monkeypatch.setenv("POPTORCH_CACHE_DIR", "")
    assert "cachePath" not in poptorch.Options()._Popart.options
    monkeypatch.setenv("POPTORCH_CACHE_DIR", "/there")
    monkeypatch.setenv("POPTORCH_DEFAULT_OPTIONS", '{"enableExecutableCaching": "/elsewhere"}')
    backend = poptorch.Options()._Popart.options
    assert backend["enableEngineCaching"] is True and backend["cachePath"] == "/elsewhere"
    assert ("INFO", True) in [(r.levelname, "/there" in r.message) for r in log.records]


def test_an_ignored_period_is_logged(log):
    poptorch.Options().outputMode(poptorch.OutputMode.All, 4)
    assert log.records[0].levelname == "INFO" and "output_return_period" in log.text


def test_options_of_a_subclass_are_options(regression, batch):
    class Options(poptorch.Options):
        def __init__(self, ipus_per_replica):
            super().__init__()
            object.__setattr__(self, "ipus_per_replica", ipus_per_replica)
            self.showCompilationProgressBar(False)

    executor = poptorch.inferenceModel(regression, Options(2))
    assert isinstance(executor.options, Options) and executor.options.ipus_per_replica == 2
    executor(batch[0])
