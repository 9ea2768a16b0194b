# SPDX-License-Identifier: Apache-2.0
"""What the plan of a model on several IPUs says: memory of pipelines, phases and tensor locations;
and that a failing stage ends the call and nothing else."""

import json
import os
import signal
import threading
import time

import poptorch
import pytest
import torch
from tolerances import assert_steps_close
from torch import nn
from torch.nn import functional as F

WIDTH, ROWS = 32, 4
ACTIVATION = WIDTH * ROWS * 4  # bytes of one micro-batch


class Chain(nn.Module):
    """Equal layers, ``depth`` in each of ``stages`` blocks."""

    def __init__(self, stages=4, depth=2, annotated=True, checkpoint=False, width=WIDTH):
        super().__init__()
        torch.manual_seed(5)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(stages * depth))
        self.depth = depth
        self.annotated = annotated
        self.checkpoint = checkpoint

    def forward(self, x, target=None):
        for i, layer in enumerate(self.layers):
            if self.annotated and i % self.depth == 0:
                poptorch.Block.start(f"b{i // self.depth}", ipu_id=i // self.depth)
            x = torch.tanh(layer(x))
            if self.checkpoint:
                x = poptorch.recomputationCheckpoint(x)
        if target is None:
            return x
        return x, F.mse_loss(x, target)


def options(strategy=None, accumulation=8, replicas=1, **locations):
    opts = poptorch.Options().showCompilationProgressBar(False).replicationFactor(replicas)
    opts.Training.gradientAccumulation(accumulation)
    if strategy is not None:
        opts.setExecutionStrategy(strategy)
    for kind, setting in locations.items():
        getattr(opts.TensorLocations, f"set{kind}Location")(setting)
    return opts


def adam(model):
    return poptorch.optim.AdamW(model.parameters(), lr=0.01)


def trained(model, opts, optimizer=adam, calls=2, width=WIDTH):
    """(plan, outputs, weights) after a few steps."""
    steps = opts.Training.gradient_accumulation * opts.replication_factor
    generator = torch.Generator().manual_seed(1)
    batch = [torch.randn(ROWS * steps, width, generator=generator) for _ in range(2)]
    training = poptorch.trainingModel(model, opts, optimizer(model))
    outputs = [training(*batch) for _ in range(calls)]
    training.copyWeightsToHost()
    plan = training.getProgramSummary()
    return plan, outputs, {k: v.clone() for k, v in model.state_dict().items()}


def same_results(actual, expected):
    for a, e in zip(actual[1], expected[1], strict=True):
        assert_steps_close(a[0], e[0])
        assert_steps_close(a[1], e[1])
    for name, value in expected[2].items():
        assert_steps_close(actual[2][name], value, name)


# Pipelines ----------------------------------------------------------------------------------------


def channel_bytes(stages, stage):
    """What an IPU keeps for micro-batches in flight, with recomputation: the inputs of its stage
    until their backward is done, its own results for that backward, gradients coming in twice."""
    inputs = stages - stage + 1 if stage > 0 else 0
    last = stage == stages - 1
    own = 0 if last else stages - stage
    gradients = 0 if last else 2
    outgoing = 1 if stage > 0 else 0  # the gradient that is being sent
    return (inputs + own + gradients + outgoing) * ACTIVATION


@pytest.mark.parametrize("stages", (2, 4))
def test_activations_of_a_pipeline_follow_the_formula(stages):
    plan, *_ = trained(Chain(stages), options(poptorch.PipelinedExecution()))
    tasks = [task["name"] for task in plan["tasks"]]
    forward = [f"stage{s}.fwd" for s in range(stages)]
    backward = [f"stage{s}.bwd" for s in reversed(range(stages))]
    assert tasks == forward + backward
    assert [task["ipu"] for task in plan["tasks"]] == [*range(stages), *reversed(range(stages))]
    for stage, ipu in enumerate(plan["ipus"][:-1]):
        assert ipu["channel_bytes"] == channel_bytes(stages, stage), stage
    # The last stage goes back at once: all it needs is kept, for one micro-batch.
    last = [c for c in plan["channels"] if c["from"] == stages - 1]
    assert last and all(c["slots"] == 1 for c in last)


def test_weights_lie_where_they_are_used():
    plan, *_ = trained(Chain(4), options(poptorch.PipelinedExecution()))
    # weight, bias, accumulator and two moments of each of two layers
    expected = 2 * 4 * (WIDTH * WIDTH + WIDTH) * 4
    for ipu in plan["ipus"]:
        assert expected <= ipu["state_bytes"] < expected + 1024


def test_recomputation_trades_memory_for_work():
    def total(plan):
        return sum(ipu["channel_bytes"] for ipu in plan["ipus"])

    def products(plan):
        return sum(n for name, n in plan["kernels"].items() if name.startswith("mm"))

    expected = trained(Chain(4, 3, annotated=False), options())
    default = trained(Chain(4, 3), options(poptorch.PipelinedExecution()))
    kept = options(poptorch.PipelinedExecution())
    kept._Popart.set("autoRecomputation", 0)
    kept = trained(Chain(4, 3), kept)
    marked = trained(Chain(4, 3, checkpoint=True), options(poptorch.PipelinedExecution()))
    for result in (default, kept, marked):
        same_results(result, expected)
    assert total(default[0]) < total(kept[0])
    assert products(default[0]) > products(kept[0])
    # Every activation is a checkpoint: nothing is left to be made again.
    assert products(marked[0]) == products(kept[0])


def test_batch_norm_is_made_again_and_counts_once():
    class Normed(nn.Module):
        def __init__(self, annotated):
            super().__init__()
            torch.manual_seed(6)
            layers = [(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.ReLU()) for _ in range(4)]
            self.layers = nn.Sequential(*[part for layer in layers for part in layer])
            if annotated:
                poptorch.BeginBlock(self.layers[9], "last", ipu_id=1)

        def forward(self, x, target):
            x = self.layers(x)
            return x, F.mse_loss(x, target)

    def sgd(model):
        return poptorch.optim.SGD(model.parameters(), lr=0.05)

    expected = trained(Normed(False), options(), sgd)
    actual = trained(Normed(True), options(poptorch.PipelinedExecution()), sgd)
    same_results(actual, expected)
    assert actual[2]["layers.1.num_batches_tracked"] == 16
    large = [c for c in actual[0]["channels"] if c["ipu"] == 0 and c["bytes"] == ACTIVATION]
    # Of three layers nothing is kept but their result; and gradients come in.
    assert sorted((c["from"], c["slots"]) for c in large) == [(0, 2), (2, 2)]


# Failures -----------------------------------------------------------------------------------------


@torch.library.custom_op("tessera_ipus::positive", mutates_args=())
def positive(x: torch.Tensor) -> torch.Tensor:
    if x.min() < 0:
        raise ValueError("a negative number")
    return x * 2


@positive.register_fake
def _(x):
    return torch.empty_like(x)


class FailsInStageTwo(nn.Module):
    """Stage 2 refuses some data: in a kernel of ours, or in an op that torch runs on the host."""

    def __init__(self, host, lane):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))
        self.table = nn.Embedding(3, 4)
        self.host = host
        self.lane = nn.Linear(4, 4) if lane else None

    def forward(self, x, index):
        given = x
        for i, layer in enumerate(self.layers):
            poptorch.Block.start(f"b{i}", ipu_id=i)
            x = layer(x)
            if i == 2 and self.host:
                x = x + positive(index.float().unsqueeze(1) + x * 0)
            elif i == 2:
                x = x + self.table(index)
                if self.lane is not None:
                    poptorch.Block.start("lane", ipu_id=4)
                    given = self.lane(given)
        return x if self.lane is None else x + given


BLOCKS = [f"b{i}" for i in range(4)]


@pytest.mark.parametrize(
    "strategy",
    [
        poptorch.PipelinedExecution(),
        poptorch.ShardedExecution(),
        # one phase: `lane` runs beside the stages that fail
        poptorch.SerialPhasedExecution(poptorch.Phase(*map(poptorch.Stage, [*BLOCKS, "lane"]))),
    ],
    ids=lambda s: type(s).__name__,
)
@pytest.mark.parametrize("host", (False, True))
def test_a_stage_that_fails_ends_the_call_and_nothing_else(strategy, host):
    lane = isinstance(strategy, poptorch.SerialPhasedExecution)
    model = FailsInStageTwo(host, lane)
    opts = options(strategy, 1).deviceIterations(8).autoRoundNumIPUs(True)
    inference = poptorch.inferenceModel(model, opts)
    x, good = torch.randn(16, 4), torch.arange(16) % 3
    expected = model(x, good).detach()
    torch.testing.assert_close(inference(x, good), expected)
    bad = good.clone()
    bad[11] = -1
    for _ in range(3):
        with pytest.raises(poptorch.Error, match="a negative number" if host else "-1") as caught:
            inference(x, bad)
        assert __file__ in caught.value.location
        torch.testing.assert_close(inference(x, good), expected)


CALLS = []


@torch.library.custom_op("tessera_ipus::slow", mutates_args=())
def slow(x: torch.Tensor) -> torch.Tensor:
    CALLS.append(1)
    if len(CALLS) == 5:
        os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.002)
    return x * 2


@slow.register_fake
def _(x):
    return torch.empty_like(x)


def test_ctrl_c_stops_all_stages():
    class Slow(nn.Module):
        def forward(self, x):
            for i in range(4):
                poptorch.Block.start(f"b{i}", ipu_id=i)
                x = slow(x) + i
            return x

    count = 200
    opts = options(None, 1).deviceIterations(count).outputMode(poptorch.OutputMode.All)
    inference = poptorch.inferenceModel(Slow(), opts)
    inference.compile(torch.ones(count))
    CALLS.clear()
    with pytest.raises(KeyboardInterrupt):
        inference(torch.ones(count))
    assert 5 <= len(CALLS) < 4 * count
    x = torch.arange(float(count))
    assert torch.equal(inference(x), 16 * x + 2 * 2 + 2 * 2 + 3)


# Phases and locations -----------------------------------------------------------------------------


def serial(liveness):
    """All four phases on IPU 0."""
    phases = [poptorch.Phase(poptorch.Stage(block).ipu(0)) for block in BLOCKS]
    return poptorch.SerialPhasedExecution(*phases).setTensorsLiveness(liveness)


def test_phases_take_weights_and_activations_off_the_chip():
    expected = trained(Chain(4, annotated=False), options())
    one_ipu = expected[0]["arena_bytes"] + expected[0]["state_bytes"]
    peaks, streaming = {}, {}
    for liveness in poptorch.Liveness:
        result = trained(Chain(4), options(serial(liveness)))
        same_results(result, expected)
        (ipu,) = result[0]["ipus"]
        peaks[liveness.name], streaming[liveness.name] = ipu["on_chip_bytes"], ipu["off_chip_bytes"]
    assert peaks["AlwaysLive"] < one_ipu
    order = ["AlwaysLive", "OffChipAfterFwd", "OffChipAfterFwdNoOverlap", "OffChipAfterEachPhase"]
    figures = [peaks[name] for name in order]
    assert figures == sorted(figures, reverse=True)
    assert figures[0] > figures[2], "loading ahead takes room"
    assert streaming["AlwaysLive"] < streaming["OffChipAfterFwd"]
    assert streaming["OffChipAfterFwd"] < streaming["OffChipAfterEachPhase"]


def test_backward_may_begin_in_a_phase_of_its_own():
    expected = trained(Chain(4, annotated=False), options())
    shared = trained(Chain(4), options(serial(poptorch.Liveness.AlwaysLive)))
    strategy = serial(poptorch.Liveness.AlwaysLive).useSeparateBackwardPhase()
    separate = trained(Chain(4), options(strategy))
    same_results(shared, expected)
    same_results(separate, expected)
    assert [task["phase"] for task in shared[0]["tasks"]] == [0, 1, 2, 3, 4, 5, 6]
    assert [task["phase"] for task in separate[0]["tasks"]] == [0, 1, 2, 3, 5, 6, 7, 8]


MEETING = threading.Barrier(2)


@torch.library.custom_op("tessera_ipus::meet", mutates_args=())
def meet(x: torch.Tensor) -> torch.Tensor:
    MEETING.wait(timeout=60)  # ends in an error unless another task is here at the same time
    return x * 2


@meet.register_fake
def _(x):
    return torch.empty_like(x)


class Lanes(nn.Module):
    """Two lanes in two phases of two stages; in each phase they wait for each other."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x):
        lanes = [x, x]
        for phase in range(2):
            for lane in range(2):
                with poptorch.Block(f"phase{phase}_lane{lane}"):
                    lanes[lane] = meet(self.layers[2 * phase + lane](lanes[lane]))
        with poptorch.Block("phase1_lane0"):
            return lanes[0] + lanes[1]

    def on_the_host(self, x):
        for i in range(2):
            x = x if i else [x, x]
            x = [2 * self.layers[2 * i + lane](x[lane]) for lane in range(2)]
        return (x[0] + x[1]).detach()


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    "kind, groups",
    [
        (poptorch.ParallelPhasedExecution, ((0, 2), (1, 3))),
        (poptorch.SerialPhasedExecution, ((0, 1), (0, 1))),
    ],
)
def test_ipus_of_one_phase_run_at_the_same_time(kind, groups, tmp_path, monkeypatch, two_threads):
    file = tmp_path / "trace.json"
    monkeypatch.setenv("TESSERA_TRACE", str(file))
    phases = [
        poptorch.Phase(*[poptorch.Stage(f"phase{n}_lane{i}") for i in range(2)]).ipus(*ipus)
        for n, ipus in enumerate(groups)
    ]
    model = Lanes()
    opts = options(kind(*phases), 1).deviceIterations(3).outputMode(poptorch.OutputMode.All)
    inference = poptorch.inferenceModel(model, opts)
    x = torch.randn(6, WIDTH)
    torch.testing.assert_close(inference(x), model.on_the_host(x))
    tasks = inference.getProgramSummary()["tasks"]
    assert [task["group"] for task in tasks] == [0, 0, 1, 1, 2]
    assert [task["ipu"] for task in tasks] == [*groups[0], *groups[1], groups[1][0]]
    spans = {}
    for e in json.loads(file.read_text())["traceEvents"]:
        if e["ph"] == "X":
            spans[e["name"], e["args"]["micro_batch"]] = e["ts"], e["ts"] + e["dur"]
    for one, other in (tasks[:2], tasks[2:4]):
        for k in range(3):
            a, b = spans[one["name"], k], spans[other["name"], k]
            assert max(a[0], b[0]) < min(a[1], b[1]), "they overlap"


def settings():
    return poptorch.TensorLocationSettings()


@pytest.mark.parametrize("strategy", (None, poptorch.PipelinedExecution, poptorch.ShardedExecution))
@pytest.mark.parametrize("kind", ("Weight", "Optimizer", "Accumulator", "Activation"))
def test_locations_change_the_plan_and_no_results(strategy, kind):
    def run(**locations):
        opts = options(strategy and strategy(), **locations)
        return trained(Chain(4, annotated=strategy is not None), opts)

    expected = run(**{kind: settings().useOnChipStorage(True)})
    off = run(**{kind: settings().useOnChipStorage(False)})
    same_results(off, expected)

    def figure(result, name):
        return sum(ipu[name] for ipu in result[0]["ipus"])

    assert figure(expected, "off_chip_bytes") == 0
    if kind == "Activation" and strategy is None:
        return  # all in one task: nothing waits
    assert figure(off, "off_chip_bytes") > 0
    resident = ("state_bytes", "channel_bytes")
    assert sum(figure(off, n) for n in resident) < sum(figure(expected, n) for n in resident)
    if kind != "Activation":
        small = settings().useOnChipStorage(False).minElementsForOffChip(10**6)
        assert figure(run(**{kind: small}), "off_chip_bytes") == 0


@pytest.mark.parametrize("kind", ("pipelined", "sharded", "serial", "off chip"))
def test_every_ipu_has_memory_of_its_own(kind):
    strategies = {
        "pipelined": poptorch.PipelinedExecution(),
        "sharded": poptorch.ShardedExecution(),
        "serial": poptorch.SerialPhasedExecution(*BLOCKS),
        "off chip": poptorch.PipelinedExecution(),
    }
    off = settings().useOnChipStorage(False)
    locations = {"Optimizer": off, "Accumulator": off} if kind == "off chip" else {}
    plan, *_ = trained(Chain(4), options(strategies[kind], **locations))
    parts = []  # (begin, end) of the states of an IPU, on chip or not
    for number, ipu in enumerate(plan["ipus"]):
        figures = {
            False: (ipu["state_offset"], ipu["state_bytes"]),
            True: (ipu["streaming_state_offset"], ipu["streaming_state_bytes"]),
        }
        for off_chip, (begin, size) in figures.items():
            own = [s for s in plan["states"] if (s["ipu"], s["off_chip"]) == (number, off_chip)]
            used = sorted((s["offset"], s["offset"] + s["bytes"]) for s in own)
            assert all(a[1] <= b[0] for a, b in zip(used, used[1:], strict=False))
            if used:  # the figure is what they take, in whole cache lines
                assert used[0][0] == begin and begin % 4096 == 0
                assert begin + size == -(-used[-1][1] // 64) * 64
                parts.append((begin, begin + size))
    parts.sort()
    assert all(a[1] <= b[0] for a, b in zip(parts, parts[1:], strict=False))
    assert 0 <= plan["state_bytes"] - parts[-1][1] < 4096, "and there are no others"
    streaming = {s["name"].split(":")[0] for s in plan["states"] if s["off_chip"]}
    weights = {f"layers.{i}.{what}" for i in range(8) for what in ("weight", "bias")}
    moments = {"accum", "exp_avg", "exp_avg_sq"}
    expected = {"serial": weights | moments, "off chip": moments}
    assert streaming == expected.get(kind, set())


def test_optimizer_state_off_chip_frees_the_chip():
    on = trained(Chain(4), options(poptorch.PipelinedExecution()))
    setting = settings().useOnChipStorage(False)
    off = trained(Chain(4), options(poptorch.PipelinedExecution(), Optimizer=setting))
    for before, after in zip(on[0]["ipus"], off[0]["ipus"], strict=True):
        assert after["on_chip_bytes"] < before["on_chip_bytes"]
        assert after["off_chip_bytes"] > 0


def test_replicated_tensor_sharding_divides_optimizer_state():
    width = 96  # weights are above the default threshold of 8192 elements, biases are not

    def run(setting, replicas=2):
        opts = options(poptorch.PipelinedExecution(), 4, replicas, Optimizer=setting)
        return trained(Chain(2, 1, width=width), opts, width=width)

    plain, sharded = run(settings()), run(settings().useReplicatedTensorSharding())
    same_results(sharded, plain)
    for before, after in zip(plain[0]["ipus"], sharded[0]["ipus"], strict=True):
        assert before["state_bytes"] - after["state_bytes"] == width * width * 4  # half of two
    large = settings().useReplicatedTensorSharding()
    large.minElementsForReplicatedTensorSharding(10**6)
    assert run(large)[0]["ipus"] == plain[0]["ipus"]


# Timeline -----------------------------------------------------------------------------------------


def test_a_timeline_shows_every_task_of_every_micro_batch(tmp_path, monkeypatch):
    file = tmp_path / "trace.json"
    monkeypatch.setenv("TESSERA_TRACE", str(file))
    trained(Chain(2), options(poptorch.PipelinedExecution(), 4))
    events = [e for e in json.loads(file.read_text())["traceEvents"] if e["ph"] == "X"]
    seen = sorted((e["name"], e["args"]["micro_batch"]) for e in events if e["cat"] != "update")
    names = ("stage0.bwd", "stage0.fwd", "stage1.bwd", "stage1.fwd")
    assert seen == [(name, k) for name in names for k in range(4)]
    assert [e["name"] for e in events if e["cat"] == "update"] == ["update"]
    ends = {(e["name"], e["args"]["micro_batch"]): e["ts"] + e["dur"] for e in events}
    for e in events:
        if e["name"] == "stage1.fwd":
            assert e["ts"] >= ends["stage0.fwd", e["args"]["micro_batch"]] - 0.002
    for ipu in (0, 1):  # an IPU does one thing at a time
        spans = sorted((e["ts"], e["ts"] + e["dur"]) for e in events if e["tid"] == ipu)
        assert all(a[1] <= b[0] + 0.002 for a, b in zip(spans, spans[1:], strict=False))
