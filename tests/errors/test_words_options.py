# SPDX-License-Identifier: Apache-2.0
"""Words of errors and warnings: the package, its options and its log."""

import poptorch
import torch
from words_support import INFORMS, WARNS, Row, X, check, infer, options, table, train

Opts = poptorch.Options
Error = poptorch.Error
FROZEN = "Can't modify frozen Options"
LOCATION = poptorch.TensorLocationSettings


def frozen() -> poptorch.Options:
    opts = options()
    poptorch.DataLoader(opts, [1])
    return opts


def assign(obj, name, value):
    setattr(obj, name, value)


def popart(key, value):
    opts = options()
    opts._Popart.set(key, value)
    infer(torch.neg, opts=opts)


OBJECT = [
    Row("Invalid attribute nothing.", AttributeError, lambda: Opts().nothing),
    Row("Invalid option nothing, valid options are", AssertionError,
        lambda: assign(Opts(), "nothing", 1)),
    Row("Invalid private attribute", AttributeError, lambda: assign(Opts(), "_nothing", 1)),
    Row("Unexpected type <class 'str'> for option device_iterations. Expected <class 'int'>",
        AssertionError, lambda: Opts().deviceIterations("2")),
    Row("Unexpected type <class 'float'> for option replication_factor. Expected <class 'int'>",
        AssertionError, lambda: assign(Opts(), "replication_factor", 2.0)),
    Row(FROZEN, AttributeError, lambda: frozen().deviceIterations(2)),
    Row(FROZEN, AttributeError, lambda: frozen().Training.gradientAccumulation(2)),
    Row(FROZEN, AttributeError, lambda: assign(frozen(), "device_iterations", 2)),
    Row(FROZEN, AttributeError, lambda: train().options.randomSeed(1)),
    Row("An output mode must be picked before serialisation", AssertionError,
        lambda: Opts().toDict()),
]  # fmt: skip

GENERAL = [
    Row("input_group_type cannot be All", ValueError,
        lambda: Opts().replicationFactor(4).inputReplicaGrouping(2, poptorch.CommGroupType.All)),
    Row("input_group_size cannot be larger than", ValueError,
        lambda: Opts().replicationFactor(2).inputReplicaGrouping(
            4, poptorch.CommGroupType.Consecutive)),
    Row("input_group_size must be a factor of", ValueError,
        lambda: Opts().replicationFactor(4).inputReplicaGrouping(
            3, poptorch.CommGroupType.Consecutive)),
    Row("", AssertionError, lambda: Opts().setExecutionStrategy(poptorch.PipelinedExecution)),
    Row("Invalid key: IPUx", AssertionError,
        lambda: Opts().setAvailableMemoryProportion({"IPUx": 0.5})),
    Row("Invalid key: 0", AssertionError,
        lambda: Opts().setAvailableMemoryProportion({"0": 0.5})),
    Row("", AssertionError, lambda: Opts().outputMode(2)),
    Row("EveryN anchor must have output_return_period set to valid positive integer",
        AssertionError, lambda: Opts().outputMode(poptorch.OutputMode.EveryN)),
    Row("EveryN anchor must have output_return_period set to valid positive integer",
        AssertionError, lambda: Opts().outputMode(poptorch.OutputMode.EveryN, 0)),
    Row("output_return_period", INFORMS, lambda: Opts().outputMode(poptorch.OutputMode.All, 2)),
    Row("", AssertionError, lambda: Opts().connectionType(0)),
    Row("", AssertionError, lambda: Opts().useIpuId("0")),
    Row("", AssertionError, lambda: Opts().syncPattern(0)),
    Row("", AssertionError, lambda: Opts().randomSeed(1.0)),
    Row("not supported for the IPU model", Error,
        lambda: poptorch.inferenceModel(torch.nn.ReLU(), options(
            connectionType=poptorch.ConnectionType.Never, useIpuModel=True)).compile(X)),
    Row("Offline compilation targeting a specific id not supported", Error,
        lambda: poptorch.inferenceModel(
            torch.nn.ReLU(), options(useOfflineIpuTarget=2, useIpuId=1)).compile(X)),
    Row("Cycle count logging is only supported on actual IPU hardware", Error,
        lambda: infer(torch.neg, opts=options(logCycleCount=True, useIpuModel=True))),
    Row("'Batches per step' must be greater than zero", Error,
        lambda: infer(torch.neg, opts=options(deviceIterations=0)), "popart_exception"),
    Row("'Batches per step' must be greater than zero", Error,
        lambda: infer(torch.neg, opts=options(deviceIterations=-1)), "popart_exception"),
    Row("Return period must be <= to the number of batches per step", Error,
        lambda: infer(torch.neg, opts=options(
            deviceIterations=2, outputMode=(poptorch.OutputMode.EveryN, 4)))),
    Row("Return period must be a factor of the number of batches per step", Error,
        lambda: infer(torch.neg, opts=options(
            deviceIterations=4, outputMode=(poptorch.OutputMode.EveryN, 3)))),
]  # fmt: skip

PARTS = [
    Row("must be set to poptorch.ReductionType.Mean or poptorch.ReductionType.Sum", ValueError,
        lambda: Opts().Training.accumulationAndReplicationReductionType(
            poptorch.ReductionType.NoReduction)),
    Row("must be set to poptorch.ReductionType.Mean or poptorch.ReductionType.Sum", ValueError,
        lambda: Opts().Training.accumulationAndReplicationReductionType("mean")),
    Row("Unexpected type", AssertionError,
        lambda: Opts().Training.setMeanAccumulationAndReplicationReductionStrategy(0)),
    Row("needs to be set to a bool", AssertionError,
        lambda: Opts().Precision.enableFloatingPointExceptions(1)),
    Row("parameter to setPartialsType should be", ValueError,
        lambda: Opts().Precision.setPartialsType(torch.int32)),
    Row("parameter to setPartialsType should be", ValueError,
        lambda: Opts().Precision.setPartialsType("half")),
    Row("numIOTiles must be an even number between 32 and 192.", AssertionError,
        lambda: Opts().TensorLocations.numIOTiles(33)),
    Row("numIOTiles must be an even number between 32 and 192.", AssertionError,
        lambda: Opts().TensorLocations.numIOTiles(30)),
    Row("numIOTiles must be an even number between 32 and 192.", AssertionError,
        lambda: Opts().TensorLocations.numIOTiles(194)),
    Row("", AssertionError, lambda: Opts().TensorLocations.setWeightLocation(1)),
    Row("Expected a poptorch.TensorLocationSettings", AssertionError,
        lambda: Opts().TensorLocations.setOptimizerLocation(None)),
    Row("TensorLocationSettings has no onchip", AssertionError,
        lambda: Opts().TensorLocations.setActivationLocation({"onchip": 1})),
    Row("Expected int, got 'off'", AssertionError,
        lambda: Opts().TensorLocations.setAccumulatorLocation({"onChip": "off"})),
    Row("Expected int, got 1.5", AssertionError,
        lambda: Opts().TensorLocations.setWeightLocation({"minElementsForOffChip": 1.5})),
    Row("Invalid option onchip, valid options are", AssertionError,
        lambda: setattr(LOCATION(), "onchip", 1)),
    Row("", AssertionError, lambda: LOCATION().useOnChipStorage(1)),
    Row("", AssertionError, lambda: LOCATION().minElementsForOffChip("4")),
    Row("Unknown bool option nothing", Error, lambda: popart("nothing", True)),
    Row("Unknown uint64 option nothing", Error, lambda: popart("nothing", 2)),
    Row("Unknown floating point option nothing", Error, lambda: popart("nothing", 2.0)),
    Row("Unknown string option nothing", Error, lambda: popart("nothing", "2")),
    Row("Unknown set / vector option nothing", Error, lambda: popart("nothing", ["2"])),
    Row("Unknown map option nothing", Error, lambda: popart("nothing", {"a": "2"})),
    Row("out of range", Error, lambda: popart("virtualGraphMode", 99)),
    Row("", AssertionError, lambda: Opts()._Popart.setPatterns(["OpToIdentity"])),
    Row("", AssertionError, lambda: Opts()._Popart.setPatterns({}, "2")),
    Row("Options.logDir", WARNS, lambda: popart("logDir", "x")),
    Row("forced by the user from default", WARNS, lambda: popart("virtualGraphMode", 1)),
]  # fmt: skip

PACKAGE = [
    Row("Pre-compile hook must be callable", RuntimeError,
        lambda: poptorch.registerPreCompileHook(1)),
    Row("Post-compile hook must be callable", RuntimeError,
        lambda: poptorch.registerPostCompileHook(None)),
    Row("Invalid log level integer", ValueError, lambda: poptorch.setLogLevel(5)),
    Row("Invalid log level integer", ValueError, lambda: poptorch.setLogLevel(-1)),
    Row("Unknown log level: LOUD. Valid values are", ValueError,
        lambda: poptorch.setLogLevel("LOUD")),
    Row("Unknown log level: info. Valid values are", ValueError,
        lambda: poptorch.setLogLevel("info")),
    Row("Unknown log level: [3]. Valid values are", ValueError,
        lambda: poptorch.setLogLevel([3])),
    Row("Unknown log level: 3.0. Valid values are", ValueError,
        lambda: poptorch.setLogLevel(3.0)),
    Row("Unknown log level: None. Valid values are", ValueError,
        lambda: poptorch.setLogLevel(None)),
]  # fmt: skip


@table(OBJECT + GENERAL + PARTS + PACKAGE)
def test_words(row, caplog):
    check(row, caplog)
