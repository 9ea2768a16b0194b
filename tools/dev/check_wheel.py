#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs programs with a wheel's packages in place of the source tree's: what it lacks shows here."""

import os
import pathlib
import subprocess
import sys
import tempfile
import zipfile

CHECKS = {
    "poptorch compiles and runs a model": """
import poptorch, torch
options = poptorch.Options().showCompilationProgressBar(False)
model, x = torch.nn.Linear(3, 2), torch.randn(4, 3)
torch.testing.assert_close(poptorch.inferenceModel(model, options)(x), model(x).detach())
""",
    "popart, and the version of poptorch": """
from importlib.metadata import version
import popart, popdist.poptorch, poptorch
from packaging.version import parse
assert parse(version("poptorch")) == parse(poptorch.__version__) > parse("3.4")
options = poptorch.Options()
options._Popart.set("subgraphCopyingStrategy", popart.SubgraphCopyingStrategy.JustInTime)
try:
    import popart.ir
except ImportError as exc:
    assert "not part of this" in str(exc)
""",
    "gc-monitor and its like are commands": """
import contextlib, io, sys
from importlib.metadata import distribution
import poptorch
entries = {e.name: e for e in distribution("tessera-poptorch").entry_points}
for name, arguments in (("gc-monitor", []), ("gc-info", ["-l"])):
    sys.argv = [name, *arguments]
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        entries[name].load()()
    assert "Virtual" in shown.getvalue()
assert "gc-reset" in entries
""",
    "a custom op is built and runs": """
import pathlib, subprocess, tempfile
import poptorch, torch
source = '''
#include <tessera/custom_op.h>
using namespace tessera::custom;
struct Twice {
  static void setup(Setup& s) { s.output(0, s.input(0)); }
  static void compose(Compose& c) { Builder b(c); b.output(b.input(0) * 2.0); }
};
TESSERA_REGISTER_OP(Twice, "wheel", "Twice", 1);
'''
folder = pathlib.Path(tempfile.mkdtemp())
(folder / "a.cpp").write_text(source)
command = ["g++", *poptorch.custom_op_cflags(), folder / "a.cpp", *poptorch.custom_op_ldflags()]
subprocess.run([*command, "-o", folder / "a.so"], check=True)
assert poptorch.load_custom_op_library(folder / "a.so") == ["wheel.Twice:1"]
class Model(torch.nn.Module):
    def forward(self, x):
        return poptorch.custom_op([x], "Twice", "wheel", 1, [x])[0]
assert poptorch.inferenceModel(Model())(torch.ones(2)).tolist() == [2, 2]
""",
    "torch finds the entry point, and Lightning has IPUs without an import of ours": """
import sys
from importlib.metadata import distribution
import lightning.pytorch as pl
from lightning.pytorch.strategies import IPUStrategy
from lightning.fabric import Fabric
assert "poptorch" not in sys.modules
trainer = pl.Trainer(accelerator="ipu", devices=2, logger=False)
assert type(trainer.strategy) is IPUStrategy
assert Fabric(accelerator="ipu").accelerator.name() == "ipu"
import poptorch
entries = distribution("tessera-poptorch").entry_points
assert [e.value for e in entries if e.group == "torch.backends"] == ["lightning_ipu._hook:autoload"]
""",
    "a LightningModule trains": """
import lightning.pytorch as pl, torch
class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 1)
    def training_step(self, batch, batch_idx):
        loss = self.layer(batch).square().mean()
        self.log("loss", loss)
        return loss
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)
trainer = pl.Trainer(accelerator="ipu", devices=1, max_epochs=4, logger=False,
                     enable_checkpointing=False, enable_progress_bar=False)
trainer.fit(Module(), torch.utils.data.DataLoader(torch.ones(32, 3), 8))
assert trainer.callback_metrics["loss"] < 0.01
import poptorch
""",
}


def check(packages: str, empty: str, code: str) -> None:
    """Run code in an empty folder, and make sure of whose packages it used."""
    code += f"\nassert poptorch.__file__.startswith({packages!r}), poptorch.__file__"
    environment = {**os.environ, "PYTHONPATH": packages}
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(command, cwd=empty, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)


def main() -> None:
    wheel = max(map(pathlib.Path, sys.argv[1:]), key=lambda path: path.stat().st_mtime)
    with tempfile.TemporaryDirectory() as packages, tempfile.TemporaryDirectory() as empty:
        zipfile.ZipFile(wheel).extractall(packages)
        for name, code in CHECKS.items():
            check(packages, empty, code)
            print(f"    {wheel.name}: {name}")


if __name__ == "__main__":
    main()
