# SPDX-License-Identifier: Apache-2.0
"""Programs annotated in the ways users do it: each computes what it computes without blocks."""

import contextlib

import poptorch
import pytest
import torch
from tolerances import assert_same_steps
from torch import nn
from torch.nn import functional as F

VOCABULARY, LENGTH, HIDDEN = 20, 6, 8


def options(strategy=None, accumulation=1, iterations=1, replicas=1):
    opts = poptorch.Options().showCompilationProgressBar(False).outputMode(poptorch.OutputMode.All)
    opts.deviceIterations(iterations).replicationFactor(replicas)
    opts.Training.gradientAccumulation(accumulation)
    return opts if strategy is None else opts.setExecutionStrategy(strategy)


def trained(model, opts, batch, calls=2):
    """(outputs of the calls, state of the model after them)."""
    optimizer = poptorch.optim.AdamW(model.parameters(), lr=0.01)
    training = poptorch.trainingModel(model, opts, optimizer)
    outputs = [training(*batch) for _ in range(calls)]
    training.copyWeightsToHost()
    return outputs, {name: t.clone() for name, t in model.state_dict().items()}


def same_training(annotated, plain, strategy, batch, **counts):
    actual = trained(annotated, options(strategy, **counts), batch)
    assert_same_steps(actual, trained(plain, options(**counts), batch))


# An encoder as in libraries of language models ----------------------------------------------------


class Embeddings(nn.Module):
    def __init__(self):
        super().__init__()
        self.word = nn.Embedding(VOCABULARY, HIDDEN)
        self.position = nn.Embedding(LENGTH, HIDDEN)
        self.norm = nn.LayerNorm(HIDDEN)
        self.register_buffer("ids", torch.arange(LENGTH).unsqueeze(0), persistent=False)

    def forward(self, words):
        return self.norm(self.word(words) + self.position(self.ids[:, : words.shape[1]]))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(HIDDEN, 2, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(HIDDEN, 16), nn.GELU(), nn.Linear(16, HIDDEN))
        self.norms = nn.ModuleList(nn.LayerNorm(HIDDEN) for _ in range(2))

    def forward(self, x, mask):
        mixed, _ = self.attention(x, x, x, key_padding_mask=mask, need_weights=False)
        x = self.norms[0](x + mixed)
        return self.norms[1](x + self.mlp(x))


class LanguageModel(nn.Module):
    def __init__(self, tied=True):
        super().__init__()
        torch.manual_seed(0)
        self.embeddings = Embeddings()
        self.encoder = nn.Module()
        self.encoder.layer = nn.ModuleList(Layer() for _ in range(4))
        self.head = nn.Linear(HIDDEN, VOCABULARY, bias=False)
        if tied:
            self.head.weight = self.embeddings.word.weight

    def forward(self, words, mask, labels=None):
        x = self.embeddings(words)
        for layer in self.encoder.layer:
            x = layer(x, mask)
        logits = self.head(x)
        if labels is None:
            return logits
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten()), logits

    def parallelize(self, ipus=(0, 0, 1, 1), head=1):
        """Embedding on IPU 0, layer i on ipus[i]."""
        poptorch.BeginBlock(self.embeddings, "Embedding", ipu_id=0)
        for i, (layer, ipu) in enumerate(zip(self.encoder.layer, ipus, strict=True)):
            layer.register_forward_hook(lambda _m, _a, out: poptorch.recomputationCheckpoint(out))
            self.encoder.layer[i] = poptorch.BeginBlock(layer, f"Encoder{i}", ipu_id=ipu)
        self.head = poptorch.BeginBlock(self.head, "Head", ipu_id=head)
        return self


def words(rows):
    generator = torch.Generator().manual_seed(rows)
    mask = torch.zeros(rows, LENGTH, dtype=torch.bool)
    mask[:, 4:] = True
    draw = [torch.randint(0, VOCABULARY, (rows, LENGTH), generator=generator) for _ in range(2)]
    return draw[0], mask, draw[1]


@pytest.mark.parametrize(
    "strategy, placed, counts",
    [
        (poptorch.PipelinedExecution(), {}, {"accumulation": 3}),
        (poptorch.PipelinedExecution(), {}, {"accumulation": 3, "iterations": 2, "replicas": 2}),
        (
            # the head beside the embedding whose weight it shares
            poptorch.PipelinedExecution(poptorch.AutoStage.AutoIncrement),
            {"head": 0},
            {"accumulation": 5},
        ),
        (
            poptorch.PipelinedExecution(
                ["Embedding", "Encoder0", "Encoder1"],
                poptorch.Stage("Encoder2", "Encoder3", "Head").ipu(3),
            ),
            {"ipus": (0, 0, None, None), "head": None},
            {"accumulation": 3},
        ),
        (
            poptorch.SerialPhasedExecution(
                poptorch.Phase("Embedding", "Encoder0").ipus(0),
                poptorch.Phase("Encoder1", "Encoder2"),
                ["Encoder3", "Head"],
            ),
            {"ipus": (0, 0, 0, 0), "head": 0},
            {"accumulation": 2},
        ),
    ],
)
def test_training_a_language_model(strategy, placed, counts):
    rows = 2
    for count in counts.values():
        rows *= count
    annotated = LanguageModel().parallelize(**placed)
    same_training(annotated, LanguageModel(), strategy, words(rows), **counts)


def test_training_a_language_model_in_shards():
    annotated, plain = LanguageModel(tied=False).parallelize(), LanguageModel(tied=False)
    same_training(annotated, plain, poptorch.ShardedExecution(), words(2))


def test_training_and_evaluation_in_turn():
    model = LanguageModel().parallelize()
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
    training = poptorch.trainingModel(model, options(accumulation=3), optimizer)
    evaluation = poptorch.inferenceModel(model, options(iterations=3))
    batch = words(6)
    before = evaluation(*batch[:2])
    for _ in range(2):
        training(*batch)
    after = evaluation(*batch[:2])
    assert not torch.allclose(before, after)
    training.copyWeightsToHost()
    torch.testing.assert_close(after, model(*batch[:2]).detach())


def test_blocks_can_be_removed_and_written_again():
    model = LanguageModel().parallelize()
    poptorch.removeBlocks(model)
    one = poptorch.inferenceModel(model, options())
    batch = words(4)[:2]
    torch.testing.assert_close(one(*batch), model(*batch).detach())
    model.parallelize((0, 1, 2, 3), 3)
    four = poptorch.inferenceModel(model, options(iterations=4))
    torch.testing.assert_close(four(*batch), model(*batch).detach())


# Blocks inside forward ----------------------------------------------------------------------------


class Inside(nn.Module):
    """Four layers, each in a block made by ``style``."""

    def __init__(self, style=None):
        super().__init__()
        torch.manual_seed(1)
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))
        self.style = style
        self.blocks = nn.ModuleList(poptorch.Block(f"b{i}", ipu_id=i) for i in range(4))
        if style != "kept":
            del self.blocks

    def run(self, i, x):
        return torch.tanh(self.layers[i](x))

    @poptorch.BlockFunction("b0", ipu_id=0)
    def first(self, x):
        return self.run(0, x)

    @poptorch.BlockFunction("b1", ipu_id=1)
    def second(self, x):
        return self.run(1, x)

    def block(self, i):
        if self.style == "strings":
            return poptorch.Block(f"b{i}", ipu_id=f"{i}")
        if self.style == "automatic":
            return poptorch.Block(ipu_id=i)
        return self.blocks[i] if self.style == "kept" else contextlib.nullcontext()

    def forward(self, x, target=None):
        if self.style == "automatic":
            poptorch.Block.useAutoId()
        if self.style == "functions":
            x = self.second(self.first(x))
            poptorch.Block.start("b2", ipu_id=2)
            x = self.run(2, x)
            poptorch.Block.start("b3", ipu_id=3)
            return self.last(self.run(3, x), target)
        for i in range(3):
            with self.block(i):
                x = self.run(i, x)
        with self.block(3):
            return self.last(self.run(3, x), target)

    def last(self, x, target):
        return x if target is None else (x, F.mse_loss(x, target))


@pytest.mark.parametrize("style", ("strings", "automatic", "kept", "functions"))
def test_blocks_inside_forward(style):
    generator = torch.Generator().manual_seed(2)
    batch = [torch.randn(14, 4, generator=generator) for _ in range(2)]
    same_training(Inside(style), Inside(), None, batch, accumulation=7)
    model = Inside(style)
    names = ("0", "1", "2", "3") if style == "automatic" else ("b0", "b1", "b2", "b3")
    listed = options(poptorch.PipelinedExecution(*names), iterations=7)
    actual = poptorch.inferenceModel(model, listed)(batch[0])
    torch.testing.assert_close(actual, model(batch[0]).detach())  # no effect outside


# Phases with names made at run time ---------------------------------------------------------------

ROUNDS, SIDE = 3, 5


class Crossing(nn.Module):
    """Two lanes that swap after each product; every third product shares the phase before it."""

    def __init__(self, annotated=True):
        super().__init__()
        torch.manual_seed(3)
        self.weights = nn.ParameterList(torch.randn(SIDE, SIDE) * 0.4 for _ in range(6 * ROUNDS))
        self.annotated = annotated

    def block(self, phase, lane):
        name = f"phase{phase}_lane{lane}"
        return poptorch.Block(name) if self.annotated else contextlib.nullcontext()

    def forward(self, x, target=None):
        weights, phase = iter(self.weights), 0
        with self.block(0, 0):
            lanes = torch.split(x, SIDE)
        for step in range(3 * ROUNDS):
            done = []
            for lane in range(2):
                with self.block(phase, lane):
                    done.append(F.relu(next(weights) @ lanes[lane]))
            lanes = done[::-1]
            phase += step % 3 != 1
        with self.block(2 * ROUNDS - 1, 1):
            out = lanes[0] + lanes[1]
            return out if target is None else (out, F.l1_loss(out, target))


def phases(*groups):
    """Six phases of two stages; phase n runs on the IPUs of group n modulo their number."""
    return [
        [
            poptorch.Stage(f"phase{n}_lane{lane}").ipu(groups[n % len(groups)][lane])
            for lane in range(2)
        ]
        for n in range(2 * ROUNDS)
    ]


def serial(liveness):
    return poptorch.SerialPhasedExecution(*phases((0, 1))).setTensorsLiveness(liveness)


def parallel():
    return poptorch.ParallelPhasedExecution(*phases((0, 2), (1, 3)))


@pytest.mark.parametrize(
    "strategy",
    [
        parallel(),
        parallel().sendTensorsOffChipAfterFwd().useSeparateBackwardPhase(),
        *[serial(liveness) for liveness in poptorch.Liveness],
        serial(poptorch.Liveness.AlwaysLive).useSeparateBackwardPhase(),
    ],
    ids=str,
)
def test_phases_named_at_run_time(strategy):
    batch = torch.rand(2 * SIDE, SIDE), torch.rand(SIDE, SIDE)
    same_training(Crossing(), Crossing(False), strategy, batch)
    model = Crossing()
    actual = poptorch.inferenceModel(model, options(strategy))(batch[0])
    torch.testing.assert_close(actual, model(batch[0]).detach())


# Many kinds of ops --------------------------------------------------------------------------------


class Everything(nn.Module):
    """Convolutions, a recurrent layer, an embedding, buffers and PopTorch's ops over four IPUs."""

    def __init__(self, annotated=True):
        super().__init__()
        torch.manual_seed(4)
        self.annotated = annotated
        # a bias before a batch norm would learn from rounding errors alone
        first = nn.Conv2d(2, 4, 3, padding=1, bias=False)
        self.conv = nn.Sequential(first, nn.BatchNorm2d(4), nn.ReLU())
        self.wide = nn.Conv2d(4, 4, 3, padding=1)
        self.lstm = nn.LSTM(8, 6, batch_first=True)
        self.table = nn.Embedding(5, 6)
        self.head = nn.Linear(6, 5)
        self.register_buffer("scale", torch.tensor(0.5))
        self.register_buffer("steps", torch.zeros(1))

    def start(self, name, ipu):
        if self.annotated:
            poptorch.Block.start(name, ipu_id=ipu)

    def forward(self, x, index, target):
        x = x * self.scale  # before the first block: IPU 0
        self.start("conv", 0)
        with poptorch.NameScope("convolutions"), poptorch.Attribute(__outline={"layer": "conv"}):
            x = self.conv(x)
        self.start("wide", 1)
        with poptorch.MultiConv():
            x = self.wide(x) + F.conv2d(x, self.wide.weight, padding=1)
        x = poptorch.recomputationCheckpoint(F.max_pool2d(x, 2))
        self.start("lstm", 2)
        x, _ = self.lstm(x.flatten(1).unsqueeze(1).reshape(x.shape[0], -1, 8))
        x = poptorch.set_available_memory(x.mean(1) * self.scale, 0.3)
        self.steps.add_(1)
        self.start("head", 3)
        mode = poptorch.MatMulSerializationMode.ReducingDim
        x = (x + self.table(index)).unsqueeze(0)
        x = poptorch.serializedMatMul(x, self.head.weight.t().unsqueeze(0), mode, factor=3)
        x = poptorch.nop(x.squeeze(0) + self.head.bias)
        losses = F.nll_loss(F.log_softmax(x, -1), target, reduction="none")
        return x, poptorch.identity_loss(losses, reduction="mean")


def images(rows):
    generator = torch.Generator().manual_seed(rows)
    labels = [torch.randint(0, 5, (rows,), generator=generator) for _ in range(2)]
    return torch.randn(rows, 2, 4, 4, generator=generator), *labels


@pytest.mark.parametrize(
    "strategy",
    [
        poptorch.PipelinedExecution(),
        poptorch.ShardedExecution(),
        poptorch.SerialPhasedExecution("conv", "wide", "lstm", "head"),
        poptorch.ParallelPhasedExecution("conv", "wide", "lstm", "head"),
    ],
    ids=lambda s: type(s).__name__,
)
def test_all_kinds_of_ops_with_all_options(strategy):
    def run(annotated, chosen):
        opts = options(chosen, accumulation=7, replicas=2).broadcastBuffers(False)
        opts.setAvailableMemoryProportion({"IPU0": 0.3, "IPU3": 0.1})
        off = poptorch.TensorLocationSettings().useOnChipStorage(False)
        shared = off.useReplicatedTensorSharding(True).minElementsForReplicatedTensorSharding(2)
        locations = opts.TensorLocations.numIOTiles(64)
        locations.setActivationLocation(off).setAccumulatorLocation(shared)
        locations.setWeightLocation(shared).setOptimizerLocation(shared)
        return trained(Everything(annotated), opts, images(28))

    assert_same_steps(run(True, strategy), run(False, None))
