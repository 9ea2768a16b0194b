# SPDX-License-Identifier: Apache-2.0
"""serializedMatMul: the plan of a large product in pieces, against the product as a whole."""

import poptorch
import pytest
import torch
import torch.nn.functional as F  # noqa: N812

MODE = poptorch.MatMulSerializationMode
WIDTH, CLASSES = 16, 768
X = torch.randn(4, 16, WIDTH, generator=torch.Generator().manual_seed(1))
Y = torch.randint(0, CLASSES, (4, 16), generator=torch.Generator().manual_seed(2))


def cross_entropy(logits, y, **kwargs):
    return F.cross_entropy(logits.view(-1, CLASSES).float(), y.view(-1), **kwargs)


def ignoring(logits, y):
    y = torch.where(y % 3 == 0, -100, y)
    return cross_entropy(logits, y, ignore_index=-100)


def summed(logits, y):
    return cross_entropy(logits, y, reduction="sum") * 0.1


def one_by_one(logits, y):
    return (cross_entropy(logits, y, reduction="none") * (y.view(-1) % 2)).sum() * 0.1


def with_activation(logits, y):
    return F.gelu(logits.view(-1, CLASSES).float()).softmax(-1).square().sum()


LOSSES = [cross_entropy, ignoring, summed, one_by_one, with_activation]


class Projection(torch.nn.Module):
    def __init__(self, loss, mode=None, factor=4, keep_precision=False, bias=True):
        super().__init__()
        torch.manual_seed(0)
        self.first = torch.nn.Linear(WIDTH, WIDTH)
        self.weight = torch.nn.Parameter(torch.randn(CLASSES, WIDTH) * 0.1)
        self.bias = torch.nn.Parameter(torch.randn(CLASSES) * 0.1) if bias else None
        self.loss = loss
        self.how = (mode, factor, keep_precision)

    def forward(self, x, y):
        x = torch.tanh(self.first(x))
        if self.how[0] is None:
            logits = x @ self.weight.t()
        else:
            logits = poptorch.serializedMatMul(x, self.weight.t(), *self.how)
        if self.bias is not None:
            logits = logits + self.bias
        return poptorch.identity_loss(self.loss(logits, y), "none")


def train(model, x=X, y=Y, options=None, optimizer=torch.optim.SGD):
    """(losses, weights, summary) after two steps."""
    options = options or poptorch.Options()
    executor = poptorch.trainingModel(model, options, optimizer(model.parameters(), lr=0.1))
    losses = torch.stack([executor(x, y) for _ in range(2)])
    return losses, dict(model.state_dict()), executor.getProgramSummary()


def close(actual, expected, **tolerance):
    torch.testing.assert_close(actual[0], expected[0], **tolerance)
    for name, value in expected[1].items():
        torch.testing.assert_close(actual[1][name], value, **tolerance)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda f: f.__name__)
def test_training_in_pieces_takes_less_memory(loss):
    whole = train(Projection(loss))
    model = Projection(loss)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(2):
        sgd.zero_grad()
        losses.append(model(X, Y))
        losses[-1].backward()
        sgd.step()
    pieces = train(Projection(loss, MODE.OutputChannels))
    close(pieces, (torch.stack(losses).detach(), model.state_dict()), atol=1e-5, rtol=1e-4)
    assert pieces[2]["arena_bytes"] < 0.7 * whole[2]["arena_bytes"]


@pytest.mark.parametrize("mode", MODE, ids=lambda m: m.name)
def test_every_mode_trains_alike(mode):
    whole = train(Projection(cross_entropy))
    pieces = train(Projection(cross_entropy, mode))
    close(pieces, whole, atol=1e-5, rtol=1e-4)
    smaller = pieces[2]["arena_bytes"] < 0.7 * whole[2]["arena_bytes"]
    assert smaller == (mode is not MODE.Disabled)


def test_more_pieces_take_less():
    sizes = [
        train(Projection(cross_entropy, MODE.OutputChannels, factor))[2]["arena_bytes"]
        for factor in (1, 2, 4, 16)
    ]
    assert sizes == sorted(sizes, reverse=True) and len(set(sizes)) == 4


@pytest.mark.parametrize("optimizer", [poptorch.optim.Adam, poptorch.optim.SGD])
def test_with_accumulation(optimizer):
    options = poptorch.Options()
    options.Training.gradientAccumulation(2)
    whole = train(Projection(cross_entropy), options=options.clone(), optimizer=optimizer)
    model = Projection(cross_entropy, MODE.InputChannels, 4)
    pieces = train(model, options=options.clone(), optimizer=optimizer)
    close(pieces, whole, atol=1e-4, rtol=1e-3)
    assert pieces[2]["arena_bytes"] < whole[2]["arena_bytes"]


@pytest.mark.parametrize("keep_precision", [False, True])
def test_halves_add_up_in_float32(keep_precision):
    model = Projection(cross_entropy, MODE.ReducingDim, 4, keep_precision).half()
    pieces, whole = train(model, X.half()), train(Projection(cross_entropy).half(), X.half())
    close(pieces, whole, atol=2e-3, rtol=2e-3)
    assert pieces[2]["arena_bytes"] < 0.7 * whole[2]["arena_bytes"]


class Choice(torch.nn.Module):
    def __init__(self, mode, finish):
        super().__init__()
        torch.manual_seed(0)
        self.weight = torch.nn.Parameter(torch.randn(WIDTH, CLASSES))
        self.mode, self.finish = mode, finish

    def forward(self, x):
        return self.finish(poptorch.serializedMatMul(x, self.weight, self.mode, 4))


FINISHES = {
    "argmax": lambda t: t.argmax(-1),
    "topk": lambda t: t.view(-1, CLASSES).topk(3, -1)[0],
    "logsumexp": lambda t: t.view(-1, CLASSES).exp().sum(-1).log(),
}


@pytest.mark.parametrize("finish", FINISHES)
def test_inference_of_what_needs_no_whole_product(finish):
    x = X.view(-1, WIDTH)
    arenas = []
    for mode in (MODE.Disabled, MODE.OutputChannels):
        model = Choice(mode, FINISHES[finish])
        executor = poptorch.inferenceModel(model)
        torch.testing.assert_close(executor(x), model(x).detach(), check_dtype=False)
        arenas.append(executor.getProgramSummary()["arena_bytes"])
    assert arenas[1] < 0.5 * arenas[0]


def shifted(logits, y):
    return cross_entropy(logits[:, :-1].reshape(-1, CLASSES), y[:, 1:].reshape(-1))


def test_a_product_that_is_cut_along_tokens_is_done_by_samples():
    whole = train(Projection(shifted))
    pieces = train(Projection(shifted, MODE.OutputChannels))
    close(pieces, whole, atol=1e-5, rtol=1e-4)
    assert pieces[2]["arena_bytes"] < 0.7 * whole[2]["arena_bytes"]
    more = train(Projection(shifted, MODE.OutputChannels, 16))  # there are four samples
    close(more, whole, atol=1e-5, rtol=1e-4)
    assert more[2]["arena_bytes"] == pieces[2]["arena_bytes"]


class Returning(Projection):
    """Gives the product, or what the rest makes of it, beside the loss."""

    def forward(self, x, y):
        kept = []
        self.loss = lambda logits, y: (kept.append(logits), cross_entropy(logits, y))[1]
        loss = super().forward(x, y)
        return kept[0], loss


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_a_product_that_is_returned_beside_its_loss(training, bias):
    found = []
    for mode in (MODE.Disabled, MODE.OutputChannels):
        model = Returning(None, mode, bias=bias)
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        executor = (
            poptorch.trainingModel(model, optimizer=sgd)
            if training
            else poptorch.inferenceModel(model)
        )
        results = [executor(X, Y) for _ in range(2)][-1]
        found.append((*results, executor.getProgramSummary()["arena_bytes"]))
    torch.testing.assert_close(found[1][:2], found[0][:2], atol=1e-5, rtol=1e-4)
    assert found[1][2] < 0.7 * found[0][2]


def test_a_product_that_is_returned_costs_nothing_more():
    arenas = []
    for mode in (MODE.Disabled, MODE.OutputChannels):
        model = Choice(mode, lambda t: t)
        executor = poptorch.inferenceModel(model)
        torch.testing.assert_close(executor(X), model(X).detach())
        arenas.append(executor.getProgramSummary()["arena_bytes"])
    assert arenas[0] == arenas[1]


class Attention(torch.nn.Module):
    def __init__(self, mode):
        super().__init__()
        self.mode = mode

    def forward(self, q, k, v):
        scores = poptorch.serializedMatMul(q, k.transpose(-1, -2), self.mode, 4)
        return scores.softmax(-1) @ v


@pytest.mark.parametrize("batch", [(8,), (4, 2), (6,), (1,)])
def test_products_of_a_batch_are_done_a_part_at_a_time(batch):
    q, k, v = torch.randn(3, *batch, 32, 8)
    arenas = []
    for mode in (MODE.Disabled, MODE.InputChannels):
        executor = poptorch.inferenceModel(Attention(mode))
        torch.testing.assert_close(executor(q, k, v), Attention(mode)(q, k, v))
        arenas.append(executor.getProgramSummary()["arena_bytes"])
    assert arenas[1] == arenas[0] if batch == (1,) else arenas[1] < 0.7 * arenas[0]


def test_a_batch_of_products_that_is_returned():
    a, b = torch.randn(3, 8, 4), torch.randn(3, 4, 6)

    class Batched(torch.nn.Module):
        def forward(self, a, b):
            return poptorch.serializedMatMul(a, b, MODE.InputChannels, 2)

    torch.testing.assert_close(poptorch.inferenceModel(Batched())(a, b), a @ b)


@pytest.mark.parametrize(
    ("mode", "factor"), [(MODE.InputChannels, 7), (MODE.ReducingDim, 5), (MODE.OutputChannels, 5)]
)
def test_a_factor_that_does_not_divide(mode, factor):
    with pytest.raises(poptorch.Error, match=f"factor {factor} does not divide"):
        poptorch.serializedMatMul(torch.ones(4, 4), torch.ones(4, 4), mode, factor)


def test_a_negative_factor():
    with pytest.raises(poptorch.Error, match="must not be negative"):
        poptorch.serializedMatMul(torch.ones(4, 4), torch.ones(4, 4), MODE.ReducingDim, -2)


def test_a_wrong_label_is_the_users_error():
    model = Projection(cross_entropy, MODE.OutputChannels)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    executor = poptorch.trainingModel(model, optimizer=sgd)
    with pytest.raises(poptorch.Error, match="out of bounds"):
        executor(X, torch.full_like(Y, CLASSES))
