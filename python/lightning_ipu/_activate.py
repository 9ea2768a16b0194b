# SPDX-License-Identifier: Apache-2.0
"""Adds IPUs to one flavour of Lightning: names in its packages, entries in its registries, and
three methods of the class that chooses accelerator, strategy and precision."""

import importlib
import os
import re
import sys
from typing import Any

OLDEST = (2, 4)


def wanted_by_default() -> bool:
    """Whether ``accelerator="auto"`` means IPUs where it would mean the CPU."""
    switch = os.environ.get("TESSERA_AUTO", "")
    return "poptorch" in sys.modules if switch == "" else switch != "0"


def _check_version(root: str) -> None:
    version = str(getattr(sys.modules.get(root.partition(".")[0]), "__version__", ""))
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers and tuple(map(int, numbers.groups())) < OLDEST:
        raise RuntimeError("Lightning {}.{} or newer is needed".format(*OLDEST))


def activate(root: str) -> None:
    """Add IPUs to ``lightning.pytorch`` or ``pytorch_lightning``."""
    _check_version(root)
    packages: list[Any] = [
        importlib.import_module(f"{root}.{name}")
        for name in ("accelerators", "plugins", "plugins.precision", "strategies")
    ]
    accelerators, plugins, precisions, strategies = packages
    accelerator = importlib.import_module(f"{root}.accelerators.ipu").IPUAccelerator
    precision = importlib.import_module(f"{root}.plugins.precision.ipu").IPUPrecision
    strategy = importlib.import_module(f"{root}.strategies.ipu").IPUStrategy
    for package, name, value in (
        (accelerators, "IPUAccelerator", accelerator),
        (strategies, "IPUStrategy", strategy),
        (plugins, "IPUPrecision", precision),
        (precisions, "IPUPrecision", precision),
    ):
        setattr(package, name, value)
        names = getattr(package, "__all__", [])  # not in every version and package
        if name not in names:
            names.append(name)
    plugins.IPUPrecisionPlugin = precisions.IPUPrecisionPlugin = precision  # the older name
    if accelerator.name() not in accelerators.AcceleratorRegistry:
        accelerator.register_accelerators(accelerators.AcceleratorRegistry)
    if strategy.strategy_name not in strategies.StrategyRegistry:
        strategy.register_strategies(strategies.StrategyRegistry)
    connector = importlib.import_module(f"{root}.trainer.connectors.accelerator_connector")
    exceptions = importlib.import_module(f"{root}.utilities.exceptions")
    _wrap_connector(
        connector._AcceleratorConnector,
        accelerator,
        strategy,
        precision,
        exceptions.MisconfigurationException,
    )
    _wrap_device_info(importlib.import_module(f"{root}.trainer.setup"), root, accelerator)


def _wrap_connector(cls: Any, accelerator: Any, strategy: Any, precision: Any, error: Any) -> None:
    if getattr(cls, "_has_ipus", False):
        return
    choose_accelerator = cls._choose_auto_accelerator
    choose_strategy = cls._choose_strategy
    init_precision = cls._check_and_init_precision

    def auto_accelerator(self: Any) -> str:
        flag = self._strategy_flag
        if isinstance(flag, strategy) or flag == strategy.strategy_name:
            return "ipu"
        chosen = choose_accelerator()
        takes_over = chosen == "cpu" and flag == "auto" and wanted_by_default()
        return "ipu" if takes_over else chosen

    def auto_strategy(self: Any) -> Any:
        if isinstance(self.accelerator, accelerator):
            return strategy.strategy_name
        return choose_strategy(self)

    def precision_of(self: Any) -> Any:
        on_ipus, by_us = (
            isinstance(self.accelerator, accelerator),
            isinstance(self.strategy, strategy),
        )
        if on_ipus and not by_us:
            raise error(
                f"The IPU accelerator can only be used with an IPU strategy (`strategy='auto'` or "
                f"`IPUStrategy(...)`), found {type(self.strategy).__name__}."
            )
        if by_us and not on_ipus:
            raise error(
                "The IPU strategy can only be used with an IPU accelerator "
                f"(`accelerator='ipu'`), found {type(self.accelerator).__name__}."
            )
        if not by_us:
            return init_precision(self)
        return self._precision_plugin_flag or precision(self._precision_flag)

    cls._choose_auto_accelerator = auto_accelerator
    cls._choose_strategy = auto_strategy
    cls._check_and_init_precision = precision_of
    cls._has_ipus = True


def _wrap_device_info(setup: Any, root: str, accelerator: Any) -> None:
    """The line about IPUs after those about other devices, in programs that know of IPUs."""
    original = setup._log_device_info
    if getattr(original, "_has_ipus", False):
        return
    rank_zero = importlib.import_module(f"{root}.utilities.rank_zero")

    def log_device_info(trainer: Any) -> None:
        original(trainer)
        used = isinstance(trainer.accelerator, accelerator)
        if used:
            rank_zero.rank_zero_info(f"IPU available: True, using: {trainer.num_devices} IPUs")
        elif wanted_by_default() and type(trainer.accelerator).__name__ == "CPUAccelerator":
            rank_zero.rank_zero_warn(
                "IPU available but not used. Set `accelerator` and `devices` using "
                f"`Trainer(accelerator='ipu', devices={accelerator.auto_device_count()})`.",
                category=importlib.import_module(f"{root}.utilities.warnings").PossibleUserWarning,
            )

    log_device_info._has_ipus = True  # type: ignore[attr-defined]
    setup._log_device_info = log_device_info


def activate_fabric(root: str) -> None:
    """Add IPUs to ``lightning.fabric`` or ``lightning_fabric``; "auto" never means them there."""
    _check_version(root)
    registry = importlib.import_module(f"{root}.accelerators").ACCELERATOR_REGISTRY
    ours = importlib.import_module(f"{root}.strategies.ipu")
    connector = importlib.import_module(f"{root}.connector")._Connector
    if "ipu" not in registry:
        ours.IPUAccelerator.register_accelerators(registry)
    if getattr(connector, "_has_ipus", False):
        return
    choose_strategy, init_precision = (
        connector._choose_strategy,
        connector._check_and_init_precision,
    )

    def auto_strategy(self: Any) -> Any:
        if isinstance(self.accelerator, ours.IPUAccelerator):
            return ours.IPUStrategy(len(self._parallel_devices))
        return choose_strategy(self)

    def precision_of(self: Any) -> Any:
        on_ipus = isinstance(self.accelerator, ours.IPUAccelerator)
        if on_ipus and not isinstance(self.strategy, ours.IPUStrategy):
            raise ValueError(
                "Fabric(accelerator='ipu') needs strategy='auto', found "
                f"{type(self.strategy).__name__}."
            )
        if on_ipus and self._precision_input not in ours.PRECISIONS:
            raise ValueError(
                f"`Fabric(accelerator='ipu', precision={self._precision_input!r})` is not "
                f"supported. `precision` must be one of: {', '.join(ours.PRECISIONS)}."
            )
        return init_precision(self)

    connector._choose_strategy = auto_strategy
    connector._check_and_init_precision = precision_of
    connector._has_ipus = True
