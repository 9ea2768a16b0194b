# SPDX-License-Identifier: Apache-2.0
"""The import hook. torch calls ``autoload`` at the end of its own import, ``import poptorch`` calls
it too; it adds the IPU modules to Lightning when Lightning is imported, and costs nothing else."""

import importlib.util
import os
import sys
import warnings
from importlib.abc import Loader
from importlib.machinery import PathFinder
from typing import Any

ROOTS = ("lightning.pytorch", "pytorch_lightning")
FABRICS = ("lightning.fabric", "lightning_fabric")
_FOLDER = os.path.join(os.path.dirname(__file__), "overlay")
_OVERLAYS = {
    **{
        f"{root}.{place}.ipu": os.path.join(_FOLDER, file)
        for root in ROOTS
        for place, file in (
            ("accelerators", "accelerator.py"),
            ("plugins.precision", "precision.py"),
            ("strategies", "strategy.py"),
        )
    },
    **{f"{root}.strategies.ipu": os.path.join(_FOLDER, "fabric.py") for root in FABRICS},
}
# Modules after whose import a flavour is ready to be extended, with the function that does it.
_TRIGGERS = {
    **{f"{root}.trainer.connectors.accelerator_connector": (root, "activate") for root in ROOTS},
    **{f"{root}.connector": (root, "activate_fabric") for root in FABRICS},
}


class _Finder:
    """Answers for the names above and for nothing else."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name in _OVERLAYS:
            return importlib.util.spec_from_file_location(name, _OVERLAYS[name])
        if name in _TRIGGERS:
            spec = PathFinder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None:
                spec.loader = _Then(spec.loader, *_TRIGGERS[name])
            return spec
        return None


class _Then(Loader):
    """A module's own loader, after which a flavour is extended."""

    def __init__(self, loader: Any, root: str, function: str) -> None:
        self._loader = loader
        self._root = root
        self._function = function

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: Any) -> Any:
        return self._loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        module.__loader__ = module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        _extend(self._root, self._function)


def _extend(root: str, function: str) -> None:
    """A Lightning that we do not fit must go on working without us."""
    try:
        extend(root, function)
    except Exception as exc:
        version = getattr(
            sys.modules.get(root.partition(".")[0]), "__version__", "of unknown version"
        )
        warnings.warn(
            f"accelerator='ipu' is not available in {root} {version}: {type(exc).__name__}: {exc}. "
            f"lightning_ipu._hook.extend({root!r}, {function!r}) shows where.",
            stacklevel=2,
        )


def extend(root: str, function: str = "activate") -> None:
    """Add IPUs to a flavour of Lightning, with any error as it is."""
    from lightning_ipu import _activate

    getattr(_activate, function)(root)


def autoload() -> None:
    """Install the hook, once; never raises, because torch would not import any more."""
    try:
        if any(isinstance(finder, _Finder) for finder in sys.meta_path):
            return
        sys.meta_path.insert(0, _Finder())
        for name, (root, function) in _TRIGGERS.items():
            if name in sys.modules:
                _extend(root, function)
    except Exception as exc:
        warnings.warn(f"The IPU hook for Lightning failed: {exc!r}", stacklevel=2)
