# SPDX-License-Identifier: Apache-2.0
"""Which op a name means, and what to say if it means none."""

import difflib
import functools
from pathlib import Path

from poptorch.capture.custom import registry
from poptorch.capture.custom.named import TABLES, run_named
from poptorch.capture.custom.registry import Run
from poptorch.capture.errors import make_error, user_frame


def find(name: str, domain: str, version: int) -> Run:
    """The op: of a library if one has it, else one that PopART or PopTorch ship."""
    found = registry.registered(name, domain, version)
    return found or _shipped(name, domain or "ai.onnx", version)


def _shipped(name: str, domain: str, version: int) -> Run:
    row = TABLES.get(domain, {}).get(name)
    if row is None:
        raise make_error(_unknown(name, domain, version), user_frame())
    full = f"{domain}.{name}"
    if version < row.since:
        text = (
            f"No class for {full}:{version}: the op begins with version {row.since}. "
            f"Pass domain_version={row.since} or later to poptorch.custom_op."
        )
        raise make_error(text, user_frame())
    return functools.partial(run_named, row, full, version)


def _unknown(name: str, domain: str, version: int) -> str:
    known = [f"{d}.{n}" for d, n in registry.registered_names()]
    known += [f"{d}.{n}" for d, rows in TABLES.items() for n in rows]
    near = _near(name, domain, known)
    meant = f" Near names: {', '.join(near)}." if near else ""
    if f"{domain}.{name}" in known:
        meant = " The libraries that are loaded have it with a later version only."
    loaded = ", ".join(Path(file).name for file in registry.libraries()) or "none"
    # one of another version of the interface has no name
    texts = [t for t in registry.refused() if name in t or t.startswith("an op of")]
    refused = "".join(f"\n  {text}" for text in texts)
    return (
        f"No class for {domain}.{name}:{version}: poptorch.custom_op finds no op of that name."
        f"{meant} Libraries loaded: {loaded}. Load the library of the op, for example with "
        f"ctypes.cdll.LoadLibrary, before the model is compiled.{refused}"
    )


def _near(name: str, domain: str, known: list[str]) -> list[str]:
    """Up to three of the known ops whose names are most like this one, the domain's first."""

    def likeness(full: str) -> tuple[float, float]:
        place, _, short = full.rpartition(".")
        return _ratio(name.lower(), short.lower()), _ratio(domain, place)

    found = {full: likeness(full) for full in known}
    best = sorted((k for k in found if found[k][0] >= 0.7), key=lambda k: found[k], reverse=True)
    return best[:3]


def _ratio(a: str, b: str) -> float:
    return difflib.SequenceMatcher(None, a, b).ratio()
