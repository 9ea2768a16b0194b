# SPDX-License-Identifier: Apache-2.0
"""How a program gets IPUs from Lightning without importing anything of ours, and how programs that
do not want them are left alone. Each in an interpreter of its own."""

import importlib.metadata
import pathlib
import pickle
import tomllib

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.strategies import IPUStrategy
from lightning_support import ROOTS, Net, assert_same_weights, loader, run_python, seeded, trainer

ROOT = pathlib.Path(__file__).resolve().parents[2]
both = pytest.mark.parametrize("root", ROOTS)

SELECTION = """
import sys
from {root}.strategies import IPUStrategy
from {root}.accelerators import IPUAccelerator
from {root}.plugins import IPUPrecision, IPUPrecisionPlugin
import {root}.strategies.ipu, {root}.accelerators.ipu, {root}.plugins.precision.ipu
from {root} import Trainer
assert "poptorch" not in sys.modules
assert IPUStrategy is {root}.strategies.ipu.IPUStrategy
assert IPUStrategy.__module__ == "{root}.strategies.ipu"

def made(**kwargs):
    t = Trainer(logger=False, enable_checkpointing=False, **kwargs)
    assert type(t.strategy) is IPUStrategy and type(t.accelerator) is IPUAccelerator
    assert type(t.precision_plugin) is IPUPrecision and t.world_size == 1
    return t.num_devices

for devices in (1, 2, 8, "8", [0, 1]):
    found = made(accelerator="ipu", devices=devices)
    assert found == (2 if devices == [0, 1] else int(devices)), (devices, found)
assert made(accelerator="ipu", devices="auto") == made(accelerator="ipu") == 4
assert made(strategy="ipu_strategy") == 4
assert made(strategy=IPUStrategy()) == 4
assert made(strategy=IPUStrategy(), accelerator="ipu", devices=2) == 2
assert made(strategy=IPUStrategy(accelerator=IPUAccelerator()), devices=2) == 2
assert made(strategy=IPUStrategy(parallel_devices=[0, 1])) == 2
assert made(accelerator=IPUAccelerator(), devices=2) == 2
# Nothing was said of IPUs by a program that has not used poptorch: the CPU stays the choice.
assert type(Trainer(logger=False).accelerator).__name__ == "CPUAccelerator"
import os
os.environ["PL_TRAINER_ACCELERATOR"] = "ipu"
assert made(devices=2) == 2
print("fine")
"""


@both
def test_names_and_trainers(root):
    assert run_python(SELECTION.format(root=root)) == "fine\n"


AUTO = """
{first}
from {root} import Trainer
import {root}.trainer.connectors.accelerator_connector as connector
for t in Trainer(logger=False), Trainer(accelerator="auto"):
    print(type(t.accelerator).__name__[:3].lower())
for other in ("cuda", "mps", "tpu") if hasattr(connector, "_select_auto_accelerator") else ():
    connector._select_auto_accelerator = lambda: other
    assert connector._AcceleratorConnector._choose_auto_accelerator(
        type("C", (), dict(_strategy_flag="auto"))()) == other
"""


@pytest.mark.parametrize(
    "first,switch,expected",
    [
        ("", None, "cpu"),
        ("import poptorch", None, "ipu"),
        ("", "1", "ipu"),
        ("import poptorch", "0", "cpu"),
    ],
)
def test_what_auto_means(first, switch, expected):
    environment = {} if switch is None else {"TESSERA_AUTO": switch}
    code = AUTO.format(first=first, root="lightning.pytorch")
    assert run_python(code, **environment) == f"{expected}\n{expected}\n"


ORDERS = """
import sys
{imports}
import lightning.pytorch, pytorch_lightning
from lightning.pytorch.strategies import IPUStrategy as A
from pytorch_lightning.strategies import IPUStrategy as B
assert A is not B and issubclass(B, pytorch_lightning.strategies.Strategy)
assert not issubclass(A, pytorch_lightning.strategies.Strategy)
for package in (lightning.pytorch, pytorch_lightning):
    assert package.Trainer(accelerator="ipu", devices=1, logger=False).num_devices == 1
"""


@pytest.mark.parametrize(
    "imports", ["import torch", "import pytorch_lightning", "import lightning"]
)
def test_orders_of_imports_and_both_flavours(imports):
    run_python(ORDERS.format(imports=imports))


def test_without_the_lightning_package():
    run_python(
        "import sys; sys.modules['lightning'] = None\n"
        "from pytorch_lightning import Trainer\n"
        "assert Trainer(accelerator='ipu', devices=8, logger=False).num_devices == 8"
    )


OFF = """
from lightning.pytorch import Trainer
try:
    Trainer(accelerator="ipu")
except ValueError as exc:
    assert "invalid accelerator name" in str(exc), exc
else:
    raise SystemExit("no error")
import poptorch
assert Trainer(accelerator="ipu", devices=2, logger=False).num_devices == 2
"""


def test_without_autoload_poptorch_has_to_be_imported():
    run_python(OFF, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    run_python(
        "import poptorch\n"
        + OFF.partition("import poptorch")[2].replace(
            "assert", "from lightning.pytorch import Trainer\nassert"
        ),
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )


def test_a_broken_hook_only_warns():
    code = (
        "import sys, warnings, lightning_ipu\n"
        "sys.modules['lightning_ipu._activate'] = None\n"
        "with warnings.catch_warnings(record=True) as caught:\n"
        "    warnings.simplefilter('always')\n"
        "    import lightning.pytorch as pl\n"
        "assert any('is not available in lightning.pytorch' in str(w.message) for w in caught)\n"
        "assert pl.Trainer(logger=False).strategy.root_device.type == 'cpu'"
    )
    run_python(code)


def test_an_old_lightning_only_warns():
    code = (
        "import warnings, lightning_ipu._activate\n"
        "lightning_ipu._activate.OLDEST = (9, 0)\n"
        "with warnings.catch_warnings(record=True) as caught:\n"
        "    warnings.simplefilter('always')\n"
        "    import lightning.pytorch as pl, lightning.fabric\n"
        "texts = [str(w.message) for w in caught if 'Lightning 9.0 or newer' in str(w.message)]\n"
        "assert len(texts) == 2, texts\n"
        "assert pl.Trainer(logger=False).strategy.root_device.type == 'cpu'"
    )
    run_python(code)


def test_the_parts_of_lightning_that_are_changed_exist():
    """If this fails, a new Lightning has other private parts."""
    code = (
        "from {root}.trainer.connectors.accelerator_connector import _AcceleratorConnector as C\n"
        "for name in 'auto_accelerator strategy'.split():\n"
        "    assert callable(getattr(C, f'_choose_{{name}}')), name\n"
        "assert callable(C._check_and_init_precision)\n"
        "assert not getattr(C, '_has_ipus', False)"
    )
    for root in ROOTS:
        run_python(code.format(root=root), TORCH_DEVICE_BACKEND_AUTOLOAD="0")


def test_importing_lightning_loads_little_of_ours():
    code = (
        "import sys, lightning.pytorch\n"
        "print(sorted(n for n in sys.modules if n.partition('.')[0] in "
        "('lightning_ipu', 'poptorch') or n.endswith('.ipu')))"
    )
    loaded = eval(run_python(code))
    assert "lightning_ipu._hook" in loaded and "lightning.pytorch.strategies.ipu" in loaded
    assert "lightning_ipu._programs" not in loaded  # what only a run on IPUs needs
    assert not [name for name in loaded if name.startswith("poptorch")]
    assert run_python("import sys, torch\nprint('lightning_ipu._activate' in sys.modules)") == (
        "False\n"
    )


def test_runs_on_the_cpu_are_what_they_were():
    code = """
import torch, lightning.pytorch as pl
from torch.utils.data import DataLoader, TensorDataset
class M(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.l = torch.nn.Linear(3, 2)
    def training_step(self, batch, i):
        loss = self.l(batch[0]).pow(2).mean()
        self.log("loss", loss)
        return loss
    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())
pl.seed_everything(0, verbose=False)
t = pl.Trainer(accelerator="cpu", max_epochs=2, logger=False, enable_checkpointing=False,
               enable_progress_bar=False)
t.fit(m := M(), DataLoader(TensorDataset(torch.randn(16, 3)), 4, shuffle=True))
print(t.callback_metrics["loss"].item(), m.l.weight.tolist())
"""
    assert run_python(code) == run_python(code, TORCH_DEVICE_BACKEND_AUTOLOAD="0")


def test_the_source_tree_says_the_same_as_the_wheel():
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    folder = ROOT / "python" / "tessera_poptorch.dist-info"
    here = importlib.metadata.Distribution.at(folder)
    found = {(e.group, e.name, e.value) for e in here.entry_points}
    assert found == {
        (group, name, value)
        for group, entries in wanted["entry-points"].items()
        for name, value in entries.items()
    }
    assert (here.metadata["Name"], here.version) == (wanted["name"], wanted["version"])


def test_strategies_pickle_and_serve_two_trainers():
    strategy = IPUStrategy(device_iterations=2)
    other = pickle.loads(pickle.dumps(strategy))
    assert type(other) is IPUStrategy and other.device_iterations == 2
    modules = []
    for _ in range(2):
        t = trainer("auto", devices=2, max_epochs=1, strategy=strategy)
        assert t.num_devices == 2
        t.fit(module := seeded(Net), loader())
        modules.append(module)
    assert_same_weights(*modules, rtol=0, atol=0)
    strategy._lightning_module = strategy._model = None  # of the user, and of this file
    strategy.optimizers = []
    assert pickle.loads(pickle.dumps(strategy)).poptorch_models == {}


def test_the_warning_of_unused_ipus(monkeypatch):
    monkeypatch.setenv("TESSERA_AUTO", "1")
    with pytest.warns(UserWarning, match="IPU available but not used. Set `accelerator` and"):
        trainer("cpu")


def test_the_other_flavour_trains_too():
    code = """
import copy, torch, pytorch_lightning as pl
from torch.utils.data import DataLoader, TensorDataset
class M(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.l = torch.nn.Linear(3, 2)
    def training_step(self, batch, i):
        return self.l(batch[0]).pow(2).mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)
first = M()
found = []
for name, devices, size in (("ipu", 4, 2), ("cpu", 1, 8)):
    m = copy.deepcopy(first)
    torch.manual_seed(0)
    t = pl.Trainer(accelerator=name, devices=devices, max_epochs=1, logger=False,
                   enable_checkpointing=False, enable_progress_bar=False)
    t.fit(m, DataLoader(TensorDataset(torch.randn(16, 3)), size))
    found.append(m.l.weight)
torch.testing.assert_close(*found, rtol=1e-4, atol=1e-6)
"""
    run_python(code)


def test_fabric_runs_models_and_refuses_to_train():
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator="ipu", devices=2)
    fabric.launch()
    model = torch.nn.Linear(4, 3)
    x = torch.randn(6, 4)
    ready = fabric.setup(model).eval()
    torch.testing.assert_close(ready(x), model(x).detach(), rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        model.weight.mul_(2)
    torch.testing.assert_close(ready(x), model(x).detach(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ready(x[:4]), model(x[:4]).detach(), rtol=1e-4, atol=1e-5)
    lookup = fabric.setup(torch.nn.Embedding(5, 2))
    for dtype in (torch.int32, torch.int64):  # each has a program of its own
        ids = torch.arange(4, dtype=dtype)
        torch.testing.assert_close(lookup(ids), lookup.module.weight[:4].detach())
    with pytest.raises(NotImplementedError, match="Trainer\\(accelerator='ipu'\\)"):
        fabric.setup(model, torch.optim.SGD(model.parameters(), 0.1))
    with pytest.raises(NotImplementedError, match="inference only"):
        fabric.backward(ready(x).sum())
    with pytest.raises(ValueError, match="precision='bf16-mixed'"):
        Fabric(accelerator="ipu", precision="bf16-mixed")
    assert type(Fabric(accelerator="auto").accelerator).__name__ == "CPUAccelerator"


def test_the_module_is_the_users_after_a_run():
    module = seeded(Net)
    trainer(max_epochs=1).fit(module, loader())
    assert type(module) is Net and isinstance(module, pl.LightningModule)
    assert all(type(p) is torch.nn.Parameter for p in module.parameters())
    pickle.loads(pickle.dumps(module.state_dict()))
