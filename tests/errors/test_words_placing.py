# SPDX-License-Identifier: Apache-2.0
"""Words of errors and warnings: blocks, strategies, IPUs, hints and overlapped transfers."""

import poptorch
import torch
from torch import nn
from words_support import WARNS, Row, WithLoss, X, chain, check, infer, options, table, train

Error = poptorch.Error
Stage, Phase = poptorch.Stage, poptorch.Phase
Pipelined, Sharded = poptorch.PipelinedExecution, poptorch.ShardedExecution
Serial, Parallel = poptorch.SerialPhasedExecution, poptorch.ParallelPhasedExecution
Auto, Overlap = poptorch.AutoStage, poptorch.OverlapMode
LOOP = Overlap.OverlapDeviceIterationLoop


def block_twice():
    layer = poptorch.BeginBlock(nn.ReLU(), "a", ipu_id=0)
    poptorch.BeginBlock(layer, "b", ipu_id=1)


def behind_a_block(x):
    with poptorch.Block("a", ipu_id=0):
        x = x + 1
    return x * 2


def in_blocks(*names):
    def forward(x):
        for name in names:
            with poptorch.Block(name):
                x = x + 1
        return x

    return forward


def start(x):
    poptorch.Block.start("a")
    return x + 1


BLOCKS = [
    Row("module has already been assigned to a block.", Error, block_twice),
    Row("module is not an instance of torch.nn.Module or function.", Error,
        lambda: poptorch.BeginBlock(3)),
    Row("", AssertionError, lambda: poptorch.removeBlocks(lambda: 1)),
    Row("No active Block, all the ops must belong to a Block", Error,
        lambda: infer(behind_a_block)),
    Row("poptorch.AutoStage.SameAsIpu was selected but no IPU was specified for block a",
        AssertionError, lambda: infer(in_blocks("a"))),
    Row("poptorch.AutoStage.SameAsIpu was selected but no IPU was specified for block a",
        AssertionError, lambda: infer(start, opts=options(Sharded()))),
    Row("Unknown Block 'b' list of expected Blocks:", AssertionError,
        lambda: infer(in_blocks("a", "b"), opts=options(Pipelined(Stage("a"))))),
    Row("Parameter to NameScope must be a string", AssertionError, lambda: poptorch.NameScope(1)),
]  # fmt: skip


def after_each_phase():
    """What the setters of parallel phases can't be told."""
    strategy = Parallel(Phase("a").ipus(0), Phase("b").ipus(1))
    strategy._tensors_liveness = poptorch.Liveness.OffChipAfterEachPhase
    return strategy


STRATEGIES = [
    Row("Block IDs are supposed to be strings but got", AssertionError, lambda: Stage("a", 1)),
    Row("", AssertionError, lambda: Stage("a").ipu("0")),
    Row("All arguments must either be block IDs (strings) or Stages", AssertionError,
        lambda: Phase("a", Stage("b"))),
    Row("Phase contains 1 stages but you provided 2 ipus", AssertionError,
        lambda: Phase("a").ipus(0, 1)),
    Row("a associated with more than one stage", AssertionError,
        lambda: Pipelined(Stage("a"), Stage("a"))),
    Row("a associated with more than one stage", AssertionError,
        lambda: Serial(Phase("a"), Phase("b", "a"))),
    Row("", TypeError, lambda: Pipelined(1)),
    Row("", TypeError, lambda: Sharded(Auto.SameAsIpu, "a")),
    Row("", TypeError, lambda: Sharded("a", Auto.AutoIncrement)),
    Row("Unknown block a", AssertionError, lambda: Pipelined().stage("a")),
    Row("Unknown block b", AssertionError, lambda: Sharded("a").stage("b")),
    Row("There is currently no AutoStage for PhasedExecution", AssertionError, lambda: Serial()),
    Row("There is currently no AutoStage for PhasedExecution", AssertionError, lambda: Parallel()),
    Row("Phases are identified by positive integers", AssertionError,
        lambda: Serial("a").phase(-1)),
    Row("Phases are identified by positive integers", AssertionError,
        lambda: Serial("a").phase("a")),
    Row("This is only supported for serial phase execution", Error,
        lambda: infer(in_blocks("a", "b"), opts=options(after_each_phase()))),
    Row("even phases must run on even IPUs and odd phases on odd IPUs", Error,
        lambda: infer(in_blocks("a", "b"),
                      opts=options(Parallel(Phase("a").ipus(0), Phase("b").ipus(2))))),
]  # fmt: skip


def pipeline(*ipus, opts):
    return lambda: infer(chain(*ipus), opts=opts)


def pipeline_training(*ipus, **settings):
    opts = options(**settings)
    return lambda: train(WithLoss(chain(*ipus)), X, opts=opts)


INFERENCE = "deviceIterations must be greater than or equal to the number of pipeline stages"
TRAINING = "gradientAccumulation must be greater than or equal to the number of pipeline stages"
RESERVED = "The model specifies the use of 3 IPUs, however PopTorch must reserve a minimum of 4"

PIPELINES = [
    Row(INFERENCE, Error, pipeline(0, 1, opts=options())),
    Row(INFERENCE, Error, pipeline(0, 1, 2, 3, opts=options(deviceIterations=2))),
    # One stage more than there are blocks: nothing runs on IPU 0, where a pipeline begins.
    Row(INFERENCE, Error, pipeline(1, opts=options())),
    Row(TRAINING, Error, pipeline_training(0, 1)),
    Row(TRAINING, Error, pipeline_training(0, 1, training=2)),
    Row(TRAINING, Error, pipeline_training(0, 1, deviceIterations=8)),
    Row("AnchorReturnType::EVERYN is not valid for pipelined models", Error,
        pipeline(0, 1, opts=options(deviceIterations=4,
                                    outputMode=(poptorch.OutputMode.EveryN, 2)))),
    Row(RESERVED, Error, pipeline(0, 1, 2, opts=options(Sharded()))),
    Row(RESERVED, Error,
        lambda: infer(torch.neg, torch.ones(6, 1), opts=options(replicationFactor=3))),
    Row(RESERVED.replace("3", "6").replace("4", "8"), Error,
        lambda: infer(chain(0, 1, 2), opts=options(Sharded(), replicationFactor=2))),
    Row("Reserving 4 IPUs when the model specifices the use of only 3", WARNS,
        pipeline(0, 1, 2, opts=options(Sharded(), autoRoundNumIPUs=True))),
    Row("Too many IPUs requested (128). Experiments that need more than 64", Error,
        lambda: infer(torch.neg, torch.ones(128, 1), opts=options(replicationFactor=128))),
    Row("Failed to acquire 32 IPU(s)", Error,
        lambda: infer(torch.neg, torch.ones(32, 1), opts=options(replicationFactor=32))),
]  # fmt: skip


def convolutions(body):
    def forward(x):
        with poptorch.MultiConv():
            return body(x)

    return forward


def nested(x):
    with poptorch.MultiConv():
        return nn.functional.conv1d(x[None], torch.ones(8, 8, 1))


def multi(name, value):
    return lambda: getattr(poptorch.MultiConv(), name)(value)


HINTS = [
    Row("Invalid available memory proportion!", AssertionError,
        multi("availableMemoryProportions", "0.5")),
    Row("Invalid available memory proportion!", AssertionError,
        multi("availableMemoryProportions", [0.5, "x"])),
    Row("Invalid partials types. Expecting torch.float or torch.half", ValueError,
        multi("partialsTypes", torch.int32)),
    Row("Invalid partials types. Expecting torch.float or torch.half", ValueError,
        multi("partialsTypes", [torch.half, "half"])),
    Row("value must be bool or list of bools", ValueError, multi("enableConvDithering", 1)),
    Row("value must be bool or list of bools", ValueError,
        multi("enableConvDithering", [True, None])),
    Row("Invalid plan type!", AssertionError, multi("planType", 0)),
    Row("Nested poptorch.MultiConv is not supported.", Error, lambda: infer(convolutions(nested))),
    Row("Unexpected end_multi_conv, is the IR malformed?", Error,
        lambda: infer(convolutions(torch.neg))),
    Row("You may only set available memory for torch.tensor values", Error,
        lambda: poptorch.set_available_memory(1.0, 0.5)),
    Row("All inputs must be tensors", ValueError, lambda: poptorch.recomputationCheckpoint(1)),
    Row("All inputs must be tensors", ValueError,
        lambda: poptorch.recomputationCheckpoint([X, None])),
]  # fmt: skip


class Parsed:
    """Of a custom type, with a part that is no tensor."""

    def __init__(self, x):
        self.x = x


class Parser(poptorch.ICustomArgParser):
    def yieldTensors(self, struct):
        yield struct.x

    def reconstruct(self, original_structure, tensor_iterator):
        return Parsed(next(tensor_iterator))


poptorch.registerCustomArgParser(Parsed, Parser())
DEVICE = options(Sharded(), outputMode=poptorch.OutputMode.All)
DEVICE.TensorLocations.numIOTiles(32)


def fetched(x):
    return poptorch.set_overlap_for_input(x, LOOP) + 1


def sent(x):
    return poptorch.set_overlap_for_output(x + 1, LOOP)


def input_late(x):
    return poptorch.set_overlap_for_input(x + 1, LOOP) * 2


def input_shared(x):
    return poptorch.set_overlap_for_input(x, LOOP) + x


def output_early(x):
    return poptorch.set_overlap_for_output(x + 1, LOOP) * 2


def output_twice(x):
    y = poptorch.set_overlap_for_output(x + 1, LOOP)
    return y, y


def tiles(strategy, **settings):
    opts = options(strategy, **settings)
    opts.TensorLocations.numIOTiles(32)
    return opts


OVERLAP = [
    Row("You may only set overlap for torch.tensor inputs", Error,
        lambda: poptorch.set_overlap_for_input(Parsed(1), LOOP)),
    Row("You may only set overlap for torch.tensor outputs", Error,
        lambda: poptorch.set_overlap_for_output(Parsed(None), LOOP)),
    Row("must be the only op applied to an input", Error, lambda: infer(input_shared, opts=DEVICE)),
    Row("applied on a node which is not a tensor input to the model", Error,
        lambda: infer(input_late, opts=DEVICE)),
    Row("cannot be used with a tensor that is returned twice", Error,
        lambda: infer(output_twice, opts=DEVICE)),
    Row("applied on a node which is not a tensor output to the model", Error,
        lambda: infer(output_early, opts=DEVICE)),
    Row("Overlapped IO is not supported with poptorch.PipelinedExecution", Error,
        lambda: infer(fetched, opts=tiles(Pipelined()))),
    Row("No IO tiles allocated", Error, lambda: infer(sent, opts=options(Sharded()))),
    Row("Unsupported output mode for overlapped IO", Error,
        lambda: infer(sent, opts=tiles(Sharded(), outputMode=poptorch.OutputMode.Final))),
]  # fmt: skip


@table(BLOCKS + STRATEGIES + PIPELINES + HINTS + OVERLAP)
def test_words(row, caplog):
    check(row, caplog)
