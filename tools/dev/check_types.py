#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Type check of the Python packages, as pyproject.toml has it, and of the files that Lightning
loads as modules of its own packages, under the names that they have there."""

import pathlib
import subprocess
import sys

from mypy import build
from mypy.config_parser import parse_config_file
from mypy.modulefinder import BuildSource
from mypy.options import Options

ROOT = pathlib.Path(__file__).resolve().parents[2]
OVERLAY = ROOT / "python/lightning_ipu/overlay"
LOADED = {
    "lightning.pytorch.accelerators.ipu": "accelerator.py",
    "lightning.pytorch.plugins.precision.ipu": "precision.py",
    "lightning.pytorch.strategies.ipu": "strategy.py",
    "lightning.fabric.strategies.ipu": "fabric.py",
}
# What Lightning imports beside itself takes a minute to read and says little about these files.
SKIPPED = ("torch", "torchmetrics", "numpy", "fsspec")


def check_overlay():
    """Errors of the overlay files, as texts."""
    options = Options()
    parse_config_file(options, lambda: None, str(ROOT / "pyproject.toml"))
    options.packages, options.exclude = [], []
    options.mypy_path = [str(ROOT / "python")]
    options.python_executable = sys.executable
    options.follow_imports = "silent"
    options.cache_dir = str(ROOT / ".mypy_cache" / "overlay")
    for package in SKIPPED:
        for module in (package, f"{package}.*"):
            options.per_module_options[module] = {"follow_imports": "skip"}
    sources = [BuildSource(str(OVERLAY / file), module) for module, file in LOADED.items()]
    return build.build(sources, options).errors


def main():
    failed = subprocess.run([sys.executable, "-m", "mypy"], cwd=ROOT).returncode
    errors = check_overlay()
    if errors:
        print(*errors, sep="\n")
    if failed or errors:
        sys.exit(1)


if __name__ == "__main__":
    main()
