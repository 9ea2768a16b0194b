# SPDX-License-Identifier: Apache-2.0
"""Programs in files: exported, loaded in another process, kept in a cache."""

import os
import subprocess
import sys

import poptorch
import pytest
import torch
from torch import nn

FILE = "model.poptorch"


class Classifier(nn.Module):
    def __init__(self, dropout=0.0):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(dropout))
        self.norm = nn.BatchNorm1d(16)
        self.out = nn.Linear(16, 3)
        self.register_buffer("offset", torch.arange(3.0))

    def forward(self, x, y=None):
        out = self.out(self.norm(self.layers(x))) + self.offset + torch.tensor([1.0, 2.0, 3.0])
        return out if y is None else (out, nn.functional.cross_entropy(out, y))


class Structured(nn.Module):
    def forward(self, batch, scale=2.0, *, shift):
        return {"sum": batch["a"] * scale + shift, "parts": (batch["b"], batch["a"].argmax())}


class Unpicklable(Classifier):
    def __init__(self):
        super().__init__()
        self.function = lambda x: x


def quiet():
    return poptorch.Options().showCompilationProgressBar(False)


def data():
    torch.manual_seed(0)
    return torch.randn(4, 8), torch.randint(0, 3, (4,))


def adam(model):
    return poptorch.optim.Adam(model.parameters(), lr=0.01)


OPTIMIZERS = {
    "ours": adam,
    "of torch": lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9),
}


def losses(executor, steps):
    return [float(executor(*data())[1]) for _ in range(steps)]


# Export and load ----------------------------------------------------------------------------------


def test_an_inference_model_comes_back(tmp_path):
    model, (x, _) = Classifier().eval(), data()
    path = tmp_path / "made" / "on" / "the" / "way" / FILE
    poptorch.inferenceModel(model, quiet().useOfflineIpuTarget()).compileAndExport(path, x)
    loaded = poptorch.load(path)
    assert loaded.isCompiled() and loaded.isAttachedToDevice()
    torch.testing.assert_close(loaded(x), model(x))


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_training_goes_on_where_it_was(tmp_path, optimizer):
    torch.manual_seed(1)
    model = Classifier(dropout=0.5)
    executor = poptorch.trainingModel(model, quiet().randomSeed(3), optimizer(model))
    losses(executor, 3)
    executor.save(tmp_path / FILE)
    loaded = poptorch.load(tmp_path / FILE)
    assert losses(loaded, 3) == losses(executor, 3)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, loaded.model.state_dict()[name]), name


def test_arguments_and_results_of_any_form_come_back(tmp_path):
    call = {"batch": {"a": torch.rand(3), "b": torch.rand(2)}, "shift": 1.5}
    executor = poptorch.inferenceModel(Structured(), quiet())
    executor.compileAndExport(tmp_path / FILE, **call)
    loaded = poptorch.load(tmp_path / FILE)
    result, expected = loaded(**call), Structured()(**call)
    torch.testing.assert_close(result["sum"], expected["sum"])
    assert torch.equal(result["parts"][0], expected["parts"][0])
    with pytest.raises(poptorch.Error, match="Value mismatch for shift: expected 1.5 but got 2"):
        loaded(batch=call["batch"], shift=2.0)


def test_a_loaded_model_can_be_saved_and_compiled_again(tmp_path):
    model, (x, _) = Classifier().eval(), data()
    poptorch.inferenceModel(model, quiet()).compileAndExport(tmp_path / "a", x)
    poptorch.load(tmp_path / "a").save(tmp_path / "b")
    again = poptorch.load(tmp_path / "b")
    again.destroy()
    torch.testing.assert_close(again(torch.cat([x, x])), model(torch.cat([x, x])))


def test_options_can_be_edited(tmp_path):
    poptorch.inferenceModel(Classifier().eval(), quiet()).compileAndExport(
        tmp_path / FILE, data()[0]
    )
    loaded = poptorch.load(tmp_path / FILE, lambda options: options.useIpuId(1))
    assert loaded.options.ipu_id == 1


def test_a_training_and_an_inference_model_are_connected_again(tmp_path):
    model, (x, y) = Classifier(dropout=0.5), data()
    options = quiet().useOfflineIpuTarget()
    poptorch.trainingModel(model, options, adam(model)).compileAndExport(tmp_path / "train", x, y)
    model.eval()
    poptorch.inferenceModel(model, options).compileAndExport(tmp_path / "infer", x)
    training = poptorch.load(tmp_path / "train")
    inference = poptorch.inferenceModel(training, quiet())
    inference.loadExecutable(tmp_path / "infer")
    before = inference(x)
    training(x, y)
    after = inference(x)
    assert not torch.equal(before, after)
    torch.testing.assert_close(after, training.model.eval()(x))


def test_a_model_that_cannot_be_pickled_goes_without(tmp_path):
    model, (x, _) = Unpicklable().eval(), data()
    executor = poptorch.inferenceModel(model, quiet())
    with pytest.raises(poptorch.Error, match="can't be pickled: .*export_model=False"):
        executor.compileAndExport(tmp_path / FILE, x)
    executor.save(tmp_path / FILE, export_model=False)
    with pytest.raises(AssertionError, match="was created with 'export_model=False'"):
        poptorch.load(tmp_path / FILE)
    other = poptorch.inferenceModel(model, quiet())
    other.loadExecutable(tmp_path / FILE)
    torch.testing.assert_close(other(x), model(x))


def test_a_file_is_not_much_larger_than_its_constants(tmp_path):
    model = Classifier().eval()
    model.table = [torch.rand(300, 300)]

    def forward(x):
        return x @ model.table[0][:8, :8]

    model.forward = forward
    executor = poptorch.inferenceModel(model, quiet())
    executor.compileAndExport(tmp_path / FILE, data()[0], export_model=False)
    assert os.path.getsize(tmp_path / FILE) <= 2 * 300 * 300 * 4 + 200 * 1024


def test_another_process_loads_it(tmp_path):
    load = (
        "import poptorch, torch\n"
        "x, want = torch.load('data.pt')\n"
        "torch.testing.assert_close(poptorch.load('model.poptorch')(x), want)\n"
    )
    (tmp_path / "small_model.py").write_text(
        "import torch\n"
        "class Small(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.fc = torch.nn.Linear(8, 3)\n"
        "    def forward(self, x):\n"
        "        return self.fc(x).tanh().softmax(1)\n"
    )
    make = (
        "import poptorch, torch, small_model\n"
        "model, x = small_model.Small(), torch.randn(4, 8)\n"
        "torch.save((x, model(x).detach()), 'data.pt')\n"
        "poptorch.inferenceModel(model).compileAndExport('model.poptorch', x)\n"
    )
    for script in (make, load):
        done = run(script, tmp_path)
        assert done.returncode == 0, done.stderr


def run(script, directory, **environment):
    return subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        cwd=directory,
        env={**os.environ, **environment},
    )


# The cache ----------------------------------------------------------------------------------------


def cached(path, model=None):
    torch.manual_seed(1)
    return poptorch.inferenceModel(
        Classifier().eval() if model is None else model, quiet().enableExecutableCaching(str(path))
    )


def test_the_second_model_is_read_from_the_cache(tmp_path, log):
    x, _ = data()
    first = cached(tmp_path / "cache")(x)
    assert "was read from" not in log.text
    assert torch.equal(cached(tmp_path / "cache")(x), first)
    assert "was read from" in log.text
    assert len(os.listdir(tmp_path / "cache")) == 1


def test_constants_are_those_of_the_model(tmp_path):
    """A program in the cache is used for equal graphs, which may have other constants."""

    class Plus(nn.Module):
        def __init__(self, number):
            super().__init__()
            self.table = [torch.full((3,), number)]

        def forward(self, x):
            return x + self.table[0]

    results = [cached(tmp_path, Plus(n))(torch.zeros(3)).tolist() for n in (1.0, 2.0)]
    assert results == [[1.0] * 3, [2.0] * 3]


def test_options_that_change_the_program_make_another_entry(tmp_path):
    x, _ = data()
    cached(tmp_path)(x)
    options = quiet().enableExecutableCaching(str(tmp_path)).deviceIterations(2)
    poptorch.inferenceModel(Classifier().eval(), options)(x)
    assert len(os.listdir(tmp_path)) == 2


def test_a_bad_entry_is_replaced(tmp_path, log):
    x, _ = data()
    first = cached(tmp_path)(x)
    (entry,) = tmp_path.iterdir()
    good = entry.read_bytes()
    entry.write_bytes(good[:-100])
    assert torch.equal(cached(tmp_path)(x), first)
    assert "is compiled again" in log.text and "is cut" in log.text
    assert len(entry.read_bytes()) == len(good)


def test_a_cache_that_cannot_be_written_is_a_warning(tmp_path, log):
    (tmp_path / "file").write_text("")
    model, (x, _) = Classifier().eval(), data()
    torch.testing.assert_close(cached(tmp_path / "file", model)(x), model(x))
    assert "The cache of programs is not used" in log.text


def test_the_ipu_model_is_not_cached(tmp_path, log):
    options = quiet().enableExecutableCaching(str(tmp_path)).useIpuModel(True)
    poptorch.inferenceModel(Classifier().eval(), options)(data()[0])
    assert "doesn't work with the IPU model" in log.text and not os.listdir(tmp_path)


def test_eight_processes_share_an_empty_cache(tmp_path):
    script = (
        "import poptorch, torch\n"
        "torch.manual_seed(0)\n"
        "model, x = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU()), torch.rand(2, 8)\n"
        "torch.testing.assert_close(poptorch.inferenceModel(model)(x), model(x))\n"
    )
    environment = {**os.environ, "POPTORCH_CACHE_DIR": str(tmp_path / "cache")}
    command = [sys.executable, "-c", script]
    running = [subprocess.Popen(command, cwd=tmp_path, env=environment) for _ in range(8)]
    assert [process.wait() for process in running] == [0] * 8
    (entry,) = (tmp_path / "cache").iterdir()
    done = tool(tmp_path, "verify", "cache")
    assert done.returncode == 0 and entry.suffix == ".tessera"


# The tool -----------------------------------------------------------------------------------------


def tool(directory, *arguments, **environment):
    command = [sys.executable, "-m", "poptorch.cache", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, cwd=directory, env={**os.environ, **environment}
    )


def test_the_tool_lists_verifies_and_prunes(tmp_path):
    cached(tmp_path / "cache")(data()[0])
    (entry,) = (tmp_path / "cache").iterdir()
    listed = tool(tmp_path, "list", POPTORCH_CACHE_DIR=str(tmp_path / "cache"))
    assert entry.stem in listed.stdout and "inference" in listed.stdout
    entry.write_bytes(entry.read_bytes()[:-1])
    bad = tool(tmp_path, "verify", "cache")
    assert bad.returncode == 1 and "is cut" in bad.stdout
    pruned = tool(tmp_path, "prune", "cache", "--max-size", "1G")
    assert pruned.returncode == 0 and not entry.exists()
    assert tool(tmp_path, "list", "nowhere").returncode == 2
