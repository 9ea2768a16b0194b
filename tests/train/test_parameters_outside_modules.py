# SPDX-License-Identifier: Apache-2.0
"""State is what the tensors of a model are, not how forward reaches them: parameters in lists,
closures and helper objects are trained, and tensors that share memory are one state."""

import threading

import poptorch
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn


def batch(index, rows=4):
    generator = torch.Generator().manual_seed(index)
    return [torch.randn(rows, 3, generator=generator) for _ in range(2)]


def quiet():
    return poptorch.Options().showCompilationProgressBar(False)


def made(build):
    torch.manual_seed(0)
    return build()


def optimizer_of(model):
    params = [p for p in model.parameters() if p.requires_grad]
    return torch.optim.SGD(params, lr=0.1, momentum=0.9)


def eager_steps(model, count=4):
    optimizer = optimizer_of(model)
    for index in range(count):
        optimizer.zero_grad()
        model(*batch(index))[1].backward()
        optimizer.step()


def check_training(build, count=4):
    """Trains the model and its twin in eager PyTorch; returns the former and its executor."""
    twin, model = made(build), made(build)
    eager_steps(twin, count)
    training = poptorch.trainingModel(model, quiet(), optimizer_of(model))
    for index in range(count):
        training(*batch(index))
    torch.testing.assert_close(dict(model.state_dict()), dict(twin.state_dict()))
    return model, training


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 3))
        self.setup()

    def setup(self):
        pass

    def forward(self, x, target):
        out = self.compute(x)
        return out, F.mse_loss(out, target)


# Ways to a parameter ------------------------------------------------------------------------------


class InList(Model):
    def setup(self):
        self.weights = [self.weight]

    def compute(self, x):
        return x @ self.weights[0]


class InDict(Model):
    def setup(self):
        self.weights = {"only": (self.weight,)}

    def compute(self, x):
        return x @ self.weights["only"][0] + self.weight.sum()


class InClosure(Model):
    def setup(self):
        weight = self.weight
        self.compute = lambda x: x @ weight


class Helper:
    def __init__(self, weight):
        self.weight = weight

    def __call__(self, x):
        return F.linear(x, self.weight)


class InHelper(Model):
    def setup(self):
        self.compute = Helper(self.weight)


class ByIdentity(Model):
    def setup(self):
        self.scales = {self.weight: 0.5}
        self.kept = self.__dict__["alias"] = self.weight

    def compute(self, x):
        assert self.alias is self.weight
        return x @ self.alias * self.scales[self.weight]


class Squared(torch.autograd.Function):
    @staticmethod
    def forward(ctx, weight):
        ctx.save_for_backward(weight)
        return weight * weight

    @staticmethod
    def backward(ctx, grad):
        return grad * 2 * ctx.saved_tensors[0]


class InFunction(InList):
    def compute(self, x):
        return x @ Squared.apply(self.weights[0])


class InVmap(InList):
    def compute(self, x):
        return torch.vmap(lambda row: (x * row).sum(1))(self.weights[0]).t()


class InParameterList(Model):
    def setup(self):
        self.more = nn.ParameterList([nn.Parameter(torch.randn(3)), self.weight])
        self.chosen = list(self.more)

    def compute(self, x):
        return (x * self.chosen[0]) @ self.chosen[1]


class LayersInList(Model):
    def setup(self):
        self.stack = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3))
        self.layers = [(layer.weight, layer.bias) for layer in (self.stack[0], self.stack[2])]

    def compute(self, x):
        for weight, bias in self.layers:
            x = F.linear(x, weight, bias).tanh()
        return x @ self.weight


@torch.jit.script
def product(x, weight):
    return torch.mm(x, weight).tanh()


class InScript(InList):
    def compute(self, x):
        return product(x, self.weights[0])


class WrittenInList(InList):
    def compute(self, x):
        with torch.no_grad():
            self.weights[0].clamp_(-0.5, 0.5)
        return x @ self.weight


class BuffersInList(Model):
    def setup(self):
        self.register_buffer("count", torch.zeros(3))
        self.counts = [self.count]

    def compute(self, x):
        self.counts[0].add_(1)
        return x @ self.weight + self.count


class Recurrent(Model):
    def setup(self):
        self.cell = nn.GRU(3, 3, batch_first=True)
        self.flat = list(self.cell._flat_weights)

    def compute(self, x):
        out, _ = self.cell(x[:, None])
        return out[:, 0] @ self.weight + self.flat[0].mean()


WAYS = (
    InList,
    InDict,
    InClosure,
    InHelper,
    ByIdentity,
    InFunction,
    InVmap,
    InParameterList,
    LayersInList,
    InScript,
    WrittenInList,
    BuffersInList,
    Recurrent,
)


@pytest.mark.parametrize("build", WAYS)
def test_a_parameter_is_trained_however_forward_reaches_it(build, recwarn):
    check_training(build)
    assert not [w for w in recwarn if "does not belong" in str(w.message)]


@pytest.mark.parametrize("build", WAYS)
def test_inference_follows_it(build):
    model = made(build)
    inference = poptorch.inferenceModel(model, quiet())
    inference(*batch(0))
    training = poptorch.trainingModel(model, quiet(), optimizer_of(model))
    training(*batch(0))
    after = inference(*batch(1))
    torch.testing.assert_close(after[1], model(*batch(1))[1].detach())


def test_tensors_are_themselves_again_after_a_capture():
    model = made(InDict)
    weight, seen = model.weight, []
    handle = weight.register_hook(lambda grad: seen.append(grad) or grad * 2)
    weight.note = "kept"
    before = weight.detach().clone()
    poptorch.inferenceModel(model, quiet())(*batch(0))
    assert type(weight) is nn.Parameter and weight is model.weight and weight.note == "kept"
    assert torch.equal(weight, before)
    model(*batch(0))[1].backward()
    assert len(seen) == 1
    handle.remove()
    model(*batch(0))[1].backward()
    assert len(seen) == 1


def test_hooks_of_parameters_are_part_of_the_program():
    def hooked():
        model = InList()
        model.weight.register_hook(lambda grad: grad * 0.5)
        return model

    check_training(hooked)


def test_hooks_that_forward_registers_do_not_stay():
    class Hooked(InList):
        def compute(self, x):
            if self.weight.requires_grad and torch.is_grad_enabled():
                self.weights[0].register_hook(lambda grad: grad * 0.5)
            return x @ self.weight

    model = made(Hooked)
    before = model.weight.detach().clone()
    weight = before.clone().requires_grad_()
    x, target = batch(0)
    F.mse_loss(x @ weight, target).backward()
    poptorch.trainingModel(model, quiet(), torch.optim.SGD(model.parameters(), lr=0.1))(x, target)
    torch.testing.assert_close(model.weight.detach(), before - 0.05 * weight.grad)
    assert not model.weight._backward_hooks


def test_tensors_are_themselves_again_after_a_capture_that_fails():
    class Fails(InList):
        def compute(self, x):
            raise ValueError("not today")

    model = made(Fails)
    before = model.weight.detach().clone()
    with pytest.raises(ValueError, match="not today"):
        poptorch.inferenceModel(model, quiet())(*batch(0))
    assert type(model.weight) is nn.Parameter
    assert torch.equal(model.weight, before)


def test_a_graph_of_eager_that_is_alive_during_a_capture():
    model = made(InList)
    _, loss = model(*batch(0))
    poptorch.inferenceModel(model, quiet())(*batch(0))
    loss.backward()
    twin = made(InList)
    twin(*batch(0))[1].backward()
    torch.testing.assert_close(model.weight.grad, twin.weight.grad)


def test_weights_are_read_while_another_thread_captures():
    model = made(InList)
    training = poptorch.trainingModel(model, quiet(), optimizer_of(model))
    training(*batch(0))
    started, goes_on = threading.Event(), threading.Event()

    class Slow(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model

        def forward(self, x):
            started.set()
            goes_on.wait(10)
            return x @ self.inner.weight

    inference = poptorch.inferenceModel(Slow(), quiet())
    results = []
    thread = threading.Thread(target=lambda: results.append(inference(batch(0)[0])))
    thread.start()
    started.wait(10)
    training(*batch(1))
    threading.Timer(0.2, goes_on.set).start()
    training.copyWeightsToHost()
    thread.join()
    twin = made(InList)
    eager_steps(twin, 2)
    torch.testing.assert_close(model.weight.detach(), twin.weight.detach())


# One memory ---------------------------------------------------------------------------------------


class SharedBuffer(Model):
    def setup(self):
        self.register_buffer("copy", self.weight.detach())

    def compute(self, x):
        return x @ self.weight + self.copy.sum(0)


class RowAsBuffer(Model):
    def setup(self):
        self.register_buffer("row", self.weight.data[1])

    def compute(self, x):
        return x @ self.weight + self.row


class TransposedBuffer(Model):
    def setup(self):
        self.register_buffer("turned", self.weight.data.t())

    def compute(self, x):
        return x @ self.weight @ self.turned


class FrozenTwin(Model):
    def setup(self):
        self.twin = nn.Linear(3, 3, bias=False)
        self.twin.weight.data = self.weight.data
        self.twin.weight.requires_grad_(False)

    def compute(self, x):
        return self.twin(x @ self.weight)


class WrittenThroughTheView(RowAsBuffer):
    def compute(self, x):
        self.row.mul_(0.5)
        return x @ self.weight + self.row


class WrittenThroughColumns(Model):
    def setup(self):
        self.register_buffer("columns", self.weight.data.t()[1:])
        self.register_buffer("corner", self.weight.data[1:, 1:][None])

    def compute(self, x):
        self.columns[0].mul_(0.5)
        self.corner.add_(0.1)
        return x @ self.weight + self.columns.sum(0)


class OverlappingWindows(Model):
    def setup(self):
        self.register_buffer("windows", self.weight.data.view(-1).unfold(0, 3, 2))

    def compute(self, x):
        return x @ self.weight + self.windows.sum(0)


class WrittenUnderTheView(RowAsBuffer):
    def compute(self, x):
        with torch.no_grad():
            self.weight.mul_(0.5)
        return x @ self.weight + self.row


class BuffersOfOneMemory(Model):
    def setup(self):
        memory = torch.zeros(6)
        self.register_buffer("whole", memory)
        self.register_buffer("first", memory[:3])

    def compute(self, x):
        self.first.add_(1)
        self.whole.mul_(2)
        return x @ self.weight + self.first + self.whole[3:]


class ApartInOneStorage(Model):
    """As parameters of a file that was mapped into memory: one storage, nothing in common."""

    def setup(self):
        memory = torch.randn(24)
        self.weight = nn.Parameter(memory[:9].view(3, 3))
        self.bias = nn.Parameter(memory[9:12])
        self.even = nn.Parameter(memory[12::2][:3])
        self.odd = nn.Parameter(memory[13::2][:3])

    def compute(self, x):
        return (x @ self.weight + self.bias) * self.even + self.odd


class NotRegistered(Model):
    """An alias that eager follows, though it is no part of the model."""

    def setup(self):
        self.seen = [self.weight.detach()]

    def compute(self, x):
        return x @ self.weight + self.seen[0].sum(0)


SHARED = (
    SharedBuffer,
    RowAsBuffer,
    TransposedBuffer,
    FrozenTwin,
    WrittenThroughTheView,
    WrittenThroughColumns,
    OverlappingWindows,
    WrittenUnderTheView,
    BuffersOfOneMemory,
    ApartInOneStorage,
    NotRegistered,
)


@pytest.mark.parametrize("build", SHARED)
def test_tensors_of_one_memory_are_one_state(build):
    check_training(build)


@pytest.mark.parametrize("build", SHARED)
def test_tensors_of_one_memory_in_inference(build):
    model, twin = made(build), made(build)
    inference = poptorch.inferenceModel(model, quiet())
    for index in range(3):
        with torch.no_grad():
            expected = twin(*batch(index))
        torch.testing.assert_close(inference(*batch(index)), expected)


def test_both_are_read_as_the_newest():
    model, training = check_training(RowAsBuffer)
    training(*batch(7))
    assert torch.equal(model.row, model.weight.detach()[1])


def test_views_are_sent_with_what_they_are_views_of():
    model = made(RowAsBuffer)
    inference = poptorch.inferenceModel(model, quiet().updatableNamedBuffers(["row"]))
    inference(*batch(0))
    model.row.fill_(2.0)
    inference.copyNamedBuffersToDevice()
    torch.testing.assert_close(inference(*batch(0))[0], model(*batch(0))[0].detach())
    model.row = torch.ones(3)
    with pytest.raises(poptorch.Error, match="weight and row shared their memory"):
        inference.copyWeightsToDevice()


class TwoTrained(Model):
    def setup(self):
        self.other = nn.Linear(3, 3)
        self.other.weight.data = self.weight.data

    def compute(self, x):
        return self.other(x @ self.weight)


class PartTrained(Model):
    def setup(self):
        self.register_buffer("memory", torch.randn(12))
        self.weight = nn.Parameter(self.memory[:9].view(3, 3))

    def compute(self, x):
        return x @ self.weight + self.memory[9:]


class OtherTypeWritten(Model):
    def setup(self):
        self.weight.requires_grad_(False)
        self.other = nn.Parameter(torch.ones(3))
        self.register_buffer("bits", self.weight.data.view(torch.int32))

    def compute(self, x):
        self.weight.mul_(0.5)
        return x @ self.weight * self.other + self.bits.float().mean() * 0


@pytest.mark.parametrize(
    ("build", "words"),
    (
        (
            TwoTrained,
            r"weight and other\.weight are parameters of one memory.*other\.weight = weig",
        ),
        (PartTrained, "weight and memory share memory that the program writes"),
        (OtherTypeWritten, "weight and bits share memory that the program writes"),
    ),
)
def test_what_can_not_be_one_state_is_refused_with_the_names(build, words):
    model = made(build)
    with pytest.raises(poptorch.Error, match=words):
        poptorch.trainingModel(model, quiet(), optimizer_of(model))(*batch(0))


@pytest.mark.parametrize("build", (TwoTrained, PartTrained))
def test_it_is_fine_as_long_as_nothing_is_written(build):
    model = made(build)
    expected = model(*batch(0))[0].detach()
    torch.testing.assert_close(poptorch.inferenceModel(model, quiet())(*batch(0))[0], expected)


def test_aliases_that_the_program_can_not_follow_are_said(caplog):
    class Part(Model):
        def setup(self):
            self.seen = [self.weight.detach()[0]]

        def compute(self, x):
            return x @ self.weight + self.seen[0]

    model = made(Part)
    poptorch.trainingModel(model, quiet(), optimizer_of(model))(*batch(0))
    assert "shares the memory of weight" in caplog.text


def test_tensors_elsewhere_in_a_storage_of_states_are_plain_constants(caplog):
    class Neighbour(Model):
        def setup(self):
            memory = torch.randn(12)
            self.weight = nn.Parameter(memory[:9].view(3, 3))
            self.seen = [memory[9:]]

        def compute(self, x):
            return x @ self.weight + self.seen[0]

    check_training(Neighbour)
    assert "shares the memory" not in caplog.text


def test_a_wrapped_part_is_called_while_another_thread_trains_it():
    model = made(InList)
    training = poptorch.trainingModel(model, quiet(), optimizer_of(model))
    training(*batch(0))
    second = batch(1)

    class Whole(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model

        def forward(self, x, target):
            thread = threading.Thread(target=training, args=second)
            thread.start()
            thread.join()  # the weights on the host are old now
            return self.inner(x, target)

    whole = Whole()
    result = poptorch.inferenceModel(whole, quiet())(*batch(2))
    twin = made(InList)
    eager_steps(twin, 2)
    torch.testing.assert_close(result[1], twin(*batch(2))[1].detach())
