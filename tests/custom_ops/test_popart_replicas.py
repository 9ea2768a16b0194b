# SPDX-License-Identifier: Apache-2.0
"""Ops over replicas: each replica is a row of a tensor in torch, and the op one on all rows."""

import popart_support as support
import poptorch
import pytest
import torch

GROUPS = [(1, 1, 1), (2, 1, 2), (4, 1, 4), (4, 1, 2), (4, 2, 2), (4, 1, 1)]
PART = [2, 3]  # of the tensor that goes to each replica


def members(replicas, stride, size):
    """The replicas in the group of each one, in order."""
    found = []
    for r in range(replicas):
        base = r // (stride * size) * stride * size + r % stride
        found.append([base + i * stride for i in range(size)])
    return found


def all_to_all(xs, group):
    return torch.stack(
        [torch.stack([xs[j][m.index(r)] for j in m]) for r, m in enumerate(members(*group))]
    )


def all_reduce(xs, group, how=lambda t: t.sum(0)):
    return torch.stack([how(torch.stack([xs[j] for j in m])) for m in members(*group)])


class Model(torch.nn.Module):
    """f(x * w) on one replica, and a loss that weighs the elements."""

    def __init__(self, f, shape):
        super().__init__()
        torch.manual_seed(7)
        self.w = torch.nn.Parameter(torch.randn(shape))
        self.f = f

    def forward(self, x, weights):
        out = self.f(x[0] * self.w)
        return out[None], poptorch.identity_loss((out * weights[0]).sum(), "sum")


def options_of(replicas, accumulation=1):
    options = poptorch.Options().replicationFactor(replicas)
    options.Training.gradientAccumulation(accumulation)
    options.outputMode(poptorch.OutputMode.All)
    return options


def check(f, reference, replicas, shape, accumulation=1):
    """Results and gradients of f on replicas against `reference` on all of them at once."""
    support.load()
    model = Model(f, shape)
    torch.manual_seed(1)
    n = accumulation
    x = torch.randn(n, replicas, *shape)
    start = model.w.detach().clone()
    w = start.clone().requires_grad_()
    outs = torch.stack([reference(list(x[i] * w)) for i in range(n)])
    weights = torch.randn(outs.shape)
    (outs * weights).sum().backward()

    options = options_of(replicas, n)
    optimizer = poptorch.optim.SGD(model.parameters(), lr=1.0)
    trained = poptorch.trainingModel(model, options, optimizer)
    got, _ = trained(x.flatten(0, 1), weights.flatten(0, 1))
    trained.copyWeightsToHost()
    torch.testing.assert_close(got, outs.detach().flatten(0, 1))
    torch.testing.assert_close(start - model.w.detach(), w.grad / (n * replicas))
    trained.destroy()
    with torch.no_grad():
        model.w.copy_(start)
    found, _ = poptorch.inferenceModel(model, options_of(replicas))(x[0], weights[0])
    torch.testing.assert_close(found, outs[0].detach())


def op(name, group=None, domain="com.acme", like=None, **attributes):
    if group is not None:
        attributes["__collectiveReplicaGrouping"] = list(group)

    def call(x):
        example = x if like is None else like(x)
        return poptorch.custom_op([x], name, domain, 1, [example], attributes)[0]

    return call


@pytest.mark.parametrize("group", GROUPS)
def test_all_to_all(group):
    check(op("AllToAll", group), lambda xs: all_to_all(xs, group), group[0], (group[2], *PART))


@pytest.mark.parametrize("accumulation", [1, 3])
def test_all_to_all_with_gradient_accumulation(accumulation):
    group = (2, 1, 2)
    twice = op("AllToAll", group)
    check(
        lambda x: twice(twice(x).sin()),
        lambda xs: all_to_all(list(all_to_all(xs, group).sin()), group),
        2,
        (2, *PART),
        accumulation,
    )


class _Identity(torch.autograd.Function):
    """The identity on all replicas, whose gradient is the sum over a group."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return all_reduce(list(grad), ctx.group), None


class _Reduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        return all_reduce(list(x), group)

    @staticmethod
    def backward(ctx, grad):
        return grad.clone(), None


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("backwards", [0, 1])
def test_all_reduce_for_tensor_parallel_models(group, backwards):
    way = _Identity if backwards else _Reduce
    check(
        op("AllReduceTP", group, backwards=backwards),
        lambda xs: way.apply(torch.stack(xs), group),
        group[0],
        PART,
    )


OPERATORS = [
    lambda t: t.sum(0),
    lambda t: t.mean(0),
    lambda t: t.prod(0),
    lambda t: t.amin(0),
    lambda t: t.amax(0),
]


def run(call, x, replicas):
    support.load()
    model = torch.nn.Module()
    model.forward = lambda x: call(x[0])[None]
    return poptorch.inferenceModel(model, options_of(replicas))(x)


@pytest.mark.parametrize("number", range(len(OPERATORS)))
@pytest.mark.parametrize("replicas", [1, 2, 4])
def test_functions_of_gcl(replicas, number):
    torch.manual_seed(number)
    x = torch.randn(replicas, 5)
    how, every = OPERATORS[number], (replicas, 1, replicas)
    found = run(op("Collective", what="reduce", op=number), x, replicas)
    torch.testing.assert_close(found, all_reduce(list(x), every, how))
    # the last part ends in zeros
    part = -(-5 // replicas)
    scatter = op("Collective", what="scatter", op=number, like=lambda x: x.new_zeros(part))
    whole = torch.nn.functional.pad(x, (0, part * replicas - 5))
    wanted = how(whole).reshape(replicas, part)
    torch.testing.assert_close(run(scatter, x, replicas), wanted)


def test_gather_broadcast_and_groups_of_gcl():
    x = torch.randn(4, 5)
    gather = op("Collective", what="gather", like=lambda x: x.new_zeros(4, 5))
    torch.testing.assert_close(run(gather, x, 4), x.expand(4, 4, 5))
    torch.testing.assert_close(run(op("Collective", what="broadcast"), x, 4), x[1].expand(4, 5))
    found = run(op("Collective", what="in place"), x, 4)
    torch.testing.assert_close(found, all_reduce(list(x), (4, 2, 2)))


@pytest.mark.parametrize("group", GROUPS)
def test_named_all_gather_gives_its_own_part_of_the_gradient(group):
    replicas, _, size = group

    class Gather(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return torch.stack([torch.stack([x[j] for j in m]) for m in members(*group)])

        @staticmethod
        def backward(ctx, grad):
            return torch.stack([grad[r][m.index(r)] for r, m in enumerate(members(*group))])

    check(
        op("ReplicatedAllGather", group, "ai.graphcore", lambda x: x.new_zeros(size * 6)),
        lambda xs: Gather.apply(torch.stack(xs)).flatten(1),
        replicas,
        PART,
        accumulation=2,
    )


@pytest.mark.parametrize("group", GROUPS)
def test_named_all_reduce_and_reduce_scatter(group):
    replicas, _, size = group
    check(
        op("ReplicatedAllReduce", group, "ai.graphcore"),
        lambda xs: all_reduce(xs, group),
        replicas,
        PART,
    )

    def scattered(xs):
        whole = all_reduce([x.flatten() for x in xs], group)
        rows = [
            r.chunk(size)[m.index(k)]
            for k, (r, m) in enumerate(zip(whole, members(*group), strict=True))
        ]
        return torch.stack(rows)

    like = lambda x: x.new_zeros(8 // size)  # noqa: E731
    check(op("ReplicatedReduceScatter", group, "ai.graphcore", like), scattered, replicas, (2, 4))


def test_replicas_that_exchange_keep_their_own_buffers_and_random_numbers():
    """What a replica draws and counts before an exchange is there after it."""
    support.load()

    class Counts(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("seen", torch.zeros(1))

        def forward(self, x):
            noise = torch.rand_like(x)
            shared = op("ReplicatedAllReduce", domain="ai.graphcore")(noise)
            self.seen += x.sum()
            return noise, shared, self.seen + 0 * shared.sum()

    options = options_of(2).broadcastBuffers(False)
    options.randomSeed(3)
    model = poptorch.inferenceModel(Counts(), options)
    noise, shared, seen = model(torch.tensor([[1.0, 2.0], [10.0, 20.0]]))
    assert not noise[0].equal(noise[1])
    torch.testing.assert_close(shared, noise.sum(0).expand(2, 2))
    assert seen.flatten().tolist() == [3.0, 30.0]
    again, _, seen = model(torch.tensor([[1.0, 2.0], [10.0, 20.0]]))
    assert not again.equal(noise)
    assert seen.flatten().tolist() == [6.0, 60.0]


def test_errors_say_what_does_not_fit():
    x = torch.ones(2, 3)
    with pytest.raises(poptorch.Error, match="2 replicas"):
        run(op("ReplicatedAllReduce", (4, 1, 4), "ai.graphcore"), x, 2)
    with pytest.raises(poptorch.Error, match="no part for each of 2 replicas"):
        run(op("AllToAll", (2, 1, 2)), x, 2)


def test_stages_of_a_pipeline_do_not_exchange():
    class Staged(torch.nn.Module):
        def forward(self, x):
            with poptorch.Block("a", ipu_id=0):
                x = op("ReplicatedAllReduce", domain="ai.graphcore")(x * 2)
            with poptorch.Block("b", ipu_id=1):
                return x + 1

    x = torch.arange(4.0).reshape(4, 1)
    options = options_of(2).deviceIterations(2)
    with pytest.raises(poptorch.Error, match="no place in a pipeline"):
        poptorch.inferenceModel(Staged(), options)(x)
    sharded = options_of(2).deviceIterations(2)
    sharded.setExecutionStrategy(poptorch.ShardedExecution(poptorch.AutoStage.SameAsIpu))
    found = poptorch.inferenceModel(Staged(), sharded)(x)
    assert found.flatten().tolist() == [3.0, 3.0, 11.0, 11.0]


def test_the_place_of_a_replica_beside_a_momentum_that_counts_micro_batches():
    support.load()
    gather = op("ReplicatedAllGather", domain="ai.graphcore", like=lambda x: x.new_zeros(4))

    class Gathers(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = torch.nn.Parameter(torch.ones(2))

        def forward(self, x, weights):
            out = (gather(self.w * x[0]) * weights[0]).sum()
            return poptorch.identity_loss(out, "sum")

    torch.manual_seed(2)
    x, weights = torch.randn(4, 2), torch.randn(4, 4)
    model = Gathers()
    optimizer = poptorch.optim.SGD(model.parameters(), lr=1.0, momentum=0.5)
    trained = poptorch.trainingModel(model, options_of(2, 2), optimizer)
    trained(x, weights)
    # Rows are replicas, then steps; a replica's gradient is its own part.
    own = torch.stack([weights[i].view(2, 2)[i % 2] * x[i] for i in range(4)])
    trained.copyWeightsToHost()
    torch.testing.assert_close(1 - model.w.detach(), own.mean(0))
